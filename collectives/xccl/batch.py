"""Stores of one end of a transfer into the other die, posted together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from collectives.xccl.layout import FIELD_DTYPE
from emulator.engine.api import ADD
from emulator.engine.posts import ORD_STRONG, ORD_TRACK
from emulator.transport import Bytes

if TYPE_CHECKING:
    from collectives.xccl.areas import Areas


class Batch:
    """Stores into one other die, posted together. Start times are absolute until `post`.

    Attributes:
        posts: fields of each. payload: bytes of data they stand for; records: records.
    """

    def __init__(self, owner: Areas, peer: int) -> None:
        self._owner, self._peer = owner, peer
        self._cls = owner.device.engine.link_class(peer)
        self._price = owner.device.engine.config.call_price_ps
        self._base = owner.device.now_ps
        self.posts: list[dict[str, int]] = []
        self._data: list[Bytes] = []
        self.payload = self.records = 0

    @property
    def next_ps(self) -> int:
        """When the next post can leave at the earliest."""
        return self._base + (len(self.posts) + 1) * self._price

    def add(self, offset: int, data: Bytes, payload: int = 0, **fields: int) -> None:
        """Store `data` at `offset` of the areas; it stands for `payload` bytes on the link."""
        fields["start_ps"] = max(0, fields.get("start_ps", 0) - self.next_ps)
        self.payload += payload
        self.posts.append({"offset": self._owner.base + offset, **fields})
        self._data.append(data)

    def tell(self, field_index: int, direction: int, field: tuple[int, ...], records: int, word: int,
             leave_ps: int) -> int:  # fmt: skip
        """Store a record into the fields of `records` cores; returns when that is over at this end."""
        raw = np.array([field] * records, FIELD_DTYPE).view(np.uint8)
        leave_ps, n = max(leave_ps, self.next_ps), self._owner.numbers
        self.records += records
        self.add(
            self._owner.geometry.field(field_index, direction), raw,
            nbytes=n.charged(self._cls, raw.size), start_ps=leave_ps, order=ORD_TRACK | ORD_STRONG,
            word=word, op=ADD, value=1,
        )  # fmt: skip
        return leave_ps + n.port_ps(self._cls, raw.size)

    def post(self) -> None:
        """Hand all over."""
        self._owner.post(self._peer, self.posts, self._data, self.payload, self.records)
