"""Lower-case collectives: Python objects, pickled. Slower than buffers: lengths are agreed on before.

`reduce`, `allreduce`, `scan` and `exscan` gather the objects and add them up in the order of ranks.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from collectives import coll
from collectives.mpi_ops import SUM, Op, fold_objects

if TYPE_CHECKING:
    from collectives.groups import Group


def _bytes(thing: Any) -> Any:
    return np.frombuffer(pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL), np.uint8)


class Objects:
    """Part of a communicator."""

    group: Group

    def bcast(self, obj: Any = None, root: int = 0) -> Any:
        """Return the root's object, on all."""
        mine = self.group.rank == root
        raw = _bytes(obj) if mine else np.empty(0, np.uint8)
        length = np.array([raw.size], np.int64)
        coll.broadcast(self.group, length, root)
        data = raw.copy() if mine else np.empty(int(length[0]), np.uint8)
        coll.broadcast(self.group, data, root)
        return obj if mine else pickle.loads(data.tobytes())

    def allgather(self, sendobj: Any) -> list[Any]:
        """Return the objects of all, by rank."""
        raw = _bytes(sendobj)
        lengths = np.empty(self.group.size, np.int64)
        coll.all_gather(self.group, np.array([raw.size], np.int64), lengths)
        data = np.empty(int(lengths.sum()), np.uint8)
        coll.all_gather_v(self.group, raw, data, lengths)
        return _loaded(data, lengths)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Return the objects of all, by rank, on the root; None elsewhere."""
        raw, lengths, mine = _bytes(sendobj), np.empty(self.group.size, np.int64), self.group.rank == root
        coll.gather(self.group, np.array([raw.size], np.int64), lengths if mine else None, root)
        data = np.empty(int(lengths.sum()), np.uint8) if mine else None
        coll.gather_v(self.group, raw, data, lengths if mine else None, None, root, algorithm="direct")
        return None if data is None else _loaded(data, lengths)

    def scatter(self, sendobj: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Return my one of the root's objects, one for each rank. Raises: ValueError, another number."""
        data = lengths = None
        if self.group.rank == root:
            data, lengths = self._packed(sendobj)
        length = np.empty(1, np.int64)
        coll.scatter(self.group, lengths, length, root)
        raw = np.empty(int(length[0]), np.uint8)
        coll.scatter_v(self.group, data, lengths, raw, None, root, algorithm="direct")
        return pickle.loads(raw.tobytes())

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Give object i to rank i; return one of each rank. Raises: ValueError, another number of them."""
        data, lengths = self._packed(sendobj)
        back = np.empty(self.group.size, np.int64)
        coll.all_to_all(self.group, lengths, back)
        got = np.empty(int(back.sum()), np.uint8)
        coll.all_to_all_v(self.group, data, lengths, got, back)
        return _loaded(got, back)

    def _packed(self, things: Sequence[Any] | None) -> tuple[Any, Any]:
        if things is None or len(things) != self.group.size:
            some = "none" if things is None else len(things)
            raise ValueError(f"expecting {self.group.size} items, got {some}")
        rows = [_bytes(thing) for thing in things]
        return np.concatenate(rows), np.array([row.size for row in rows], np.int64)

    def reduce(self, sendobj: Any, op: Op = SUM, root: int = 0) -> Any:
        """Return the objects of all reduced, on the root; None elsewhere."""
        things = self.gather(sendobj, root)
        return None if things is None else fold_objects(op, things)

    def allreduce(self, sendobj: Any, op: Op = SUM) -> Any:
        """Return the objects of all reduced."""
        return fold_objects(op, self.allgather(sendobj))

    def scan(self, sendobj: Any, op: Op = SUM) -> Any:
        """Return the objects of ranks 0 to mine reduced."""
        return fold_objects(op, self.allgather(sendobj)[: self.group.rank + 1])

    def exscan(self, sendobj: Any, op: Op = SUM) -> Any:
        """Return the objects of the ranks before mine reduced; None on rank 0."""
        things = self.allgather(sendobj)[: self.group.rank]
        return fold_objects(op, things) if things else None


def _loaded(data: Any, lengths: Any) -> list[Any]:
    ends = np.cumsum(lengths).tolist()
    return [
        pickle.loads(data[end - size : end].tobytes())
        for end, size in zip(ends, lengths.tolist(), strict=True)
    ]
