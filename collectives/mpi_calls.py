"""Collectives of a communicator with mpi4py's names, over `collectives.coll`.

    comm.Allreduce(mine, total, op=MPI.SUM);  request = comm.Ialltoall(send, recv);  comm.bcast(thing)

Buffers are given as to `Send` (`memsem.bufspec`); where MPI wants a block for each rank, a count in a list is
that of one block. Reductions are in the order of ranks. Scan and Exscan read the vectors of all and are
charged as an all-gather. Errors: those of `memsem.bufspec` and `collectives.coll`.

Left out: neighbourhood collectives, the w-variants, persistent collectives.
"""

from __future__ import annotations

from typing import Any

from collectives.mpi_objects import Objects
from collectives.mpi_ops import SUM, Op
from collectives.mpi_request import CollectiveRequest
from collectives.mpi_steps import Steps
from memsem.bufspec import BufSpec


class Collectives(Objects, Steps):
    """Part of a communicator."""

    def Free(self) -> None:
        """Give it up on this rank. Raises: as in `memsem.communicator`."""
        super().Free()
        self.group.free()

    free = Disconnect = Free

    # --- all the same ---------------------------------------------------------------------------------

    def Barrier(self) -> None:
        """Wait until all its ranks are here."""
        self._done(*self._barrier())

    def Ibarrier(self) -> CollectiveRequest:
        """`Barrier`, without waiting."""
        return self._request(*self._barrier())

    barrier = Barrier

    def Bcast(self, buf: BufSpec, root: int = 0) -> None:
        """Give the root's buffer to all."""
        self._done(*self._bcast(buf, root))

    def Ibcast(self, buf: BufSpec, root: int = 0) -> CollectiveRequest:
        """`Bcast`, without waiting."""
        return self._request(*self._bcast(buf, root))

    def Gather(self, sendbuf: BufSpec, recvbuf: BufSpec, root: int = 0) -> None:
        """Give my buffer to the root, whose `recvbuf` holds a block of each rank."""
        self._done(*self._gather(sendbuf, recvbuf, root))

    def Igather(self, sendbuf: BufSpec, recvbuf: BufSpec, root: int = 0) -> CollectiveRequest:
        """`Gather`, without waiting."""
        return self._request(*self._gather(sendbuf, recvbuf, root))

    def Scatter(self, sendbuf: BufSpec, recvbuf: BufSpec, root: int = 0) -> None:
        """Give block i of the root's `sendbuf` to rank i."""
        self._done(*self._scatter(sendbuf, recvbuf, root))

    def Iscatter(self, sendbuf: BufSpec, recvbuf: BufSpec, root: int = 0) -> CollectiveRequest:
        """`Scatter`, without waiting."""
        return self._request(*self._scatter(sendbuf, recvbuf, root))

    def Allgather(self, sendbuf: BufSpec, recvbuf: BufSpec) -> None:
        """Give my buffer to all; `recvbuf` holds a block of each rank."""
        self._done(*self._allgather(sendbuf, recvbuf))

    def Iallgather(self, sendbuf: BufSpec, recvbuf: BufSpec) -> CollectiveRequest:
        """`Allgather`, without waiting."""
        return self._request(*self._allgather(sendbuf, recvbuf))

    def Alltoall(self, sendbuf: BufSpec, recvbuf: BufSpec) -> None:
        """Give block i of my buffer to rank i."""
        self._done(*self._alltoall(sendbuf, recvbuf))

    def Ialltoall(self, sendbuf: BufSpec, recvbuf: BufSpec) -> CollectiveRequest:
        """`Alltoall`, without waiting."""
        return self._request(*self._alltoall(sendbuf, recvbuf))

    # --- blocks of different sizes --------------------------------------------------------------------

    def Gatherv(self, sendbuf: BufSpec, recvbuf: BufSpec, root: int = 0) -> None:
        """As `Gather`; the root's buffer says how many elements of each rank, and where they begin."""
        self._done(*self._gatherv(sendbuf, recvbuf, root))

    def Igatherv(self, sendbuf: BufSpec, recvbuf: BufSpec, root: int = 0) -> CollectiveRequest:
        """`Gatherv`, without waiting."""
        return self._request(*self._gatherv(sendbuf, recvbuf, root))

    def Scatterv(self, sendbuf: BufSpec, recvbuf: BufSpec, root: int = 0) -> None:
        """As `Scatter`; the root's buffer says how many elements for each rank, and where they begin."""
        self._done(*self._scatterv(sendbuf, recvbuf, root))

    def Iscatterv(self, sendbuf: BufSpec, recvbuf: BufSpec, root: int = 0) -> CollectiveRequest:
        """`Scatterv`, without waiting."""
        return self._request(*self._scatterv(sendbuf, recvbuf, root))

    def Allgatherv(self, sendbuf: BufSpec, recvbuf: BufSpec) -> None:
        """As `Allgather`; `recvbuf` says how many elements of each rank, and where they begin."""
        self._done(*self._allgatherv(sendbuf, recvbuf))

    def Iallgatherv(self, sendbuf: BufSpec, recvbuf: BufSpec) -> CollectiveRequest:
        """`Allgatherv`, without waiting."""
        return self._request(*self._allgatherv(sendbuf, recvbuf))

    def Alltoallv(self, sendbuf: BufSpec, recvbuf: BufSpec) -> None:
        """As `Alltoall`; the buffers say how many elements for and of each rank, and where they begin."""
        self._done(*self._alltoallv(sendbuf, recvbuf))

    def Ialltoallv(self, sendbuf: BufSpec, recvbuf: BufSpec) -> CollectiveRequest:
        """`Alltoallv`, without waiting."""
        return self._request(*self._alltoallv(sendbuf, recvbuf))

    # --- reductions -----------------------------------------------------------------------------------

    def Reduce(self, sendbuf: BufSpec, recvbuf: BufSpec, op: Op = SUM, root: int = 0) -> None:
        """Reduce the buffers of all, element by element, into the root's."""
        self._done(*self._reduce(sendbuf, recvbuf, op, root))

    def Ireduce(self, sendbuf: BufSpec, recvbuf: BufSpec, op: Op = SUM, root: int = 0) -> CollectiveRequest:
        """`Reduce`, without waiting."""
        return self._request(*self._reduce(sendbuf, recvbuf, op, root))

    def Allreduce(self, sendbuf: BufSpec, recvbuf: BufSpec, op: Op = SUM) -> None:
        """Reduce the buffers of all, element by element, into that of each."""
        self._done(*self._allreduce(sendbuf, recvbuf, op))

    def Iallreduce(self, sendbuf: BufSpec, recvbuf: BufSpec, op: Op = SUM) -> CollectiveRequest:
        """`Allreduce`, without waiting."""
        return self._request(*self._allreduce(sendbuf, recvbuf, op))

    def Reduce_scatter_block(self, sendbuf: BufSpec, recvbuf: BufSpec, op: Op = SUM) -> None:
        """Reduce the buffers of all; rank i gets block i."""
        self._done(*self._reduce_scatter(sendbuf, recvbuf, None, op))

    def Ireduce_scatter_block(self, sendbuf: BufSpec, recvbuf: BufSpec, op: Op = SUM) -> CollectiveRequest:
        """`Reduce_scatter_block`, without waiting."""
        return self._request(*self._reduce_scatter(sendbuf, recvbuf, None, op))

    def Reduce_scatter(
        self, sendbuf: BufSpec, recvbuf: BufSpec, recvcounts: Any = None, op: Op = SUM
    ) -> None:
        """Reduce the buffers of all; rank i gets recvcounts[i] elements (equal blocks by default)."""
        self._done(*self._reduce_scatter(sendbuf, recvbuf, recvcounts, op))

    def Ireduce_scatter(
        self, sendbuf: BufSpec, recvbuf: BufSpec, recvcounts: Any = None, op: Op = SUM
    ) -> CollectiveRequest:
        """`Reduce_scatter`, without waiting."""
        return self._request(*self._reduce_scatter(sendbuf, recvbuf, recvcounts, op))

    def Scan(self, sendbuf: BufSpec, recvbuf: BufSpec, op: Op = SUM) -> None:
        """Reduce the buffers of ranks 0 to mine."""
        self._done(*self._scan(sendbuf, recvbuf, op, 1))

    def Iscan(self, sendbuf: BufSpec, recvbuf: BufSpec, op: Op = SUM) -> CollectiveRequest:
        """`Scan`, without waiting."""
        return self._request(*self._scan(sendbuf, recvbuf, op, 1))

    def Exscan(self, sendbuf: BufSpec, recvbuf: BufSpec, op: Op = SUM) -> None:
        """Reduce the buffers of ranks before mine; rank 0's stays as it is."""
        self._done(*self._scan(sendbuf, recvbuf, op, 0))

    def Iexscan(self, sendbuf: BufSpec, recvbuf: BufSpec, op: Op = SUM) -> CollectiveRequest:
        """`Exscan`, without waiting."""
        return self._request(*self._scan(sendbuf, recvbuf, op, 0))
