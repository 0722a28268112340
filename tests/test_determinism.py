"""The host decides nothing: busy cores, one core or two, random sleeps inside the engine, any launcher, any
transport and any engine give one hash and one result. An engine that goes by host arrival does not.
"""

import contextlib
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import ROOT, Ran, run_ranks
from replays import command, lines, make_model

from emulator.config import read_jitter
from emulator.engine import core_available
from emulator.errors import UsageError

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]
RANKS = 16
PROGRAM = """
import os, sys
import numpy as np
import emulator
from collectives import EpCosts, ExpertExchange, StatusWords
from memsem import Window

cores, broken = int(sys.argv[1]), sys.argv[2:]
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
if broken:
    from emulator.engine import native, native_library
    native.load = lambda path=None: native_library.load(broken[0])
device = emulator.init(heap_bytes=1 << 20, managed_bytes=1 << 20)
me, n = device.rank, device.num_ranks
rng = np.random.default_rng(me)
window = Window.create((n, 512), np.int64)
exchange = ExpertExchange(device, slots=1, hidden=32, max_tokens=4, topk=2)
status = StatusWords(device)
emulator.barrier()
for turn in range(3):
    emulator.compute(ps=int(rng.integers(1, 300_000)))
    for peer in {0, (me + 1) % n, int(rng.integers(n))}:     # an incast at rank 0 among other traffic
        window.put(peer, np.full(512, n * turn + me), 512 * me)
    other = window.get(int(rng.integers(n)), 64 * me, 64)
    x = rng.standard_normal((4, 32)).astype(np.float32)
    experts = np.stack([np.sort(rng.permutation(n)[:2]) for _ in range(4)])
    handle = exchange.dispatch(x, experts, EpCosts(row_bytes=7680))
    y = exchange.combine(handle, 2 * handle.rows, np.full((4, 2), 0.5, np.float32), EpCosts(14336))
    assert np.array_equal(y, 2 * x)
    window.put_signal((me + 1) % n, [turn], 512 * me, 0, turn + 1)
    while not window.test(0, "ge", turn + 1):
        pass
    clocks = status.exchange(device.now_ps)
seen = {"now": device.now_ps, "clocks": clocks.tolist(), "other": other.tolist()}
seen["window"] = int(window.load().sum())
result = emulator.finalize()
report(sha=result["trace_sha256"] if result else "", **seen)
"""


def run(cores: int = 64, jitter: str = "", broken: str = "", launcher: str = "rank", **config: Any) -> Ran:
    env = {"SUPERPOD_JITTER": jitter} if jitter else {}
    args = (str(cores), *([broken] if broken else []))
    return run_ranks(RANKS, PROGRAM, launcher=launcher, args=args, env=env, check=not broken, **config)


def facts(ran: Ran) -> str:
    """All a run says, but for its host."""
    assert ran.result is not None
    result = {key: value for key, value in ran.result.items() if key != "host"}
    assert len(ran.reports) == RANKS
    return json.dumps([result, ran.reports])


@functools.cache
def quiet() -> str:
    """The run that nobody disturbs."""
    return facts(run())


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Another program that keeps every core busy."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.parametrize(
    "seeds", [(0, 3, 6), pytest.param(range(20), marks=pytest.mark.sweep)], ids=["three", "twenty"]
)
def test_disturbed_runs_are_one_run(seeds: tuple[int, ...]) -> None:
    """Sleeps of up to 2 ms in a few to all engine calls, on one core and on two."""
    kinds = list(itertools.product((1, 2), ("0.02,2000", "0.1,1000", "0.3,300", "0.3,300", "1,50")))
    for seed in seeds:
        cores, how = kinds[seed % len(kinds)]
        assert facts(run(cores, f"{how},{seed}")) == quiet(), (cores, how, seed)


def test_busy_cores_change_nothing() -> None:
    with busy_cores():
        assert facts(run()) == quiet()
        assert facts(run(1, "0.1,1000,3")) == quiet()


@pytest.mark.parametrize("launcher", ["rank", "plain", "fork"])
@pytest.mark.parametrize("transport", ["shared", "rma"])
def test_every_launcher_and_transport_is_the_same_run(launcher: str, transport: str) -> None:
    """`mpirun superpod-rank`, `mpirun python`, and what `superpod run` does."""
    assert facts(run(launcher=launcher, transport=transport)) == quiet()


def test_the_command_is_the_same_run() -> None:
    """`superpod run` makes its own configuration; rank 0 itself reports the hash."""
    options = ("--transport", "rma")
    ran = run_ranks(RANKS, PROGRAM, launcher="cli", args=("64",), options=options)
    assert json.loads(json.dumps(ran.reports)) == json.loads(quiet())[1]


def test_the_python_engine_is_the_same_run() -> None:
    assert facts(run(jitter="0.02,500,1", engine="python")) == quiet()


def test_the_jitter_variable_is_checked() -> None:
    assert read_jitter({}) is None and read_jitter({"SUPERPOD_JITTER": "0.5,10,3"}) == (0.5, 10, 3)
    for text in ("often", "0.5,10", "2,10,1", "0.5,0,1"):
        with pytest.raises(UsageError, match="SUPERPOD_JITTER"):
            read_jitter({"SUPERPOD_JITTER": text})


def test_a_replay_is_one_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's JSON, all of it but `host`: undisturbed, on one core with sleeps, with busy cores."""
    model, trace = make_model(tmp_path), tmp_path / "trace.jsonl"
    trace.write_text(lines([(0, 700, 3), (0, 2500, 2), (30, 64, 4), (60, 1300, 2), (300, 130, 2)]))
    cores = os.sched_getaffinity(0)

    def replay(*options: str) -> dict[str, Any]:
        result = command(trace, model, RANKS, tmp_path / "out.json", *options)
        assert result.pop("host")["wall_s"] > 0
        return result

    first = replay()
    assert first["completed"] == 5 and len(first["trace_sha256"]) == 64
    monkeypatch.setenv("SUPERPOD_JITTER", "0.2,1000,1")
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert replay() == first
    finally:
        os.sched_setaffinity(0, cores)
    with busy_cores():
        assert replay("--transport", "rma") == first


@pytest.mark.skipif(not shutil.which("cc") or not core_available(), reason="no C compiler")
def test_an_engine_that_goes_by_host_arrival_is_found(tmp_path: Path) -> None:
    """The same core compiled to process whatever is there when somebody enters: other hashes, other times."""
    source, target = ROOT / "emulator" / "engine", tmp_path / "core_HOST_ORDER.so"
    compiler = ["cc", "-O1", "-shared", "-fPIC", "-pthread", "-DBREAK_HOST_ORDER", "-o", str(target)]
    subprocess.run([*compiler, *map(str, source.glob("*.c")), "-lm"], check=True)
    runs = [run(2, f"0.3,1000,{seed}", str(target)) for seed in range(3)]
    ended = [ran for ran in runs if ran.code == 0 and ran.result is not None]
    hashes = {ran.sha for ran in ended}
    print(
        f"sound: {json.loads(quiet())[0]['trace_sha256'][:16]}, by host arrival: {[h[:16] for h in hashes]}"
    )
    assert ended, [ran.stderr[-500:] for ran in runs]
    assert json.loads(quiet())[0]["trace_sha256"] not in hashes and len(hashes) == len(ended)
