"""Teams: numbers, splits, barriers, and signal words that no two overlapping teams share."""

import pytest
from ranks import run_ranks

from memsem.team import members_of, rounds_of

CASES = [("shared", "c"), ("rma", "python")]
multirank = pytest.mark.multirank


def test_members_by_key_then_by_old_rank():
    rows = [(0, 5), (1, 0), (0, 5), (-1, 0), (0, -2)]
    assert members_of(rows, (10, 11, 12, 13, 14), 0) == (14, 10, 12)
    assert members_of(rows, (10, 11, 12, 13, 14), 1) == (11,)


@pytest.mark.parametrize(("size", "rounds"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (768, 10)])
def test_rounds_of_a_barrier(size, rounds):
    assert rounds_of(size) == rounds


SPLITS = """
import numpy as np, emulator, pytest
from emulator.errors import SizeError, StateError
from memsem import Team, Window
device = emulator.init()
me, n = device.rank, device.num_ranks
world = Team.world(device)
assert Team.world(device) is world and world.members == tuple(range(n)) and world.rank == me
row = world.split(me % 2, -me)                               # backwards
assert row.members == tuple(sorted((r for r in range(n) if r % 2 == me % 2), reverse=True))
assert row.members[row.rank] == me and row.size == len(row.members)
strided = world.split_strided(1, 2, 2)
assert (strided is None) == (me not in (1, 3))
if strided:
    assert strided.members == (1, 3)
    inner = strided.split(0, -strided.rank)                  # of a part, by its members only
    assert inner.members == (3, 1) and inner.translate(0, world) == 3
    assert inner.translate(0, strided) == 1 and world.translate(0, inner) is None
    inner.barrier()
none = world.split(None if me == 0 else 0)
assert (none is None) == (me == 0)
window = Window.create(8, np.int64, team=row)
window.put_signal((row.rank + 1) % row.size, [me], 0, 0, 1)
window.signal_wait_until(0, "eq", 1)
assert window.local[0] == row.members[(row.rank - 1) % row.size]
row.barrier()
assert window.get((row.rank + 1) % row.size, 0, 1)[0] == me
window.put_batch([0, 1], [me + 1, me + 1], [1 + row.rank, 1 + row.rank])
assert window.fetch_add((row.rank + 1) % row.size, 4, 1) == 0
row.barrier()
if row.rank < 2:
    assert window.load(1, 2).tolist() == [m + 1 for m in row.members]
window.write_imm(1 - row.rank, [5], 6, 40 + me)
got = window.wait_imm()
assert got.rank == 1 - row.rank and got.value == 40 + row.members[got.rank]
def refused(kind, match, call, *args):
    with pytest.raises(kind, match=match):
        call(*args)
refused(SizeError, "no rank 2; ranks are 0 to 1", window.put, 2, [1])
refused(SizeError, "color is 0 or more", world.split, -1)
refused(SizeError, "3 ranks from 1 in steps of 2 are not within 4", world.split_strided, 1, 2, 3)
refused(SizeError, "no rank 4", world.translate, 4, row)
refused(SizeError, "other arguments at rank", world.split_strided, 0, 1, 1 + me % 2)
refused(StateError, "never freed", world.free)
row.free()
refused(StateError, "has been freed", row.sync)
report(ok=True, now=device.now_ps)
"""


@multirank
@pytest.mark.parametrize("delivery", ["natural", "adversarial"])
@pytest.mark.parametrize(("transport", "engine"), CASES)
def test_splits_windows_and_barriers(transport, engine, delivery):
    ran = run_ranks(4, SPLITS, transport=transport, engine=engine, delivery=delivery)
    assert [r["ok"] for r in ran.reports.values()] == [True] * 4


OVERLAP = """
import numpy as np, emulator
from memsem import Team, Window
device = emulator.init()
me, n = device.rank, device.num_ranks
world = Team.world(device)
left = world.split_strided(0, 1, 3)                          # 0 1 2
right = world.split_strided(1, 1, 3)                         #   1 2 3
words = [set(range(t._first, t._first + t._world.words)) for t in (world, left, right) if t]
assert sum(map(len, words)) == len(set().union(*words))
log = []
for round in range(20):                                      # barriers of both, interleaved unevenly
    if left:
        device.sleep_ps(1000 * ((me * 7 + round) % 5) + 1)
        left.sync()
        log.append(device.now_ps)
    if right:
        right.sync()
    if left and round % 3 == 0:
        left.barrier()
windows = [Window.create(1, np.int64, signals=2, team=t) for t in (left, right)]
starts = {(w._first_word, w._base) for w in windows}
assert len(starts) == 2
for k in range(70):                                          # blocks are used again after free
    team = world.split(me % 2)
    team.sync()
    team.free()
report(log=log)
"""


@multirank
@pytest.mark.parametrize(("transport", "engine"), CASES)
def test_overlapping_teams_share_no_words(transport, engine):
    """pytorch/pytorch #192581. Shown to fail with every team on the block after the world's."""
    ran = run_ranks(4, OVERLAP, transport=transport, engine=engine)
    assert len(ran.reports) == 4


MEETING = """
import numpy as np, emulator
from memsem import Team, Window
device = emulator.init()
me, n = device.rank, device.num_ranks
team = Team.world(device).split(0 if me < SIZE else None)
if team:
    for round in range(5):
        device.sleep_ps(1 + 1_000_000 * ((me + round) % SIZE))
        entered = device.now_ps
        team.barrier()
        window = device.now_ps
        report_last = (entered, window)
    report(entered=entered, left=window)
"""


@multirank
@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_nobody_leaves_a_barrier_before_all_have_entered(size):
    """Shown to fail with one round too few."""
    got = run_ranks(5, MEETING.replace("SIZE", str(size))).reports.values()
    assert len(got) == size
    assert min(r["left"] for r in got) >= max(r["entered"] for r in got)
