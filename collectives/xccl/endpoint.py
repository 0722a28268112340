"""XCCL's send and receive between two dies: one-sided stores, rings, and a 32-byte record for each chunk.

    sender                                             receiver
    app -> unified buffer (all cores, ping-pong)
    unified buffer -> receiver's ring                  polls its metadata, compares eventID
    {eventID, chunkID, tailPtr} -> receiver            ring -> unified buffer -> app (ping-pong)
    polls its metadata for the acknowledgement         acknowledgement -> sender
    returns                                            returns

Both return when their end is over. An ordered pair has one transfer under way; later ones wait for it. A
record of another event is ignored. With engine "dma" or "urma" a unit of the die stores blocks straight from
the app area. Left out: the zero-copy variant, which is not the default.

Source: arXiv 2508.02520v6 section 3.1. Prices: `p2p.toml`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from collectives.xccl.layout import FIELD_DTYPE, Geometry, Pairs
from collectives.xccl.numbers import Numbers, load_numbers
from collectives.xccl.sides import Field
from collectives.xccl.transfer import Bytes, Receive, Send, Transfer
from collectives.xccl.waves import CONTROLS
from emulator import Device
from emulator.engine.api import TIMEOUT
from emulator.engine.posts import new_posts
from emulator.errors import DeadlockError, DtypeError, OffsetError, SizeError, UsageError, misuse
from emulator.fabric import Plane, Transaction
from emulator.profile import nearest
from emulator.tracing import Op
from emulator.transport import Area

ENGINES = ("mte", "dma", "urma")
_MOST = 1 << 50


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


class Xccl:
    """One rank's end of XCCL point to point. Collective to make: costs a barrier.

    Args:
        device: this rank.
        pairs: ordered (source, destination) that may be used, alike on all ranks; None: all. Each has a ring.
        slots, chunk_bytes: of a ring, by default those of `p2p.toml`.
        slot_bytes: real bytes kept for a slot, by default `chunk_bytes`; less where transfers are charged for
            more than they carry.
        control: "chunk": tail and acknowledgement are stored for each chunk of each core pair; "transfer":
            once for what fits into the ring. (The paper does not say.)
        numbers: prices, by default `p2p.toml` and the machine's profile.

    Raises:
        UsageError: bad sizes or pairs, or no room (names the setting to raise).

    Attributes:
        counters: see `Counters`.
    """

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
        what = f"xccl {g.rings} rings of {g.slots} slots of {g.slot_bytes} B for {g.chunk_bytes}, {control}"
        self.base, self._word, _ = device.symmetric.carve(Area.HEAP, g.nbytes, what, words=2 * g.rings)
        self.counters = Counters()
        self._links: dict[tuple[str, int], Link] = {}
        self._queued: list[Transfer] = []
        self._active: list[Transfer] = []

    # --- calls ------------------------------------------------------------------------------------------

    def send(
        self,
        src: npt.NDArray[Any],
        event_id: int,
        dst: int,
        n_aiv: int = 2,
        *,
        engine: str = "mte",
        charge_bytes: int | None = None,
        timeout_ps: int | None = None,
    ) -> Transfer:
        """Send an array to rank `dst`; blocks until it has been copied there.

        Args:
            src: contiguous array of any dtype, in the app area; may be empty.
            event_id: names the transfer; the receiver takes no other. 64 bits.
            n_aiv: AIV cores on either side, 1 to those of a die; both ends say the same (mte).
            engine: "mte"; "dma": the DMA engine, started by the host; "urma": by a core.
            charge_bytes: bytes charged, by default the real ones.
            timeout_ps: give up waiting; the result then is not done.

        Completion: `src` may be reused, the receiver has the bytes.

        Raises: UsageError and its kinds: bad arguments, before any time passes. SizeError, on both ends: they
            disagree on bytes or cores. DeadlockError: nobody can end it. RankLostError: `dst` is dead.
        """
        transfer = self.send_async(src, event_id, dst, n_aiv, engine=engine, charge_bytes=charge_bytes)
        self.wait(transfer, timeout_ps)
        return transfer

    def receive(
        self,
        dst: npt.NDArray[Any],
        event_id: int,
        src: int,
        n_aiv: int = 2,
        *,
        timeout_ps: int | None = None,
    ) -> Transfer:
        """Receive event `event_id` of rank `src` into an array of exactly its size; blocks until it is there.

        Arguments and errors as `send`. Completion: the bytes are in `dst`. Until then it holds at most what
        records have announced.
        """
        transfer = self.receive_async(dst, event_id, src, n_aiv)
        self.wait(transfer, timeout_ps)
        return transfer

    def send_async(
        self,
        src: npt.NDArray[Any],
        event_id: int,
        dst: int,
        n_aiv: int = 2,
        *,
        engine: str = "mte",
        charge_bytes: int | None = None,
    ) -> Transfer:
        """Start a send; arguments and errors as there. No end polls: what the ring has no room for is stored
        in later calls of mine (`wait`, `test`, `progress`, ...). `src` must not change until it is done."""
        data = self._memory("send: src", src, False)
        charged = data.size if charge_bytes is None else self._number("charge_bytes", charge_bytes, 0, _MOST)
        if engine not in ENGINES:
            raise UsageError(
                f"xccl: engine {engine!r}: choose {', '.join(ENGINES)}{nearest(engine, ENGINES)}"
            )
        where = self._peer("send", dst, self._pairs.targets(self.device.rank))
        return self._start(Send(self, *where, *self._event(event_id, n_aiv), data, charged, engine))

    def receive_async(self, dst: npt.NDArray[Any], event_id: int, src: int, n_aiv: int = 2) -> Transfer:
        """Start a receive; arguments and errors as there. `dst` is filled in later calls of mine."""
        data = self._memory("receive: dst", dst, True)
        where = self._peer("receive", src, self._pairs.sources(self.device.rank))
        return self._start(Receive(self, *where, *self._event(event_id, n_aiv), data))

    def progress(self) -> None:
        """Move on every transfer that can, without waiting."""
        self._begin()
        while self._active and self._sleep(0):
            self._begin()
        self._retire()

    def wait(self, transfer: Transfer, timeout_ps: int | None = None) -> bool:
        """See `Transfer.wait`; other transfers of mine move on meanwhile."""
        until = None if timeout_ps is None else self.device.now_ps + timeout_ps
        self._retire()
        while not transfer.is_done:
            self._begin()
            rest = None if until is None else until - self.device.now_ps
            if rest is not None and rest <= 0:
                return False
            self._sleep(rest, transfer)
            self._retire()
        return True

    # --- moving on --------------------------------------------------------------------------------------

    def _start(self, transfer: Transfer) -> Transfer:
        self.device.ledger.call("mem")
        self._queued.append(transfer)
        self._begin()
        return transfer

    def _begin(self) -> None:
        """Begin what waits for its pair or for cores, oldest first; nothing overtakes on its own pair."""
        self._retire()
        busy = {(t.kind, t.peer) for t in self._active}
        free = self.numbers.cores - sum(t.cores for t in self._active)
        for transfer in list(self._queued):
            place = transfer.kind, transfer.peer
            if place not in busy and transfer.cores <= free:
                self._queued.remove(transfer)
                self._active.append(transfer)
                free -= transfer.cores
                transfer.begin(self.device.now_ps)
            busy.add(place)

    def _retire(self) -> None:
        """Free the cores of what is over by now."""
        for transfer in self._active:
            if 0 <= transfer.finish_ps <= self.device.now_ps:
                transfer.finish(transfer.finish_ps)
        self._active = [t for t in self._active if not t.is_done]

    def _sleep(self, timeout_ps: int | None, wanted: Transfer | None = None) -> bool:
        """Wait until some transfer can go on, and let it; False if none did in time."""
        if wanted is not None and wanted.finish_ps >= 0:
            over = wanted.finish_ps - self.device.now_ps
            self.device.sleep_ps(over if timeout_ps is None else min(over, timeout_ps))
            return True
        running = [t for t in self._active if t.finish_ps < 0]
        ends = [t.finish_ps - self.device.now_ps for t in self._active if t.finish_ps >= 0]
        soonest = min([*ends, *([] if timeout_ps is None else [timeout_ps])], default=None)
        if not running:
            if soonest:
                self.device.sleep_ps(soonest)
            return False
        try:
            found = self.device.wait([t.condition() for t in running], True, soonest)
        except DeadlockError as error:
            self._explain(error)
        if found == TIMEOUT:
            return False
        try:
            running[found].step()
        except SizeError:
            self._active.remove(running[found])
            raise
        return True

    def _explain(self, error: DeadlockError) -> NoReturn:
        mine = "; ".join(f"{t!r}{self._last_seen(t)}" for t in self._active)
        raise DeadlockError(
            f"{error.message}; xccl on rank {self.device.rank}: {mine}", error.waiters
        ) from error

    def _last_seen(self, transfer: Transfer) -> str:
        if transfer.kind == "send":
            return ""
        event = self.field(self.link_from(transfer.peer).tail_field, 0).event
        return f" (the last record from there says event {event})" if event != transfer.event_id else ""

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
