"""mpi4py's names with collectives: `from collectives import mpi as MPI` is the one import to change.

    from collectives import mpi as MPI      # was: from mpi4py import MPI
    comm = MPI.COMM_WORLD
    comm.Allreduce(MPI.IN_PLACE, gradients, op=MPI.SUM)

Everything of `memsem.mpi`, and the collectives of `collectives.mpi_calls` on its communicators. The first
use of COMM_WORLD is collective (a barrier). Left out: windows and files (see `memsem.window`),
intercommunicators, MAXLOC and MINLOC.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import emulator
from collectives.mpi_calls import Collectives
from collectives.mpi_ops import BAND, BOR, BXOR, LAND, LOR, LXOR, MAX, MIN, PROD, SUM, Op
from collectives.mpi_request import Request
from collectives.mpi_specs import IN_PLACE
from emulator import Device
from memsem import cart
from memsem import mpi as messages
from memsem.communicator import SELF_ID, WORLD_ID
from memsem.endpoint import endpoint_of

__all__ = [
    "BAND", "BOR", "BXOR", "COMM_NULL", "COMM_SELF", "COMM_WORLD", "Cartcomm", "Comm", "IN_PLACE",
    "Intracomm", "LAND", "LOR", "LXOR", "MAX", "MIN", "Op", "PROD", "Request", "SUM", "predefined",
]  # fmt: skip


class Intracomm(Collectives, cart.Intracomm):
    """A communicator with collectives."""

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None, reorder: bool = False
    ) -> Cartcomm:
        """As `memsem.cart.Intracomm.Create_cart`."""
        return Cartcomm.of(super().Create_cart(dims, periods, reorder))


class Cartcomm(Collectives, cart.Cartcomm):
    """Ranks on a grid, with collectives."""

    @classmethod
    def of(cls, plain: cart.Cartcomm) -> Cartcomm:
        """The same grid with collectives."""
        made = cls(plain._endpoint, plain.ident, plain.members, plain.name)
        made.dims, made.periods = plain.dims, plain.periods
        return made


Comm = Collectives
COMM_NULL = Intracomm(None, -1, ())
COMM_WORLD: Intracomm
COMM_SELF: Intracomm


@lru_cache(maxsize=1)
def predefined(device: Device) -> tuple[Intracomm, Intracomm]:
    """Return a rank's communicators of all ranks and of itself. Collective at its first call."""
    endpoint = endpoint_of(device)
    world = Intracomm(endpoint, WORLD_ID, range(device.num_ranks), "MPI_COMM_WORLD")
    return world, Intracomm(endpoint, SELF_ID, [device.rank], "MPI_COMM_SELF")


def __getattr__(name: str) -> Any:
    """Everything else of `memsem.mpi`; the communicators of the run, which start the machine if nobody
    has."""
    if name in ("COMM_WORLD", "COMM_SELF"):
        return predefined(emulator.init())[name == "COMM_SELF"]
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(messages, name)
