"""The wall clock's dealings with the host: its settings, what the host can do, what a run has kept."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

from emulator.board import Board
from emulator.clock import (
    by_class,
    by_operation,
    early_warning,
    judge,
    last_lateness,
    needed_dilation,
    quantiles,
)
from emulator.config import RunConfig
from emulator.engine.api import Engine, EngineConfig, WallConfig

_DELAYS = 4096
_MILLION = 1_000_000
_PROBES, _MEETINGS, _PROBE_NS = 16, 5, 5_000_000
_CALLS = 25
"""Calls into the engine that cost about what a rank does between two single transfers (measured: what they
make one expect is 0.8 to 1.5 times what runs of single transfers on 4 and 8 ranks then suggested)."""


def engine_settings(config: RunConfig) -> WallConfig:
    """The engine's part of the clock's configuration."""
    if config.clock == "virtual":
        return WallConfig()
    return WallConfig(
        dilation_ppm=max(1, round(config.dilation * _MILLION)),
        grace_ns=round(config.grace_s * 1e9),
        spin_ns=round(config.spin_below_us * 1e3),
        delays=_DELAYS,
        measured_ppm=max(1, round(config.compute_factor * _MILLION)) if config.compute == "measured" else 0,
    )


def measure_host(engine: Engine, board: Board, rank: int) -> None:
    """Find out how well this rank keeps delays while all ranks do the same.

    Into `board.wall[rank]`, host ns: lateness of a sleep (p50, p99, max), time to be woken by the last rank
    of a meeting (p50, max), the timer's resolution, the error of a delay (p50). That error is what the engine
    counts (`sp_wall_end`): a delay begins when the rank has done what it does between two calls, for which
    some calls into the engine stand, and ends when the rank has woken. All ranks wake at once,
    so those that have to share a core wait for each other, as in a program that is in step. Returns when all
    ranks have written theirs.
    """
    meetings = []
    for _ in range(_MEETINGS):
        engine.start_clock()
        meetings.append(time.monotonic_ns() - int(engine.wall(rank)[0][8]))
    begin, late, errors = int(engine.wall(rank)[0][8]), [], []
    for i in range(1, _PROBES + 1):
        for _ in range(_CALLS):
            engine.wall(rank)
        until, began = begin + i * _PROBE_NS, time.monotonic_ns()
        time.sleep(max(0, until - began) / 1e9)
        late.append(time.monotonic_ns() - until)
        errors.append(abs(until + late[-1] - began - _PROBE_NS))
    facts = [*np.percentile(late, [50, 99, 100]), *np.percentile(meetings, [50, 100])]
    facts += [time.get_clock_info("monotonic").resolution * 1e9, np.percentile(errors[1:], 50)]
    board.wall[rank, :7] = [round(v) for v in facts]
    engine.start_clock()


def fabric_delay_ps(settings: EngineConfig) -> int:
    """The delay a dilation is judged by: first byte of a put on the longest path between two of the ranks."""
    n = settings.num_ranks
    which = 3 if n > settings.dies_per_node else 2 if n > settings.dies_per_chip else 1 if n > 1 else 0
    return settings.put_latency_ps[which]


def error_ns(board: Board) -> float:
    """What one delay is off by on this host, host ns: the mean over the ranks, as a run's error is."""
    return float(np.maximum(board.wall[:, 6], board.wall[:, 3]).mean())


def warn_early(config: RunConfig, settings: EngineConfig, board: Board, rank: int) -> None:
    """Say before the run, once, what error to expect of a dilation that is too small."""
    if rank:
        return
    text = early_warning(error_ns(board), fabric_delay_ps(settings), config.dilation)
    if text:
        print(text, file=sys.stderr, flush=True)


def result_of(config: RunConfig, engine: Engine, board: Board, end_ps: int) -> dict[str, Any]:
    """The emulated duration, and under "wall" the honesty report if the delays were slept."""
    emulated_s = end_ps / 1e12
    paced = engine.config.wall.dilation_ppm / _MILLION  # a dilation below a millionth is one
    if config.clock == "virtual":
        return {"virtual_duration_s": emulated_s}
    settings = engine.config
    both = [engine.wall(p) for p in range(settings.num_ranks)]
    sums, delays = np.stack([s for s, _ in both]), np.concatenate([d for _, d in both])
    late_ns = max(last_lateness(int(s[0]), d) for s, d in both)
    cores = len(os.sched_getaffinity(0))
    classes = by_class(delays, paced)
    kept = judge(sums, paced, classes)
    expected = needed_dilation(error_ns(board), fabric_delay_ps(settings))
    return {
        "virtual_duration_s": emulated_s,
        "wall": {
            "clock": "wall",
            "dilation": config.dilation,
            "compute": config.compute,
            "compute_factor": config.compute_factor,
            "spin_below_us": config.spin_below_us,
            "grace_s": config.grace_s,
            "host": {
                "cores": cores,
                "ranks_per_core": round(settings.num_ranks / cores, 2),
                "timer_resolution_ns": int(board.wall[:, 5].max()),
                "wake": quantiles(board.wall[:, :3].ravel()),
                "meeting": quantiles(board.wall[:, 3:5].ravel()),
                "single_transfers_dilation": expected,
            },
            "suggested_dilation": kept["suggested_dilation"] if kept["delays"] else expected,
            "achieved_duration_s": emulated_s + late_ns / 1e9 / paced,
            "operations": by_operation(delays),
            "classes": classes,
            "kept": kept,
        },
    }
