"""A replay whose ranks somebody else starts: `superpod replay --prepare DIR` writes it, mpirun runs it, a
report ends it.

    superpod replay -n 32 … --prepare DIR
    SUPERPOD_CONFIG=$(cat DIR/config.json) mpirun -n 32 superpod-rank -m serving DIR
    superpod replay-report DIR
"""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulator.errors import UsageError
from serving.job import Progress, read_results
from serving.replay import Replay, merge, write_replay

_PLAN = "plan.pickle"

_OF_A_RUN = ("machine.json", "results.jsonl", "reference.jsonl")
"""What ranks that ran an earlier job of the directory have left."""


def check_place(directory: Path) -> None:
    """Refuse a place that holds anything but an earlier job: its files would be written over. Raises
    UsageError."""
    try:
        is_free = (directory / _PLAN).exists() or not directory.exists() or not any(directory.iterdir())
    except (OSError, ValueError) as error:
        raise UsageError(f"--prepare {directory}: no job can be written there: {error}") from None
    if not is_free:
        raise UsageError(f"--prepare {directory}: it holds other files; name a new directory")


def clear(directory: Path) -> None:
    """Take away what an earlier job's ranks left, which would be told as the new one's."""
    for name in _OF_A_RUN:
        (directory / name).unlink(missing_ok=True)


def write(plan: Replay, directory: Path, config: Mapping[str, Any]) -> None:
    """Write what the ranks and the report need."""
    directory.mkdir(parents=True, exist_ok=True)
    clear(directory)
    write_replay(plan, directory)
    Progress(directory, plan.job.num_ranks, create=True)
    (directory / "config.json").write_text(json.dumps(dict(config)))
    (directory / _PLAN).write_bytes(pickle.dumps(plan))


def read(directory: Path) -> dict[str, Any]:
    """Return the result of a prepared replay that has run. Raises UsageError: not prepared, or not run to
    its end."""
    if not (directory / _PLAN).exists():
        raise UsageError(f"{directory}: not made by superpod replay --prepare")
    plan: Replay = pickle.loads((directory / _PLAN).read_bytes())
    if not (directory / "machine.json").exists():
        how = f"mpirun -n {plan.job.num_ranks} superpod-rank -m serving {directory}"
        raise UsageError(f"{directory}: its ranks have not run to their end: {how}")
    machine = json.loads((directory / "machine.json").read_text())
    wall = {"wall": machine["wall"]} if "wall" in machine else {}
    return {**merge(plan, read_results(directory), machine, None), **wall, "host": machine["host"]}
