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


def write(plan: Replay, directory: Path, config: Mapping[str, Any]) -> None:
    """Write what the ranks and the report need."""
    directory.mkdir(parents=True, exist_ok=True)
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
