"""The collectives of one tensor-parallel group, charged at the priced model's size.

All of them are exchanges among the group's ranks (full mesh): real bytes of the functional model move, the
priced model's are charged. A layer that stands for several priced ones is charged the bytes of all, and the
latency of each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from collectives import coll
from collectives.calls import hop_of
from collectives.groups import Group
from emulator import Device
from emulator.device import META_BYTES
from serving.engine import RankRecord
from serving.forward import COMPUTE_LABELS
from serving.pricing import PricedModel
from serving.tensor.price import gathered_bytes

__all__ = ["TensorGroup", "members_of"]

_MESH = "full-mesh"
_SLOT = 1
"""Groups of other ranks share it: serving makes no others."""


def members_of(rank: int, size: int) -> range:
    """The ranks of the group of `rank`; the first leads."""
    first = rank // size * size
    return range(first, first + size)


class TensorGroup:
    """My group of `priced.parts` ranks. Collective to make (over all ranks); use it after their next barrier.

    Attributes:
        rows: priced rows of the step under way. repeat: priced layers that the executed one stands for.
    """

    def __init__(self, device: Device, priced: PricedModel, record: RankRecord) -> None:
        self._device, self._priced, self._record = device, priced, record
        self.size = priced.parts
        members = members_of(device.rank, self.size)
        self._group = Group.of(device, members, "tensor")
        record.work.record_bytes_sent += (
            device.num_ranks * META_BYTES
        )  # making the world's group is a barrier
        self._group.take(_SLOT)
        self.index, self.leads = self._group.rank, self._group.rank == 0
        self.rows, self.repeat = 0, 1
        self._hop_ps = hop_of(self._group) + device.engine.config.call_price_ps

    def gather(self, what: str, columns: torch.Tensor) -> torch.Tensor:
        """All ranks' columns of the step's rows, float32 [n, w] to [n, w · size]; see `Part.whole`."""
        count, width = columns.shape
        found = np.empty((self.size, count, width), np.float32)
        rows = count if what == "logits" else self.rows
        self._gather(np.ascontiguousarray(columns.numpy()), found, gathered_bytes(self._priced, what, rows))
        return torch.from_numpy(found.transpose(1, 0, 2).reshape(count, self.size * width))

    def gather_rows(self, mine: NDArray[np.float32], total: int) -> torch.Tensor:
        """Whole rows of which each rank has its share (`share`), float32 [total, hidden]."""
        shares = [self.share(total, index) for index in range(self.size)]
        most = max(share.stop - share.start for share in shares)
        padded = np.zeros((most, mine.shape[1]), np.float32)
        padded[: len(mine)] = mine
        found = np.empty((self.size, most, mine.shape[1]), np.float32)
        self._gather(padded, found, gathered_bytes(self._priced, "rows", self.rows))
        parts = [rows[: share.stop - share.start] for rows, share in zip(found, shares, strict=True)]
        return torch.from_numpy(np.concatenate(parts))

    def share(self, total: int, index: int | None = None) -> slice:
        """The rows that a rank, I by default, routes for the group."""
        at = self.index if index is None else index
        return slice(total * at // self.size, total * (at + 1) // self.size)

    def tell(self, words: NDArray[np.int32]) -> None:
        """Give these numbers to the others; the leader's call."""
        self._tell(words)

    def hear(self) -> NDArray[np.int32]:
        """What the leader tells."""
        return self._tell(np.empty(0, np.int32))

    def _tell(self, words: NDArray[np.int32]) -> NDArray[np.int32]:
        start_ps = self._device.now_ps
        lengths = np.empty(self.size, np.int64)
        how = {"algorithm": _MESH, "charge_bytes": META_BYTES}
        coll.all_gather(self._group, np.array([len(words)]), lengths, **how)  # type: ignore[arg-type]
        self._record.work.group_bytes_sent += self.size * META_BYTES
        told = np.empty(int(lengths[0]), np.int32)
        if len(told):
            counts = [len(told), *[0] * (self.size - 1)]
            coll.all_gather_v(self._group, words, told, counts, algorithm=_MESH)
            self._record.work.group_bytes_sent += self.size * words.nbytes
        self._record.time.add("tensor", self._device.now_ps - start_ps)
        return told

    def _gather(self, mine: NDArray[np.float32], found: NDArray[np.float32], priced: int) -> None:
        start_ps, priced = self._device.now_ps, priced * self.repeat
        if self.repeat > 1:
            self._device.compute((self.repeat - 1) * self._hop_ps, label=COMPUTE_LABELS["tensor"])
        coll.all_gather(self._group, mine, found, algorithm=_MESH, charge_bytes=priced)
        self._record.work.group_bytes_sent += self.size * priced
        self._record.time.add("tensor", self._device.now_ps - start_ps)


def followers(num_ranks: int, size: int) -> Sequence[int]:
    """Ranks that lead no group."""
    return [rank for rank in range(num_ranks) if rank % size]
