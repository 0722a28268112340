"""mpi4py's names over the emulated machine: `from memsem import mpi as MPI` is the one import to change.

    from memsem import mpi as MPI       # was: from mpi4py import MPI
    comm = MPI.COMM_WORLD               # starts the machine at its first use
    if comm.Get_rank() == 0: comm.send({"a": 7}, dest=1)

Point-to-point calls, requests, statuses, datatypes, communicators (`Dup`, `Split`, `Create`, grids), groups
and `Barrier` are here; `collectives.mpi` has all of this and the collectives under the same names. Windows
and files are not here (`memsem.window` has what the machine offers). `Wtime` is virtual time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import emulator
from emulator import Device
from emulator.errors import UsageError
from memsem import basic_types
from memsem.cart import Cartcomm, Compute_dims, Intracomm
from memsem.communicator import (
    COMM_TYPE_SHARED,
    SELF_ID,
    TAG_UB,
    WORLD_ID,
)
from memsem.datatypes import DATATYPE_NULL, ORDER_C, ORDER_FORTRAN, UNDEFINED, Datatype
from memsem.endpoint import endpoint_of
from memsem.message import Comm
from memsem.mpi_errors import (
    ERR_ARG,
    ERR_BUFFER,
    ERR_COMM,
    ERR_COUNT,
    ERR_DIMS,
    ERR_GROUP,
    ERR_IN_STATUS,
    ERR_OTHER,
    ERR_PENDING,
    ERR_RANK,
    ERR_REQUEST,
    ERR_TAG,
    ERR_TRUNCATE,
    ERR_TYPE,
    SUCCESS,
    Exception,  # noqa: A004 (mpi4py's name)
    Get_error_class,
    Get_error_string,
)
from memsem.mpi_group import CONGRUENT, IDENT, SIMILAR, UNEQUAL, Group
from memsem.persistent import Prequest
from memsem.probed import Message
from memsem.request import REQUEST_NULL, Request
from memsem.status import ANY_SOURCE, ANY_TAG, PROC_NULL, Status

THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = 0, 1, 2, 3
VERSION, SUBVERSION = 4, 1
MAX_PROCESSOR_NAME = 256
COMM_NULL = Comm(None, -1, ())
GROUP_NULL, GROUP_EMPTY = Group(None, -1), Group((), -1)
COMM_WORLD: Intracomm
COMM_SELF: Intracomm
_PS_PER_S = 10**12
_ended: list[bool] = []

__all__ = [
    "ANY_SOURCE", "ANY_TAG", "COMM_NULL", "COMM_SELF", "COMM_TYPE_SHARED", "COMM_WORLD", "CONGRUENT",
    "Cartcomm", "Comm", "Compute_dims", "DATATYPE_NULL", "Datatype", "ERR_ARG", "ERR_BUFFER", "ERR_COMM",
    "ERR_COUNT", "ERR_DIMS", "ERR_GROUP", "ERR_IN_STATUS", "ERR_OTHER", "ERR_PENDING", "ERR_RANK",
    "ERR_REQUEST", "ERR_TAG", "ERR_TRUNCATE", "ERR_TYPE", "Exception", "Finalize", "GROUP_EMPTY",
    "GROUP_NULL", "Get_error_class", "Get_error_string",
    "Get_processor_name", "Get_version", "Group", "IDENT", "Init", "Init_thread", "Intracomm", "Is_finalized",
    "Is_initialized", "MAX_PROCESSOR_NAME", "Message", "ORDER_C", "ORDER_FORTRAN", "PROC_NULL", "Prequest",
    "Query_thread", "REQUEST_NULL", "Request", "SIMILAR", "SUBVERSION", "SUCCESS", "Status", "TAG_UB",
    "THREAD_FUNNELED", "THREAD_MULTIPLE", "THREAD_SERIALIZED", "THREAD_SINGLE", "UNDEFINED", "UNEQUAL",
    "VERSION", "Wtick", "Wtime",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Datatypes by name; the communicators of the run, which start the machine if nobody has."""
    if name in basic_types.BASIC:
        return basic_types.BASIC[name]
    if name in ("COMM_WORLD", "COMM_SELF"):
        return predefined(emulator.init())[name == "COMM_SELF"]
    raise AttributeError(
        f"memsem.mpi has no {name}: it holds point-to-point messages and what goes with them"
    )


@lru_cache(maxsize=1)
def predefined(device: Device) -> tuple[Intracomm, Intracomm]:
    """Return a rank's communicators of all ranks and of itself."""
    endpoint = endpoint_of(device)
    world = Intracomm(endpoint, WORLD_ID, range(device.num_ranks), "MPI_COMM_WORLD")
    return world, Intracomm(endpoint, SELF_ID, [device.rank], "MPI_COMM_SELF")


def Init() -> None:
    """Start the machine on this rank, unless it runs."""
    emulator.init()


def Init_thread(required: int = THREAD_MULTIPLE) -> int:
    """Start the machine; returns THREAD_SINGLE, a rank's calls come from one thread."""
    emulator.init()
    return THREAD_SINGLE


def Query_thread() -> int:
    """Return THREAD_SINGLE."""
    return THREAD_SINGLE


def Finalize() -> None:
    """End the run on this rank; also done at exit."""
    emulator.finalize()
    _ended.append(True)


def Is_initialized() -> bool:
    """Return whether the machine runs, or has run, on this rank."""
    return _is_running() or Is_finalized()


def Is_finalized() -> bool:
    """Return whether `Finalize` has ended the run on this rank."""
    return bool(_ended)


def _is_running() -> bool:
    try:
        emulator.device()
    except UsageError:
        return False
    return True


def Wtime() -> float:
    """Return this rank's virtual time, seconds."""
    return emulator.now_ps() / _PS_PER_S


def Wtick() -> float:
    """Return the resolution of `Wtime`, seconds: one picosecond."""
    return 1 / _PS_PER_S


def Get_processor_name() -> str:
    """Return which die this rank is: node, chip in the node, die of the chip."""
    device = emulator.device()
    shape, rank = device.topology, device.rank
    chip = shape.chip_of(rank) % shape.chips_per_node
    return f"node{shape.node_of(rank)}-chip{chip}-die{rank % shape.dies_per_chip}"


def Get_version() -> tuple[int, int]:
    """Return the version of the standard whose names these are."""
    return VERSION, SUBVERSION
