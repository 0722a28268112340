"""The machine's memory: the only module that touches MPI.

Opened once at start-up; the window creations here, their epoch and one barrier are the only MPI
collectives of a run.

    shared window (Allocate_shared, held by rank 0, mapped by all)
    | control: engine block, board | heap of 0 … n-1 | managed of 0 … n-1 | staging of 0 … n-1 |
    data window of each rank (Allocate): under rma the areas are here instead
    | heap | managed | staging |

Areas lie side by side rather than ranks, so that the few pages really used of one area share page tables:
at 384 ranks one table per peer and process would cost 590 MB.

Under `shared` a movement is a plain store or load in the mapped window. Under `rma` every movement
between ranks is a `Put` or `Get` with a `Flush` in one passive epoch, and every atomic on an element a
`Fetch_and_op` or `Compare_and_swap`, on a rank's own memory too; other than that a rank touches its own
memory directly (unified memory model).
"""

from __future__ import annotations

import ctypes
import enum
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from emulator.engine.api import ATOMIC_ADD, ATOMIC_AND, ATOMIC_OR, CAS, SWAP
from emulator.errors import InternalError, UsageError

Bytes = npt.NDArray[np.uint8]
PAGE = 4096
_DEFAULT_SLACK_NS = 50_000
_PR_SET_TIMERSLACK = 29
_MADV_REMOVE = 9
_MADV_POPULATE_READ = 22


class Area(enum.IntEnum):
    """Where bytes lie in a rank: final data, exchange blocks, staged data."""

    HEAP = 0
    MANAGED = 1
    STAGING = 2


@dataclass(frozen=True)
class Sizes:
    """Bytes of each area of a rank and of the control block of the pod; multiples of a page."""

    heap: int
    managed: int
    staging: int
    control: int

    @property
    def per_rank(self) -> int:
        return self.heap + self.managed + self.staging

    def of(self, area: Area) -> int:
        return (self.heap, self.managed, self.staging)[area]

    def base(self, area: Area) -> int:
        """Offset of the area in a rank's own memory."""
        return (0, self.heap, self.heap + self.managed)[area]


class Transport:
    """One rank's access to the memory of all.

    Attributes:
        rank, num_ranks: this process and the size of the pod.
        kind: "shared" or "rma".
        control: uint8 view of the control block all ranks map.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._mpi = _start_mpi()
        self._comm = self._mpi.COMM_WORLD
        self.rank: int = self._comm.Get_rank()
        self.num_ranks: int = self._comm.Get_size()
        self._windows: list[Any] = []
        self._closed = False

    def allocate(self, sizes: Sizes) -> None:
        """Create the windows and map them.

        Raises:
            UsageError: `/dev/shm` has no room for the areas of all ranks.
        """
        self.sizes = sizes
        mapped = sizes.control + (self.num_ranks * sizes.per_rank if self.kind == "shared" else 0)
        if self.rank == 0:
            _check_room(sizes.control + self.num_ranks * sizes.per_rank, self.num_ranks, sizes)
        memory = self._allocate_shared(mapped)
        self.control: Bytes = memory[: sizes.control]
        self._areas: list[Bytes] = []
        if self.kind == "shared":
            self._map_shared(memory)
        else:
            self._map_private()

    def _allocate_shared(self, nbytes: int) -> Bytes:
        """One piece held by rank 0, from a page on. MPI need not put it on one (a single rank's comes from
        malloc), but its place within a page is the same in every process."""
        room = nbytes + PAGE if self.rank == 0 else 0
        window = self._mpi.Win.Allocate_shared(room, 1, comm=self._comm)
        window.Lock_all(self._mpi.MODE_NOCHECK)
        self._windows.append(window)
        memory, _ = window.Shared_query(0)
        start = -memory.address % PAGE
        return np.frombuffer(memory, dtype=np.uint8)[start : start + nbytes]

    def clear_control(self) -> None:
        """Zero the control block without writing it where it is a mapped file: most of it is never used, and
        at 384 ranks it has 490 MB."""
        libc, address = ctypes.CDLL(None), self.control.__array_interface__["data"][0]
        head = -address % PAGE
        inner = (self.control.size - head) // PAGE * PAGE
        self.control[:head] = 0
        where = ctypes.c_void_p(address + head), ctypes.c_size_t(inner)
        if libc.madvise(*where, _MADV_REMOVE):
            self.control[head : head + inner] = 0
        self.control[head + inner :] = 0

    def _map_shared(self, memory: Bytes) -> None:
        start = self.sizes.control
        for area in Area:
            stop = start + self.num_ranks * self.sizes.of(area)
            self._areas.append(memory[start:stop].reshape(self.num_ranks, -1))
            start = stop

    def _map_private(self) -> None:
        window = self._mpi.Win.Allocate(self.sizes.per_rank, 1, comm=self._comm)
        window.Lock_all(self._mpi.MODE_NOCHECK)
        self._windows.append(window)
        memory = np.frombuffer(window.tomemory(), dtype=np.uint8)
        for area in Area:
            base = self.sizes.base(area)
            self._areas.append(memory[base : base + self.sizes.of(area)].reshape(1, -1))

    def synchronise(self) -> None:
        """Wait for all ranks by MPI. Only at start-up, before the engine runs."""
        self._comm.Barrier()

    # --- movement ---------------------------------------------------------------------------------------

    def own(self, area: Area) -> Bytes:
        """This rank's own area, uint8[size]."""
        memory: Bytes = self._areas[area][self.rank if self.kind == "shared" else 0]
        return memory

    def mapped(self, area: Area) -> Bytes:
        """The area of all ranks, uint8[num_ranks, size]. Raises InternalError: not `shared`."""
        if self.kind != "shared":
            raise InternalError("the rma transport maps no remote memory")
        return self._areas[area]

    def piece(self, offset: int, nbytes: int) -> tuple[Bytes, int]:
        """Piece [offset, offset + nbytes) of the managed area of as many ranks as are mapped here.

        Under `shared` the pieces of all ranks lie side by side, so that a small piece of 384 ranks is a few
        megabytes in a row; inside each rank's own area, every process would need a page table for each rank.

        Returns:
            uint8[ranks * nbytes] and the number of ranks (all under shared; 1, this one, under rma).
        """
        flat = self._areas[Area.MANAGED].reshape(-1)
        ranks = self.num_ranks if self.kind == "shared" else 1
        return flat[ranks * offset : ranks * (offset + nbytes)], ranks

    def write(self, target: int, area: Area, offset: int, data: Bytes) -> None:
        """Store `data` in the target's area; it is there on return."""
        if data.size == 0:
            return
        if self.kind == "shared":
            self._areas[area][target, offset : offset + data.size] = data
        elif target == self.rank:
            self._areas[area][0, offset : offset + data.size] = data
        else:
            window = self._windows[-1]
            window.Put(
                [data, self._mpi.BYTE], target, [self.sizes.base(area) + offset, data.size, self._mpi.BYTE]
            )
            window.Flush(target)

    def read(self, target: int, area: Area, offset: int, out: Bytes) -> None:
        """Load `out.size` bytes of the target's area into `out`; they are there on return."""
        if out.size == 0:
            return
        if self.kind == "shared":
            out[:] = self._areas[area][target, offset : offset + out.size]
        elif target == self.rank:
            out[:] = self._areas[area][0, offset : offset + out.size]
        else:
            self.start_read(target, area, offset, out)
            self._windows[-1].Flush(target)

    def atomic(
        self, target: int, offset: int, nbytes: int, operation: int, operand: int, compare: int
    ) -> Bytes:
        """Carry out an atomic on an element of the target's heap by MPI; only under `rma`, done on return.

        Args:
            nbytes: width of the element, 4 or 8. operation: ATOMIC_ADD, SWAP, CAS, ATOMIC_AND, _OR or _XOR.
            operand, compare: wrap to the element's width; `compare` counts for CAS alone.

        Returns:
            uint8 [nbytes], the element before.
        """
        if self.kind != "rma":
            raise InternalError("the shared transport has no atomics of its own")
        mpi, window, kind = self._mpi, self._windows[-1], np.dtype(f"u{nbytes}")
        mask, unit = (1 << 8 * nbytes) - 1, self._mpi.UINT64_T if nbytes == 8 else self._mpi.UINT32_T
        origin, found = np.array([operand & mask], kind), np.zeros(1, kind)
        place = target, self.sizes.base(Area.HEAP) + offset
        if operation == CAS:
            wanted = np.array([compare & mask], kind)
            window.Compare_and_swap([origin, unit], [wanted, unit], [found, unit], *place)
        else:
            names = {ATOMIC_ADD: mpi.SUM, SWAP: mpi.REPLACE, ATOMIC_AND: mpi.BAND, ATOMIC_OR: mpi.BOR}
            window.Fetch_and_op([origin, unit], [found, unit], *place, names.get(operation, mpi.BXOR))
        window.Flush(target)
        return found.view(np.uint8)

    def publish(self) -> None:
        """Make plain stores to my own memory visible to remote loads."""
        if self.kind == "rma":
            self._windows[-1].Sync()

    def start_read(self, target: int, area: Area, offset: int, out: Bytes) -> None:
        """Start a load under `rma`; complete after `flush_reads`."""
        where = [self.sizes.base(area) + offset, out.size, self._mpi.BYTE]
        self._windows[-1].Get([out, self._mpi.BYTE], target, where)

    def flush_reads(self) -> None:
        """Complete every load started by `start_read`."""
        self._windows[-1].Flush_all()

    # --- host scheduling and the end --------------------------------------------------------------------

    def populate(self, memory: Bytes) -> None:
        """Map every page of a contiguous view now rather than at its first use (where the kernel can)."""
        address = memory.__array_interface__["data"][0]
        start = address // PAGE * PAGE
        end = ctypes.c_size_t(address + memory.size - start)
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), end, _MADV_POPULATE_READ)

    def settle_scheduling(self) -> None:
        """Leave start-up: default timer slack, batch scheduling (a woken rank does not preempt its waker)."""
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, _DEFAULT_SLACK_NS, 0, 0, 0)
        if hasattr(os, "SCHED_BATCH"):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

    def abort(self, code: int) -> NoReturn:
        """End the run on every rank as MPI does; what this one has printed is shown."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._comm.Abort(code)
        os._exit(code & 0xFF)

    def close(self) -> None:
        """Free the windows and finalise MPI. Every rank must have passed the last wait of the engine."""
        if self._closed:
            return
        self._closed = True
        for window in self._windows:
            window.Unlock_all()
        self._mpi.Finalize()


def _start_mpi() -> Any:
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    if not MPI.Is_initialized():
        with open_mpi_told():
            MPI.Init_thread(MPI.THREAD_SINGLE)
    return MPI


@contextmanager
def open_mpi_told() -> Iterator[None]:
    """Tell Open MPI what the user has not: no UCX windows (it prints that they are not there), segments that
    are mapped files (else it first tries another kind, by a file in /dev/shm that stays there if this process
    is killed just then), and in a process that no mpirun has started none, 16 MB that it never removes."""
    wanted = {"OMPI_MCA_osc": "^ucx", "OMPI_MCA_shmem": "mmap"}
    if "PMIX_NAMESPACE" not in os.environ:
        wanted["OMPI_MCA_btl"] = "self"
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:  # an mpirun that the program starts is another matter
            del os.environ[name]


def _check_room(needed: int, num_ranks: int, sizes: Sizes) -> None:
    """Compare the nominal size of all areas with the room in `/dev/shm` (a full one would kill ranks by
    SIGBUS)."""
    status = os.statvfs("/dev/shm")
    free = status.f_bavail * status.f_frsize
    if needed > free:
        each = f"{sizes.heap >> 10} KiB heap + {sizes.managed >> 10} managed + {sizes.staging >> 10} staging"
        raise UsageError(
            f"/dev/shm has {free >> 20} MiB free but {num_ranks} ranks need {needed >> 20} MiB ({each} each, "
            f"{sizes.control >> 10} KiB control); lower heap_bytes, managed_bytes or staging_bytes"
        )
