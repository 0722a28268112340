"""A user's rank program: clock calls, early exits, deadlock reports, configuration."""

import json

import pytest
from ranks import run_ranks

from emulator.config import RunConfig, read_config
from emulator.errors import UsageError

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(240)]

CALLS = """
import emulator
device = emulator.init()
assert emulator.init() is device and emulator.rank() == device.rank and emulator.num_ranks() == 2
start, price = emulator.now_ps(), device.engine.config.call_price_ps
emulator.compute(ps=1_000_000)
assert emulator.now_ps() - start == 1_000_000 + price
emulator.sleep_ps(5)
emulator.compute(flops=10**9, bytes=10**6, kernel="gemm_int8")
assert emulator.now_ps() - start == 1_000_005 + 3 * price + device.prices.price_ps("gemm_int8", 10**9, 10**6)
emulator.barrier()
report(now=emulator.now_ps())
result = emulator.finalize()
assert (result is None) == (device.rank == 1) and emulator.finalize() is None
"""


def test_calls_cost_what_they_say():
    ran = run_ranks(2, CALLS)
    assert ran.reports[0]["now"] == ran.reports[1]["now"] == ran.result["virtual_ps"]


BARRIER = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
me, n = device.rank, device.num_ranks
window = Window.create(n << 12, np.int32)
for peer in range(n):
    window.put(peer, np.full(1 << 12, me + 1, np.int32), me << 12)
emulator.barrier()
assert np.array_equal(window.local[:: 1 << 12], np.arange(1, n + 1))
assert (window.local.reshape(n, -1) == np.arange(1, n + 1)[:, None]).all()
report(ok=True)
"""


@pytest.mark.parametrize("n", [1, 2, 8])
def test_puts_before_a_barrier_are_there_after_it(n):
    assert len(run_ranks(n, BARRIER).reports) == n


EXCEPTION = """
import numpy as np, emulator
from memsem import Window
device = emulator.init()
window = Window.create(4, np.int64)
device.barrier()
if device.rank == 0:
    window.put(1, [3, 1, 4, 1])
    raise HOW("on purpose")
if device.rank == 1:
    device.sleep_ps(10**9)
    report(seen=window.load().tolist())                  # what was posted goes on
else:
    window.signal_wait_until(0, "eq", 1)                 # nobody will ever send it
"""


@pytest.mark.parametrize(("launcher", "how"), [("auto", "SystemExit"), ("plain", "ValueError")])
def test_an_early_exit_is_one_and_waiters_get_a_report(launcher, how):
    """A forked rank with an uncaught exception leaves at once: see tests/launch/test_errors.py."""
    ran = run_ranks(3, EXCEPTION.replace("HOW", how), check=False, launcher=launcher)
    assert ran.code == 1
    assert "on purpose" in ran.stderr
    assert "DeadlockError" in ran.stderr and "rank 2 in wait(word 0 == 1)" in ran.stderr
    assert ran.reports[1]["seen"] == [3, 1, 4, 1]


DEAD = """
import os, signal, time
import emulator
from emulator.errors import RankLostError
from memsem import Window
device = emulator.init()
window = Window.create(4, "i8")
device.barrier()
if device.rank == 1:
    window.put_signal(0, [1, 2, 3, 4], 0, 0, 1)
    device.quiet()
    os.kill(os.getpid(), signal.SIGKILL)
if device.rank == 0:
    window.signal_wait_until(0, "eq", 1)
    time.sleep(1)                                        # the launcher's part: notice it and say so
    device.mark_dead(1)
    said = []
    for call in (lambda: window.put(1, [1]), lambda: window.get(1)):
        try:
            call()
        except RankLostError as error:
            said.append([str(error).split(" (")[0], list(error.ranks)])
    report(said=said, kept=window.local.tolist())
else:
    try:
        window.signal_wait_until(0, "eq", 1)             # only the dead one could have sent it
    except RankLostError as error:
        report(said=str(error))
"""


def test_a_dead_rank_is_named_and_nobody_waits_for_it_at_the_end():
    ran = run_ranks(3, DEAD, keep_going=True, check=False)
    assert ran.reports[0] == {
        "said": [[f"{call}: rank 1 is dead", [1]] for call in ("put", "get")],
        "kept": [1, 2, 3, 4],
    }
    assert "lost: ranks [1]" in ran.reports[2]["said"] and ran.result["dead_ranks"] == [1]


FILES = """
import emulator
device = emulator.init()
device.compute(7, label=3)
device.barrier()
"""


def test_record_files_hold_what_was_hashed(tmp_path):
    import numpy as np

    from emulator.engine.api import RECORD_DTYPE
    from emulator.tracing import TRACE_DTYPE, Op

    plain = run_ranks(2, FILES)
    traced = run_ranks(2, FILES, trace=str(tmp_path))
    assert plain.sha == traced.sha
    records = np.fromfile(tmp_path / "rank-1.trace", TRACE_DTYPE)
    assert records["op"].tolist() == [Op.COMPUTE, Op.EXCHANGE, Op.FINISH]
    assert records["peer"][0] == 3 and records["end_ps"][0] - records["start_ps"][0] >= 7
    ports = np.fromfile(tmp_path / "ports.trace", RECORD_DTYPE)
    assert set(ports["rank"].tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"transprot": "rma"}, "unknown key 'transprot'; did you mean 'transport'"),
        ({"transport": "rna"}, "not one of shared, rma; nearest: rma"),
        ({"heap_bytes": "1"}, "heap_bytes must be int"),
        ({"heap_bytes": 4097}, "multiple of 4096"),
        ({"seed": True}, "seed must be int"),
        ({"channels": 0}, "channels must be at least 1"),
    ],
)
def test_bad_configuration_is_one_clear_line(config, message):
    with pytest.raises(UsageError, match=message) as caught:
        read_config(environ={"SUPERPOD_CONFIG": json.dumps(config)})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_configuration_that_is_no_object(text):
    with pytest.raises(UsageError, match="SUPERPOD_CONFIG"):
        read_config(environ={"SUPERPOD_CONFIG": text})


def test_code_wins_over_the_environment():
    config = read_config({"seed": 5}, {"SUPERPOD_CONFIG": '{"seed": 4, "transport": "rma"}'})
    assert config == RunConfig(seed=5, transport="rma")


NO_ROOM = """
import emulator
emulator.init(heap_bytes=1 << 42)
"""


def test_too_little_shared_memory_is_said_with_numbers():
    ran = run_ranks(2, NO_ROOM, check=False)
    assert ran.code == 2 and "error: " in ran.stderr
    assert "/dev/shm has" in ran.stderr and "lower heap_bytes" in ran.stderr
