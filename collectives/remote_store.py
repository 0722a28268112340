"""Published bytes under the rma transport: each rank's are in its own window, others fetch them by Get.

A rank's bytes have places of their own from 0 on. Those below the room of its window are there; what does not
fit lies in the group's file, as staged payloads that find their pool full do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from collectives.agreement import FIELDS
from collectives.pieces import Bytes, Int64
from collectives.store import DEPTH, SharedStore, Units, padded
from emulator.transport import Area, Transport

HEAD = -(-DEPTH * FIELDS * 8 // 4096) * 4096


class RemoteUnits(Units):
    """`Units` one after the other in each rank's own bytes."""

    def __init__(self, store: RemoteStore, unit: int, count: int, base: int = 0) -> None:
        self._store = self._remote = store
        self.unit, self.count, self.base = unit, count, base
        self._room = padded(unit)
        self.end = base + count * self._room

    def publish(self, call: int, raw: Bytes) -> None:
        """See `Units.publish`."""
        if self.unit:
            room = np.zeros(self.count * self.unit, np.uint8)
            room[: raw.size] = raw
            wide = np.zeros((self.count, self._room), np.uint8)
            wide[:, : self.unit] = room.reshape(self.count, self.unit)
            self._remote.publish_raw(call, [(self.base, wide.reshape(-1))])

    def column(self, call: int, index: int) -> Bytes:
        """Unit `index` of every rank, uint8 [g, unit]."""
        return self._remote.rows(call, self.base + index * self._room, self.unit)

    def of_rank(self, call: int, rank: int, index: int) -> Bytes:
        """Unit `index` of one rank, uint8 [unit]."""
        at = np.array([self.base + index * self._room])
        return self._remote.pieces(call, np.array([rank]), at, np.array([self.unit]))


class RemoteStore(SharedStore):
    """The published bytes of one group, fetched from the ranks' windows.

    Args:
        transport: of this rank. base, room: where my descriptors and bytes are in its managed area, and how
            many bytes they may have. members: ranks of the machine.
    """

    common = False

    def __init__(
        self, path: str, members: Sequence[int], rank: int, transport: Transport, base: int, room: int
    ) -> None:
        super().__init__(path, len(members), rank)
        self._transport, self._members, self._base = transport, list(members), base
        self._half = (room - HEAD) // 2

    def flush(self) -> None:
        """What I published is there for others to read."""
        self._transport.publish()

    # --- descriptors ------------------------------------------------------------------------------------

    def announce(self, call: int, descriptor: Sequence[int]) -> None:
        """Write my descriptor of a call, FIELDS numbers."""
        at = self._base + call % DEPTH * FIELDS * 8
        numbers = np.array([call, *descriptor[1:]], np.int64)
        self._transport.own(Area.MANAGED)[at : at + FIELDS * 8] = numbers.view(np.uint8)

    def announced(self, call: int) -> Int64:
        """Descriptors at the place of a call, int64 [g, FIELDS]; those of ranks not there yet are older."""
        return self._rings()[:, call % DEPTH].copy()

    def last_calls(self) -> Int64:
        """The last call each rank has entered, int64 [g]."""
        calls: Int64 = self._rings()[:, :, 0].max(axis=1)
        return calls

    def _rings(self) -> Int64:
        raw = np.empty((self.size, DEPTH * FIELDS * 8), np.uint8)
        self._read((member, self._base, row) for member, row in zip(self._members, raw, strict=True))
        return raw.view(np.int64).reshape(self.size, DEPTH, FIELDS)

    # --- bytes ------------------------------------------------------------------------------------------

    def units(self, unit: int, count: int, after: Units | None = None, chunk: int = 0) -> Units:
        """Room for `count` equal units of each rank, behind those of `after`; all are side by side."""
        return RemoteUnits(self, unit, count, after.end if after is not None else 0)

    def publish_raw(self, call: int, pieces: Sequence[tuple[int, Bytes]]) -> None:
        """Publish pieces at places of my own: below the window's room there, the rest in the file."""
        own, start = self._transport.own(Area.MANAGED), self._start(call)
        beyond = []
        for at, raw in pieces:
            here = max(0, min(raw.size, self._half - at))
            own[start + at : start + at + here] = raw[:here]
            if here < raw.size:
                beyond.append((at + here, raw[here:]))
        super().publish_raw(call, beyond)

    def rows(self, call: int, offset: int, nbytes: int) -> Bytes:
        """The piece at one place of every rank, uint8 [g, nbytes]."""
        every, ones = np.arange(self.size), np.ones(self.size, np.int64)
        return self.pieces(call, every, ones * offset, ones * nbytes).reshape(self.size, nbytes)

    def pieces(self, call: int, ranks: Int64, offsets: Int64, sizes: Int64) -> Bytes:
        """Pieces of some ranks one after the other, uint8 [sum of sizes]: one Get each, then one flush."""
        out, end, loads = np.empty(int(sizes.sum()), np.uint8), 0, []
        for rank, at, size in zip(ranks.tolist(), offsets.tolist(), sizes.tolist(), strict=True):
            here = max(0, min(size, self._half - at))
            loads.append((self._members[rank], self._start(call) + at, out[end : end + here]))
            far = rank * self.stride + at
            out[end + here : end + size] = self.areas[call % 2][far + here : far + size]
            end += size
        self._read(loads)
        return out

    def publish_dense(self, call: int, sizes: Int64, raw: Bytes) -> None:
        """Publish my part, sizes[rank] bytes."""
        self.publish_raw(call, [(0, raw)])

    def dense(self, call: int, sizes: Int64) -> Bytes:
        """All parts one after the other, uint8 [sum of sizes]."""
        return self.pieces(call, np.arange(self.size), np.zeros(self.size, np.int64), sizes)

    def _start(self, call: int) -> int:
        return self._base + HEAD + call % 2 * self._half

    def _read(self, loads: Iterable[tuple[int, int, Bytes]]) -> None:
        for member, at, out in loads:
            if not out.size:
                continue
            if member == self._transport.rank:
                out[:] = self._transport.own(Area.MANAGED)[at : at + out.size]
            else:
                self._transport.start_read(member, Area.MANAGED, at, out)
        self._transport.flush_reads()
