"""The race checker over hand-made records: what is a race, what is not, and why."""

import itertools

import numpy as np
import pytest
from ranks import run_ranks

from emulator.engine.api import ADD, EQ, GE, NE, SET
from memsem.checked import checked
from memsem.checker import (
    READ_OVERLAPS_PUT,
    SOURCE_REUSED,
    UNORDERED_PUTS,
    find_races,
    main,
)
from memsem.checkfile import CHECK_DTYPE, CheckFile, Kind, read_check_files
from memsem.happens_before import Signal, Word, taken_by_wait

RELAXED, STRONG = 1, 3


class Program:
    """Records of n ranks, written in the order the calls are made: each is one instant later."""

    def __init__(self, n):
        self.files, self.clock = [[] for _ in range(n)], itertools.count(1)

    def __call__(self, rank, kind, **fields):
        record = np.zeros(1, CHECK_DTYPE)
        record["word"], record["kind"], record["time_ps"] = -1, kind, next(self.clock)
        for name, value in fields.items():
            record[name] = value
        self.files[rank].append(record)
        return len(self.files[rank]) - 1

    def put(self, rank, home, low=0, high=8, **more):
        return self(rank, Kind.PUT, home=home, low=low, high=high, **more)

    def signal(self, rank, home, word=0, op=SET, value=1, low=0, high=0, **more):
        return self(rank, Kind.PUT, home=home, low=low, high=high, word=word, op=op, value=value, **more)

    def wait(self, rank, cmp=GE, value=1, word=0):
        return self(rank, Kind.WAIT, word=word, op=cmp, value=value, home=rank)

    def load(self, rank, low=0, high=8):
        return self(rank, Kind.LOAD, home=rank, low=low, high=high)

    def races(self):
        empty = np.zeros(0, CHECK_DTYPE)
        return [race.what for race in find_races([np.concatenate([empty, *f]) for f in self.files])]


def message_passing(order, first=0, second=0):
    """P0 puts data, orders, then signals with nothing; P1 waits and loads."""
    p = Program(2)
    p.put(0, 1, order=first)
    if order is not None:
        p(0, order)
    p.signal(0, 1, order=second)
    p.wait(1)
    p.load(1)
    return p.races()


@pytest.mark.parametrize("order", [Kind.FENCE, Kind.QUIET])
def test_a_fence_or_quiet_before_the_signal_orders(order):
    assert message_passing(order) == []


def test_a_signal_orders_its_own_data_only():
    assert message_passing(None) == [READ_OVERLAPS_PUT]
    p = Program(2)
    p.signal(0, 1, low=0, high=8)
    p.wait(1)
    p.load(1)
    assert p.races() == []


def test_strong_waits_for_relaxed_and_for_nothing_else():
    assert message_passing(None, RELAXED, STRONG) == []
    assert message_passing(None, 0, STRONG) == [READ_OVERLAPS_PUT]
    assert message_passing(None, STRONG, RELAXED) == [READ_OVERLAPS_PUT]


@pytest.mark.parametrize("order", [Kind.FENCE, Kind.QUIET])
def test_a_fence_is_for_one_home(order):
    """Data at rank 2, signal at rank 1: after a fence the reader knows nothing, after quiet it does."""
    p = Program(3)
    p.put(0, 2)
    p(0, order)
    p.signal(0, 1)
    p.wait(1)
    p(1, Kind.GET, home=2, low=0, high=8)
    assert p.races() == ([READ_OVERLAPS_PUT] if order == Kind.FENCE else [])


def test_no_wait_is_a_race_and_other_bytes_are_none():
    p = Program(2)
    p.put(0, 1)
    p.load(1, 8, 16)
    assert p.races() == []
    p.load(1, 7, 9)
    assert p.races() == [READ_OVERLAPS_PUT]


def test_the_reader_before_the_writer():
    """A load, then a put of another rank that nothing orders behind it; a signal back makes it right."""
    p = Program(2)
    p.load(1)
    p.put(0, 1)
    assert p.races() == [READ_OVERLAPS_PUT]
    p = Program(2)
    p.load(1)
    p.signal(1, 0)
    p.wait(0)
    p.put(0, 1)
    assert p.races() == []


def test_two_puts_of_one_rank():
    for between, expected in [(None, [UNORDERED_PUTS]), (Kind.FENCE, []), (Kind.QUIET, [])]:
        p = Program(2)
        p.put(0, 1)
        if between:
            p(0, between)
        p.put(0, 1)
        assert p.races() == expected
    p = Program(2)
    p.put(0, 1, order=STRONG)
    p.put(0, 1, order=STRONG)
    assert p.races() == []


def test_two_puts_of_two_ranks_need_a_message_or_barrier_after_quiet():
    for with_quiet, expected in [(True, []), (False, [UNORDERED_PUTS])]:
        p = Program(3)
        p.put(0, 2)
        if with_quiet:
            p(0, Kind.QUIET)
        p(0, Kind.SEND, home=1, low=5)
        p(1, Kind.RECEIVE, home=0, low=5)
        p.put(1, 2)
        assert p.races() == expected


def test_a_barrier_joins_everybody():
    p = Program(3)
    p.put(0, 2)
    p(0, Kind.QUIET)
    for rank in (2, 0, 1):
        p(rank, Kind.BARRIER)
    p.load(2)
    p.put(1, 2)
    assert p.races() == [READ_OVERLAPS_PUT]  # the load and the second put, nothing with the first


def test_my_own_get_may_overtake_my_put_and_a_fence_does_not_help():
    for between, expected in [(Kind.FENCE, [READ_OVERLAPS_PUT]), (Kind.QUIET, [])]:
        p = Program(2)
        p.put(0, 1)
        p(0, between)
        p(0, Kind.GET, home=1, low=0, high=8)
        assert p.races() == expected


def test_a_get_that_is_not_waited_for_races_with_a_later_put():
    p = Program(2)
    get = p(0, Kind.GET_NBI, home=1, low=0, high=8)
    p.put(0, 1)
    assert p.races() == [READ_OVERLAPS_PUT]
    p = Program(2)
    get = p(0, Kind.GET_NBI, home=1, low=0, high=8)
    p(0, Kind.DONE, index=get)
    p.put(0, 1)
    assert p.races() == []


def counter(wanted, chunks=4):
    p = Program(2)
    for k in range(chunks):
        p.signal(0, 1, op=ADD, low=8 * k, high=8 * k + 8)
    p.wait(1, GE, wanted)
    p.load(1, 0, 8)
    return p.races()


def test_additive_counter_is_only_certain_when_all_are_needed():
    """NVIDIA/nvshmem #84. Shown to fail when a wait takes every signal that was sent."""
    assert counter(4) == [] and counter(1, chunks=1) == []
    assert counter(1) == counter(3) == [READ_OVERLAPS_PUT]


def test_what_all_alternatives_have_behind_them_is_known():
    """Data, quiet, then four signals of which one is waited for: the data are there whichever it was."""
    p = Program(2)
    p.put(0, 1)
    p(0, Kind.QUIET)
    for _ in range(4):
        p.signal(0, 1, op=ADD)
    p.wait(1, GE, 1)
    p.load(1)
    assert p.races() == []


def test_signal_words_in_pure_form():
    def ask(cmp, value, *sent, base=0):
        word = Word(base, [Signal(op, v, None) for op, v in sent])
        certain, some = taken_by_wait(word, cmp, value)
        return [s.value for s in certain], [s.value for s in some]

    assert ask(GE, 2, (SET, 1), (SET, 2)) == ([2], [])
    assert ask(GE, 1, (SET, 1), (SET, 2)) == ([], [1, 2])
    assert ask(GE, 1, (SET, 1), base=1) == ([], [])  # it held before
    assert ask(EQ, 7, (ADD, 3), (ADD, 4)) == ([3, 4], [])
    assert ask(GE, 4, (ADD, 3), (ADD, 4)) == ([4], [])
    assert ask(NE, 0, (ADD, 3)) == ([3], []) and ask(NE, 0, (ADD, 3), (ADD, 1)) == ([], [3, 1])


def test_reset_starts_a_word_anew():
    p = Program(2)
    for _ in range(2):
        p.put(0, 1)
        p(0, Kind.FENCE)
        p.signal(0, 1)
        p.wait(1, EQ, 1)
        p(1, Kind.RESET, word=0, value=0)
        p.load(1)
        p.signal(1, 0, word=3)
        p.wait(0, EQ, 1, word=3)
        p(0, Kind.RESET, word=3, value=0)
    assert p.races() == []


def test_atomics_order_through_the_value_they_found():
    p = Program(3)
    p.put(0, 2, 64, 72)
    p(0, Kind.QUIET)
    mine = p(0, Kind.ATOMIC, home=2, low=0, high=8, op=1, value=0, seen=1)
    p(0, Kind.DONE, index=mine)
    p(1, Kind.ATOMIC, home=2, low=0, high=8, op=1, value=1, seen=2)
    p.put(1, 2, 64, 72)
    assert p.races() == []
    p.put(0, 2, 0, 8)
    assert p.races() == [UNORDERED_PUTS]  # with the atomic of rank 1


def test_a_changed_source_is_a_finding():
    p = Program(2)
    put = p.put(0, 1)
    p(0, Kind.SOURCE, index=put, home=1, low=0, high=8)
    assert p.races() == [SOURCE_REUSED]


def test_files_and_the_command(tmp_path, capsys):
    for rank in range(2):
        file = CheckFile(str(tmp_path), rank)
        if rank == 0:
            assert file.add(Kind.PUT, 5, home=1, low=0, high=8) == 0
        else:
            assert file.add(Kind.QUIET, 1) == 0 and file.add(Kind.LOAD, 9, home=1, high=4) == 1
        file.close()
    assert [f.size for f in read_check_files(tmp_path)] == [1, 2]
    assert main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "read overlaps an un-waited put: bytes 0 to 4 of rank 1" in out and "1 races" in out
    (tmp_path / "rank-0.check").unlink()
    assert main([str(tmp_path)]) == 2 and "rank-0.check" in capsys.readouterr().err


def test_a_checked_view_tells_what_is_touched():
    array, seen = np.arange(24).reshape(4, 6), []
    start = array.ctypes.data
    view = checked(
        array, lambda kind, low, high: seen.append((kind, (low - start) // 8, (high - start) // 8))
    )

    def told(action):
        seen.clear()
        action()
        return list(seen)

    row = view[1]
    assert told(lambda: view[1:3]) == []  # a slice alone reads nothing
    assert told(lambda: view[2, 3]) == [(Kind.LOAD, 15, 16)] and view[2, 3] == 15
    assert told(lambda: row[2]) == [(Kind.LOAD, 8, 9)]
    assert told(lambda: row.tolist()) == [(Kind.LOAD, 6, 12)]
    assert told(lambda: view[:, 0] + 1) == [(Kind.LOAD, 0, 19)]
    assert told(lambda: np.array_equal(row, [1])) == [(Kind.LOAD, 6, 12)]
    assert told(lambda: view[[0, 3]]) == [(Kind.LOAD, 0, 24)]
    assert told(lambda: view.__setitem__((0, 1), 50)) == [(Kind.STORE, 1, 2)] and array[0, 1] == 50
    assert told(lambda: np.add(row, 1, out=row)) == [(Kind.LOAD, 6, 12), (Kind.STORE, 6, 12)]
    assert array[1].tolist() == [7, 8, 9, 10, 11, 12] and (view == array).all()


RUN = """
import numpy as np, emulator
from memsem import OrderFlags, SymmetricHeap, Team, Window
device = emulator.init()
me, n = device.rank, device.num_ranks
window = Window.create(64, np.int64, signals=8)
team = Team.world(device)
half = team.split(me % 2)
heap = SymmetricHeap.create(4096, 4)
device.barrier()
if me == 0:
    window.put(1, [1], 0)
    ORDER
    window.put_signal(1, [2], 1, 0, 1)
    source = np.array([3, 4])
    pending = window.put_nbi(1, source, 2)
    CHANGE
    pending.wait()
    source[0] = 6
    window.write_imm(1, [5], 4, 9)
    window.put_batch([1, 1], [7, 8], [10, 11], signals=[1, 1], values=1, op="add")
elif me == 1:
    window.signal_wait_until(0, "ge", 1)
    assert window.local[1] == 2
    READ
    window.wait_imm()
    assert window.local[4] == 5
    window.signal_wait_until(1, "ge", 2)
    assert window.local[10:12].tolist() == [7, 8]
for round in range(3):                                       # barriers of teams order, too
    half.barrier()
    if half.rank == 0:
        window.put(half.members[1], [round], 20)
    half.barrier()
    if half.rank == 1:
        window.load(20, 1)
counter = window.fetch_add(0, 30, 1)                         # a turn, by an atomic
piece = heap.alloc(64, signals=1)
view = piece.view(np.int64)
view.put_signal((me + 1) % n, [me], 0, 0, 1)
view.signal_wait_until(0, "eq", 1)
assert view.local[0] == (me - 1) % n
heap.free(piece)
device.barrier()
if me == 2:
    window.put(1, [1], 40)
device.barrier()
window.load()
report(ok=True)
"""


def races_of(tmp_path, order="window.fence()", change="", read="window.local[0]", **config):
    program = RUN.replace("ORDER", order).replace("CHANGE", change).replace("READ", read)
    run_ranks(4, program, trace=str(tmp_path), check_races=True, **config)
    return [(r.what, r.first[0], r.second[0]) for r in find_races(read_check_files(tmp_path))]


@pytest.mark.multirank
@pytest.mark.parametrize(
    "config", [{}, {"transport": "rma", "engine": "python"}, {"delivery": "adversarial"}]
)
def test_a_run_that_orders_everything_has_no_race(tmp_path, config):
    assert races_of(tmp_path, **config) == []


@pytest.mark.multirank
def test_races_of_a_run_are_found_also_when_all_went_well(tmp_path):
    assert races_of(tmp_path, order="") == [(READ_OVERLAPS_PUT, 0, 1)]
    assert races_of(tmp_path, change="source[1] = 5") == [(SOURCE_REUSED, 0, 0)]
    assert races_of(tmp_path, read="window.load(2, 1)") == [(READ_OVERLAPS_PUT, 0, 1)]
    assert races_of(tmp_path, order="window.put(1, [9], 0); window.fence()") == [(UNORDERED_PUTS, 0, 0)]


@pytest.mark.multirank
def test_recording_changes_no_time(tmp_path):
    program = RUN.replace("ORDER", "window.fence()").replace("CHANGE", "").replace("READ", "window.local[0]")
    assert run_ranks(4, program).sha == run_ranks(4, program, trace=str(tmp_path), check_races=True).sha
