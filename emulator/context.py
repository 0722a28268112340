"""A user's rank program: `init`, who and when am I, charge work, meet the others, end.

The only state is the device `init` made. An end by exception is an early exit: the rank issues nothing
any more, what it posted goes on, and ranks that wait for it get a deadlock report instead of a hang.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from emulator import wall
from emulator.board import Board, board_bytes
from emulator.clock import wall_table
from emulator.config import RunConfig, read_config, read_jitter
from emulator.device import FORKED, Device
from emulator.engine import core_available, engine_attach, engine_bytes, engine_create
from emulator.engine.api import RECORD_DTYPE, EngineConfig, EngineKind
from emulator.errors import StateError, UsageError
from emulator.faults import Fault, FaultPlan, Injector, NoFaults
from emulator.faults.links import LINK_KINDS, link_faults
from emulator.faults.log import as_rows
from emulator.futex import wait_while
from emulator.ledger import total
from emulator.links import Links
from emulator.profile import Profile, load_profile
from emulator.remarks import remarks
from emulator.rows import load_rows
from emulator.topology import Topology, engine_config
from emulator.tracing import combine_digests
from emulator.transport import Sizes, Transport
from emulator.usage import exit_on_usage_error

_TRACE_RECORDS = 1 << 14
_current: list[Device] = []
_ended: list[bool] = []
_stop_watching: list[Callable[[], None]] = []
watchers: list[Callable[[Device], Callable[[], None]]] = []
"""For launchers: called with the device of a run that keeps going, to mark dead whom they see die; each
returns how to end that."""
starting: list[Callable[[int], None]] = []
"""For launchers: called with 1 before the ranks meet to start, and with -1 when they have."""


def init(**cfg: Any) -> Device:
    """Start this rank: MPI, windows, engine. Call it once, on all ranks.

    Args:
        cfg: keys of `emulator.config.RunConfig`; they win over `SUPERPOD_CONFIG`.

    Returns:
        the rank's device; `emulator.rank()` and the other functions use it.

    Raises:
        UsageError: bad configuration, no room in `/dev/shm`, or a second call with other values. StateError:
        after `finalize`.
    """
    if _current:
        if cfg:
            raise UsageError("emulator.init: already initialised; give the configuration to the first call")
        return _current[0]
    if _ended:
        raise StateError("emulator.init: the run has ended on this rank; a process takes part in one run")
    if not watchers:  # a launcher has its own way of saying it
        exit_on_usage_error()
    config = read_config(cfg)
    profile = load_profile(config.profile, config.set)
    for note in starting:
        note(1)
    transport = Transport(config.transport)
    device = open_device(config, profile, transport)
    _current.append(device)
    if config.keep_going:
        _stop_watching.extend(watch(device) for watch in watchers)
    atexit.register(finalize)
    os.register_at_fork(after_in_child=_forked)
    for note in starting:
        note(-1)
    device.engine.start_clock()  # nothing under the virtual clock
    return device


def open_device(config: RunConfig, profile: Profile, transport: Transport) -> Device:
    topology = Topology.from_profile(profile, transport.num_ranks)
    kind: EngineKind = (
        "c" if config.engine == "c" or (config.engine == "auto" and core_available()) else "python"
    )
    settings = _engine_settings(config, profile, transport.num_ranks)
    plan: tuple[Fault, ...] = ()
    draws = 0
    if config.faults is not None:
        loaded = FaultPlan.load(config.faults)
        plan, draws = loaded.resolve(transport.num_ranks, topology), loaded.seed
    block = -(-engine_bytes(settings, kind) // 4096) * 4096
    control = block + board_bytes(transport.num_ranks, config.staging_bytes, len(plan))
    transport.allocate(Sizes(config.heap_bytes, config.managed_bytes, config.staging_bytes, control))
    board = Board(transport.control[block:], transport.num_ranks, config.staging_bytes, len(plan))
    if transport.rank == 0:
        transport.clear_control()
        board.header[Board.HEADER_JOB] = int.from_bytes(os.urandom(7), "little")
        engine_create(transport.control[:block], settings, kind)
    transport.synchronise()
    transport.settle_scheduling()
    engine = engine_attach(transport.control[:block], settings, kind, transport.rank)
    engine.remarks = partial(remarks, board)
    if config.trace is not None:
        engine.set_trace(_port_file(config.trace))
    if (jitter := read_jitter()) is not None:
        engine.set_jitter(jitter[0], jitter[1], jitter[2] * transport.num_ranks + transport.rank)
    broken = link_faults(plan)
    if broken:
        Links(engine, topology, broken, draws)
    faults = Injector(plan, transport.rank, engine, board.faults, board.silent_ps) if plan else NoFaults()
    for each in LINK_KINDS if broken else ():  # Links carries them out; the injector notes begin and end
        faults.on(each, lambda _: lambda: None)
    if config.clock == "wall":
        wall.measure_host(engine, board, transport.rank)
        wall.warn_early(config, settings, board, transport.rank)
    return Device(config, profile, topology, transport, engine, board, load_rows(config.engine), faults)


def _engine_settings(config: RunConfig, profile: Profile, num_ranks: int) -> EngineConfig:
    return engine_config(
        profile,
        num_ranks,
        words_per_rank=config.words_per_rank,
        conditions=config.words_per_rank,
        channels=config.channels,
        log_entries=config.log_entries,
        inbox_entries=config.inbox_entries,
        lookahead=config.lookahead,
        wall_deadline_s=config.wall_deadline_s,
        keep_going=config.keep_going,
        trace_records=_TRACE_RECORDS if config.trace is not None else 0,
        wall=wall.engine_settings(config),
    )


def _port_file(directory: str) -> int:
    return os.open(os.path.join(directory, "ports.trace"), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)


def device() -> Device:
    """Return this rank's device. Raises UsageError before `init`."""
    if not _current:
        raise UsageError("call emulator.init() first")
    return _current[0]


def rank() -> int:
    """Return this rank's number."""
    return device().rank


def num_ranks() -> int:
    """Return the number of ranks of the run."""
    return device().num_ranks


def now_ps() -> int:
    """Return this rank's virtual time, picoseconds."""
    return device().now_ps


now = now_ps
"""The same, shorter."""


def compute(
    ps: int | None = None,
    *,
    flops: int | None = None,
    bytes: int | None = None,
    kernel: str = "elementwise",
) -> None:
    """Charge priced work; see `Device.compute`."""
    device().compute(ps, flops=flops, bytes=bytes, kernel=kernel)


def start_clock() -> None:
    """Wall clock: forget the host time that setting up took. All ranks call it; a rank whose next
    actions others still wait for is let go at once, unslept, and the clock starts when they have come, too.
    Under the virtual clock it does nothing."""
    device().engine.start_clock()


def sleep_ps(ps: int) -> None:
    """Let virtual time pass."""
    device().sleep_ps(ps)


def barrier() -> None:
    """Complete my puts and wait for all ranks."""
    device().barrier()


def finalize() -> dict[str, Any] | None:
    """End the run on this rank; also called at exit. Waits until every rank has ended.

    Returns:
        on the lowest living rank the result of the run (see `run_result`), else None; None also when there is
        nothing to end.
    """
    if not _current:
        return None
    ending = _current.pop()
    ending.finish()
    _wait_for_all(ending)
    while _stop_watching:
        _stop_watching.pop()()
    first = int(ending.board.dead.argmin())  # the lowest rank that lives
    result = run_result(ending) if ending.rank == first else None
    if result is not None and "wall" in result:
        print(wall_table(result["wall"]), file=sys.stderr, flush=True)
    if result is not None and ending.config.report is not None:
        Path(ending.config.report).write_text(json.dumps(result, indent=1) + "\n")
    ending.memory.close()
    ending.transport.close()
    ending.retire()
    _ended.append(True)
    return result


def _forked() -> None:
    """In a process forked from this rank: it may compute and end, but is no rank, and a call of it would
    count as one of its parent's."""
    if _current:
        _current[0].retire(FORKED)
    abandon()


def abandon() -> None:
    """Leave the run without ending it: for a launcher whose program has failed.

    The others are not told that this rank has finished, so they do not report a deadlock of its making;
    the launcher ends them, or marks this rank dead if they may go on.
    """
    atexit.unregister(finalize)
    _current.clear()
    _ended.append(True)


def _wait_for_all(ending: Device) -> None:
    """Sleep until every rank is at its end or dead; the last one wakes the others."""
    board, engine = ending.board, ending.engine
    engine.log_lock(0)  # so that one of the last two sees both flags
    try:
        board.finished[ending.rank] = 1
        board.finished[engine.dead_ranks()] = 1
        all_ended = ending.wake_if_all_ended()
    finally:
        engine.log_unlock(0)
    if not all_ended:
        wait_while(ending.done_word, 0)


def run_result(ending: Device) -> dict[str, Any]:
    """Return what a finished run was: ranks, virtual time, hash, counters; host facts apart under "host"."""
    ranks, board, counters = range(ending.num_ranks), ending.board, ending.engine.statistics()
    streams = [board.digest[r].tobytes() for r in ranks]
    ending.engine.drain()
    return {
        "ranks": ending.num_ranks,
        "virtual_ps": int(board.end_ps.max()),
        "trace_sha256": combine_digests(streams, [ending.engine.digest(r) for r in ranks]),
        "profile": ending.config.profile,
        "profile_sha256": ending.profile.hash(),
        "seed": ending.config.seed,
        "events": counters.events,
        "bytes_by_class": counters.bytes_by_class.sum(axis=0).tolist(),
        "busy_ps": counters.busy_ps.max(axis=0).tolist(),
        "wait_ps": int(counters.wait_ps.sum()),
        "ledger": total(board.ledger).as_dict(),
        "dead_ranks": ending.engine.dead_ranks(),
        **({"faults": as_rows(ending.faults.plan, board.faults)} if ending.faults.active else {}),
        **wall.result_of(ending.config, ending.engine, board, int(board.end_ps.max())),
        "host": {
            "transport": ending.config.transport,
            "rows": ending.rows.name,
            "cpu_s": round(float(board.cpu_us.sum()) / 1e6, 3),
            "entries": counters.entries,
            "wake_ups": int(counters.wake_ups.sum()),
            "spilled": int(board.spilled.sum()),
            "port_record_bytes": RECORD_DTYPE.itemsize,
        },
    }
