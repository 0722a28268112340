"""What each call of `collectives.mpi_calls` does: buffers as elements, then one collective.

Every step returns the work and what is left to do when it is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collectives import coll
from collectives.groups import Group
from collectives.mpi_ops import Array, Op, elements
from collectives.mpi_request import CollectiveRequest
from collectives.mpi_specs import blocks_of, elements_of, is_in_place, store, vector_of
from collectives.refusals import told
from collectives.work import Work
from emulator import Device
from memsem.bufspec import Buffer, BufSpec, parse
from memsem.communicator import WORLD_ID
from memsem.message import Comm

Finish = Callable[[], None] | None


class Steps(Comm):
    """Part of a communicator. Its group is made with it: local, in the same order on all its ranks."""

    group: Group

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self._endpoint is not None and self._endpoint.device.rank in self.members:
            device = self._endpoint.device
            whole = self.ident == WORLD_ID
            self.group = Group.world(device) if whole else Group.of(device, self.members, f"mpi {self.ident}")

    @property
    def device(self) -> Device:
        """This rank of the machine."""
        return self.group.device

    def _done(self, work: Work, finish: Finish = None) -> None:
        work.wait()
        if finish is not None:
            finish()

    def _request(self, work: Work, finish: Finish = None) -> CollectiveRequest:
        return CollectiveRequest(work, self.endpoint, finish)

    def _barrier(self) -> tuple[Work, Finish]:
        return coll.barrier(self.group, async_op=True), None

    def _bcast(self, spec: BufSpec, root: int) -> tuple[Work, Finish]:
        self._check_rank(root)
        buffer = parse(spec, self.rank != root)
        raw = elements_of(buffer)
        return coll.broadcast(self.group, raw, root, async_op=True), store(buffer, raw, self.rank != root)

    def _own(self, spec: BufSpec, into: Buffer, at: int) -> Array:
        """What I give; with IN_PLACE the block that begins at element `at` of what I get."""
        if not is_in_place(spec):
            return elements_of(parse(spec, writable=False))
        whole = elements_of(into)
        return whole[at : at + whole.size // self.size].copy()

    def _gather(self, sendbuf: BufSpec, recvbuf: BufSpec, root: int) -> tuple[Work, Finish]:
        self._check_rank(root)
        if self.rank != root:
            return coll.gather(
                self.group, elements_of(parse(sendbuf, False)), None, root, async_op=True
            ), None
        into = blocks_of(recvbuf, self.size, writable=True)
        raw = elements_of(into)
        mine = self._own(sendbuf, into, self.rank * (raw.size // self.size))
        return coll.gather(self.group, mine, raw, root, async_op=True), store(into, raw)

    def _scatter(self, sendbuf: BufSpec, recvbuf: BufSpec, root: int) -> tuple[Work, Finish]:
        self._check_rank(root)
        given = elements_of(blocks_of(sendbuf, self.size, writable=False)) if self.rank == root else None
        if is_in_place(recvbuf):
            assert given is not None
            raw, after = np.empty(given.size // self.size, given.dtype), None
        else:
            into = parse(recvbuf, writable=True)
            raw = elements_of(into)
            after = store(into, raw)
        return coll.scatter(self.group, given, raw, root, async_op=True), after

    def _allgather(self, sendbuf: BufSpec, recvbuf: BufSpec) -> tuple[Work, Finish]:
        into = blocks_of(recvbuf, self.size, writable=True)
        raw = elements_of(into)
        mine = self._own(sendbuf, into, self.rank * (raw.size // self.size))
        return coll.all_gather(self.group, mine, raw, async_op=True), store(into, raw)

    def _alltoall(self, sendbuf: BufSpec, recvbuf: BufSpec) -> tuple[Work, Finish]:
        into = blocks_of(recvbuf, self.size, writable=True)
        raw = elements_of(into)
        given = raw.copy() if is_in_place(sendbuf) else elements_of(blocks_of(sendbuf, self.size, False))
        return coll.all_to_all(self.group, given, raw, async_op=True), store(into, raw)

    def _gatherv(self, sendbuf: BufSpec, recvbuf: BufSpec, root: int) -> tuple[Work, Finish]:
        self._check_rank(root)
        how: coll.How = {"async_op": True}
        if self.rank != root:
            mine = elements_of(parse(sendbuf, False))
            return coll.gather_v(self.group, mine, None, None, None, root, **how), None
        raw, counts, displs = vector_of(recvbuf, self.size, writable=True)
        mine = self._piece(sendbuf, raw, counts, displs)
        return coll.gather_v(self.group, mine, raw, counts, displs, root, **how), None

    def _piece(self, spec: BufSpec, raw: Array, counts: Array, displs: Array) -> Array:
        """What I give; with IN_PLACE my part of what I get."""
        if not is_in_place(spec):
            return elements_of(parse(spec, writable=False))
        return raw[displs[self.rank] : displs[self.rank] + counts[self.rank]].copy()

    def _scatterv(self, sendbuf: BufSpec, recvbuf: BufSpec, root: int) -> tuple[Work, Finish]:
        self._check_rank(root)
        given = counts = displs = None
        if self.rank == root:
            given, counts, displs = vector_of(sendbuf, self.size, writable=False)
        if is_in_place(recvbuf):
            assert given is not None and counts is not None
            raw, after = np.empty(counts[self.rank], given.dtype), None
        else:
            into = parse(recvbuf, writable=True)
            raw = elements_of(into)
            after = store(into, raw)
        how: coll.How = {"async_op": True}
        return coll.scatter_v(self.group, given, counts, raw, displs, root, **how), after

    def _allgatherv(self, sendbuf: BufSpec, recvbuf: BufSpec) -> tuple[Work, Finish]:
        raw, counts, displs = vector_of(recvbuf, self.size, writable=True)
        mine = self._piece(sendbuf, raw, counts, displs)
        return coll.all_gather_v(self.group, mine, raw, counts, displs, async_op=True), None

    def _alltoallv(self, sendbuf: BufSpec, recvbuf: BufSpec) -> tuple[Work, Finish]:
        raw, back, back_at = vector_of(recvbuf, self.size, writable=True)
        if is_in_place(sendbuf):
            given, out, out_at = raw.copy(), back, back_at
        else:
            given, out, out_at = vector_of(sendbuf, self.size, writable=False)
        return coll.all_to_all_v(self.group, given, out, raw, back, out_at, back_at, async_op=True), None

    def _operands(self, sendbuf: BufSpec, recvbuf: BufSpec, call: str) -> tuple[Buffer, Array, Array, str]:
        """(buffer, numbers given, numbers to get, name of their type) of a reduction."""
        into = parse(recvbuf, writable=True)
        out, name = elements(into, call)
        given = out if is_in_place(sendbuf) else elements(parse(sendbuf, writable=False), call)[0]
        return into, given, out, name

    def _reduce(self, sendbuf: BufSpec, recvbuf: BufSpec, op: Op, root: int) -> tuple[Work, Finish]:
        self._check_rank(root)
        if self.rank == root:
            into, given, out, name = self._operands(sendbuf, recvbuf, "Reduce")
        else:
            into = parse(sendbuf, writable=False)
            given, name = elements(into, "Reduce")
            out = given
        if op.native:
            target = out if self.rank == root else None
            how: coll.How = {"dtype": name, "async_op": True}
            return coll.reduce(self.group, given, target, op.native, root, **how), None
        rows = np.empty((self.size, given.size), given.dtype)
        work = coll.gather(self.group, given.copy(), rows if self.rank == root else None, root, async_op=True)
        return work, self._folded(rows, out, op, into, name) if self.rank == root else None

    def _folded(self, rows: Array, out: Array, op: Op, into: Buffer, name: str) -> Callable[[], None]:
        def finish() -> None:
            if len(rows) and out.size:
                out[...] = op.fold(rows, into.datatype, name)

        return finish

    def _allreduce(self, sendbuf: BufSpec, recvbuf: BufSpec, op: Op) -> tuple[Work, Finish]:
        into, given, out, name = self._operands(sendbuf, recvbuf, "Allreduce")
        if op.native:
            how: coll.How = {"dtype": name, "async_op": True}
            return coll.all_reduce(self.group, given, out, op.native, **how), None
        rows = np.empty((self.size, given.size), given.dtype)
        work = coll.all_gather(self.group, given.copy(), rows, async_op=True)
        return work, self._folded(rows, out, op, into, name)

    def _reduce_scatter(
        self, sendbuf: BufSpec, recvbuf: BufSpec, recvcounts: Any, op: Op
    ) -> tuple[Work, Finish]:
        into, given, out, name = self._operands(sendbuf, recvbuf, "Reduce_scatter")
        given = given.copy() if is_in_place(sendbuf) else given
        counts = [given.size // self.size] * self.size if recvcounts is None else list(recvcounts)
        mine = out[: counts[self.rank]] if is_in_place(sendbuf) else out
        how: coll.How = {"dtype": name, "async_op": True}
        if op.native and recvcounts is None:
            return coll.reduce_scatter(self.group, given, mine, op.native, **how), None
        if op.native:
            return coll.reduce_scatter_v(self.group, given, mine, counts, op.native, **how), None
        rows, start = np.empty((self.size, given.size), given.dtype), sum(counts[: self.rank])
        work = coll.all_gather(self.group, given, rows, async_op=True)
        return work, self._folded(rows[:, start : start + mine.size], mine, op, into, name)

    def _scan(self, sendbuf: BufSpec, recvbuf: BufSpec, op: Op, more: int) -> tuple[Work, Finish]:
        into, given, out, name = self._operands(sendbuf, recvbuf, "Scan" if more else "Exscan")
        rows = np.empty((self.size, given.size), given.dtype)
        work = coll.all_gather(self.group, given.copy(), rows, async_op=True)
        return work, self._folded(rows[: self.rank + more], out, op, into, name)


for _name, _step in list(vars(Steps).items()):
    if callable(_step) and not _name.startswith("__"):
        setattr(Steps, _name, told(_step))
