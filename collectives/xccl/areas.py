"""What XCCL's transfers of one rank stand on: its areas, links to others, stores, counters, checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collectives.refusals import told_in_making
from collectives.xccl.layout import FIELD_DTYPE, Geometry, Pairs
from collectives.xccl.numbers import Numbers, load_numbers
from collectives.xccl.sides import Field
from collectives.xccl.waves import CONTROLS
from emulator import Device
from emulator.engine.posts import new_posts
from emulator.errors import DtypeError, OffsetError, SizeError, UsageError, misuse
from emulator.fabric import Plane, Transaction
from emulator.profile import nearest
from emulator.tracing import Op
from emulator.transport import Area, Bytes


@dataclass
class Counters:
    """What one rank has stored into others and seen: payload and control bytes, records (acknowledgements
    included), stores, records ignored."""

    payload_bytes: int = 0
    control_bytes: int = 0
    records: int = 0
    stores: int = 0
    ignored: int = 0


@dataclass
class Link:
    """One ordered pair as one of its ends sees it.

    ring: at the receiver. tail: slots ever filled (or emptied). acks, records: how many there were.
    tail_word, ack_word: of the receiver and the sender. tail_field, ack_field: where their records go.
    """

    ring: int
    tail_word: int
    ack_word: int
    tail_field: int
    ack_field: int
    tail: int = 0
    acks: int = 0
    records: int = 0


class Areas:
    """One rank's areas for XCCL point to point. Collective to make: costs a barrier.

    Args:
        device: this rank.
        pairs: ordered (source, destination) that may be used, alike on all ranks; None: all. Each has a ring.
        slots, chunk_bytes: of a ring, by default those of XCCL's file.
        slot_bytes: real bytes kept for a slot, by default `chunk_bytes`; less where transfers are charged for
            more than they carry.
        control: "chunk": tail and acknowledgement are stored for each chunk of each core pair; "transfer":
            once for what fits into the ring. (The paper does not say.)
        numbers: prices, by default XCCL's file and the machine's profile.

    Raises:
        UsageError: bad sizes or pairs, or no room (names the setting to raise).

    Attributes:
        counters: see `Counters`.
    """

    @told_in_making
    def __init__(
        self,
        device: Device,
        pairs: Sequence[tuple[int, int]] | None = None,
        *,
        slots: int | None = None,
        chunk_bytes: int | None = None,
        slot_bytes: int | None = None,
        control: str = "chunk",
        numbers: Numbers | None = None,
    ) -> None:
        self.device, self.control = device, control
        if control not in CONTROLS:
            raise UsageError(
                f"xccl: control {control!r}: choose chunk or transfer{nearest(control, CONTROLS)}"
            )
        self.numbers = numbers or load_numbers(device.profile)
        self._pairs = Pairs.of(device.num_ranks, pairs)
        chunk = self.numbers.chunk_bytes if chunk_bytes is None else chunk_bytes
        self.geometry = Geometry(
            self._pairs.most, self.numbers.cores, self.numbers.slots if slots is None else slots, chunk,
            chunk if slot_bytes is None else slot_bytes,
        )  # fmt: skip
        g = self.geometry
        if min(g.slots, g.chunk_bytes) < 1 or g.slot_bytes < 0:
            raise UsageError(
                f"xccl: slots and chunk_bytes must be at least 1, slot_bytes at least 0, got {g}"
            )
        what = (
            f"xccl {g.rings} rings of {g.slots} slots of {g.slot_bytes} B for {g.chunk_bytes}, {control}, "
            f"{self._pairs.words}"
        )
        self._what = what
        self.base, self._word, _ = device.symmetric.carve(Area.HEAP, g.nbytes, what, words=2 * g.rings)
        self.counters = Counters()
        self._links: dict[tuple[str, int], Link] = {}

    def free(self) -> None:
        """Give areas and words back (collective: costs a barrier); of no use afterwards. Every transfer must
        have ended. Raises: UsageError, ranks differ."""
        g = self.geometry
        self.device.symmetric.release(Area.HEAP, self.base, g.nbytes, self._what, self._word, 2 * g.rings)

    # --- what transfers use -----------------------------------------------------------------------------

    def link_to(self, peer: int) -> Link:
        """The pair (me, peer); made at first use."""
        return self._link("send", self.device.rank, peer)

    def link_from(self, peer: int) -> Link:
        """The pair (peer, me)."""
        return self._link("receive", peer, self.device.rank)

    def _link(self, kind: str, source: int, target: int) -> Link:
        found = self._links.get((kind, target if kind == "send" else source))
        if found is None:
            ring = self._pairs.sources(target).index(source)
            back = self._pairs.targets(source).index(target)
            found = Link(ring, self._word + ring, self._word + self.geometry.rings + back, ring, back)
            self._links[kind, target if kind == "send" else source] = found
        return found

    def own(self, start: int, size: int) -> Bytes:
        """Bytes of my areas."""
        return self.device.heap[self.base + start : self.base + start + size]

    def field(self, index: int, direction: int) -> Field:
        """My metadata record of core 0, as of my last observation."""
        raw = self.own(self.geometry.field(index, direction), FIELD_DTYPE.itemsize)
        return Field._make(raw.view(FIELD_DTYPE)[0].item())

    def post(
        self, peer: int, posts: list[dict[str, int]], data: list[Bytes], payload: int, records: int
    ) -> None:
        """Post stores into `peer`, and count them."""
        if not posts:
            return
        rows = new_posts(len(posts), peer=peer)
        for row, fields in zip(rows, posts, strict=True):
            for name, value in fields.items():
                row[name] = value
        self.device.post(rows, data, Op.PUT)
        control, ledger = records * self.numbers.record_bytes, self.device.ledger
        ledger.moved(Plane.UB, payload + control - int(rows["nbytes"].sum()))
        ledger.add("mem", Transaction.FLAG, records, control)
        ledger.add("mem", Transaction.DESCRIPTOR, int((rows["unit"] >= 0).sum()))
        self.counters.payload_bytes += payload
        self.counters.control_bytes += control
        self.counters.records += records
        self.counters.stores += len(posts)

    # --- checks -----------------------------------------------------------------------------------------

    def error(self, kind: type[UsageError], message: str, value: Any) -> UsageError:
        """An error that names me and my time."""
        return misuse(kind, message, rank=self.device.rank, now_ps=self.device.now_ps, value=value)

    def _memory(self, what: str, array: npt.NDArray[Any], writable: bool) -> Bytes:
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise self.error(
                DtypeError, f"xccl {what} must be an array of plain numbers, got {array!r:.60}", array
            )
        if not array.flags.c_contiguous or (writable and not array.flags.writeable):
            problem = "not contiguous; pass a copy" if not array.flags.c_contiguous else "read-only"
            raise self.error(SizeError, f"xccl {what} of shape {array.shape} is {problem}", array.shape)
        return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)

    def _peer(self, what: str, peer: int, allowed: list[int]) -> tuple[int]:
        if peer not in allowed:
            near = (
                min(allowed, key=lambda rank: abs(rank - peer), default=None)
                if isinstance(peer, int)
                else None
            )
            hint = "" if near is None else f"; nearest: {near}"
            message = f"xccl {what}: rank {peer!r} is none of the {len(allowed)} I was paired with{hint}"
            raise self.error(OffsetError, message, peer)
        return (int(peer),)

    def _event(self, event_id: int, n_aiv: int) -> tuple[int, int]:
        event = self._number("event_id", event_id, -(1 << 63), (1 << 63) - 1)
        return event, self._number("n_aiv", n_aiv, 1, self.numbers.cores)

    def _number(self, what: str, value: int, low: int, high: int) -> int:
        if (type(value) is int or isinstance(value, np.integer)) and low <= value <= high:
            return int(value)
        raise self.error(
            SizeError, f"xccl: {what} must be an integer from {low} to {high}, got {value!r}", value
        )
