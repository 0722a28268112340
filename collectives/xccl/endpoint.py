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

Source: arXiv 2508.02520v6 section 3.1. Prices: `numbers`.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from collectives.refusals import told
from collectives.xccl.areas import Areas
from collectives.xccl.transfer import Receive, Send, Transfer
from emulator.engine.api import TIMEOUT
from emulator.errors import DeadlockError, RankLostError, SizeError, SuperpodError, UsageError
from emulator.profile import nearest
from emulator.remarks import remark

ENGINES = ("mte", "dma", "urma")
_MOST = 1 << 50


class Xccl(Areas):
    """One rank's end of XCCL point to point. Collective to make; arguments and attributes as `Areas`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._queued: list[Transfer] = []
        self._active: list[Transfer] = []
        self._dead: set[int] = set()

    # --- calls ------------------------------------------------------------------------------------------

    @told
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
            disagree on bytes or cores; nothing is copied, and the pair goes on with its next transfer.
            DeadlockError: nobody can end it; one of which nothing has moved is withdrawn, others stay under
            way. RankLostError: `dst` is dead. UsageError: to myself, and no receive of mine is under way.
        """
        self._not_alone("send", dst, event_id, timeout_ps)
        transfer = self.send_async(src, event_id, dst, n_aiv, engine=engine, charge_bytes=charge_bytes)
        self.wait(transfer, timeout_ps)
        return transfer

    @told
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
        self._not_alone("receive", src, event_id, timeout_ps)
        transfer = self.receive_async(dst, event_id, src, n_aiv)
        self.wait(transfer, timeout_ps)
        return transfer

    @told
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

    @told
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
            if transfer.error is not None:
                raise transfer.error
            rest = None if until is None else until - self.device.now_ps
            if rest is not None and rest <= 0:
                return False
            self._sleep(rest, transfer)
            self._retire()
        return True

    def withdraw(self, transfer: Transfer, error: SuperpodError) -> bool:
        """See `Transfer.withdraw`; `error` is what it says from now on."""
        if transfer not in self._queued and not (transfer in self._active and transfer.is_untouched()):
            return False
        self._fail(transfer, error)
        self._begin()
        return True

    # --- moving on --------------------------------------------------------------------------------------

    def _start(self, transfer: Transfer) -> Transfer:
        self.device.ledger.call("mem")
        self._queued.append(transfer)
        self._begin()
        if transfer.error is not None:
            raise transfer.error
        return transfer

    def _fail(self, transfer: Transfer, error: SuperpodError) -> None:
        """It is over; `error` is kept for who waits for it."""
        transfer.error = error
        for place in (self._queued, self._active):
            if transfer in place:
                place.remove(transfer)

    def _not_alone(self, kind: str, peer: int, event_id: int, timeout_ps: int | None) -> None:
        """Refuse to block on what only I could end. Raises: UsageError."""
        mine = [t for t in (*self._queued, *self._active) if t.peer == self.device.rank and t.kind != kind]
        if peer == self.device.rank and timeout_ps is None and event_id not in [t.event_id for t in mine]:
            other = "receive" if kind == "send" else "send"
            message = (f"xccl {kind}: event {event_id} with rank {peer}, which is myself, would never end; "
                       f"call {other}_async first")  # fmt: skip
            raise self.error(UsageError, message, peer)

    def _begin(self) -> None:
        """Begin what waits for its pair or for cores, oldest first; nothing overtakes on its own pair."""
        self._retire()
        busy = {(t.kind, t.peer) for t in self._active}
        free = self.numbers.cores - sum(t.held for t in self._active)
        for transfer in list(self._queued):
            place = transfer.kind, transfer.peer
            if place not in busy and transfer.held <= free:
                self._queued.remove(transfer)
                self._active.append(transfer)
                free -= transfer.held
                try:
                    transfer.begin(self.device.now_ps)
                except RankLostError as error:
                    self._fail(transfer, error)
                    free += transfer.held
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
        where = self.device.board, self.device.rank
        try:
            remark(*where, "; ".join(map(repr, self._active)))
            found = self.device.wait([t.condition() for t in running], True, soonest)
            remark(*where, "")
        except DeadlockError as error:
            said = self._explain(error)
            if wanted is not None:
                self.withdraw(wanted, said)
            raise said from error
        except RankLostError as error:
            return self._lost(error)
        if found == TIMEOUT:
            return False
        try:
            running[found].step()
        except SizeError as error:
            self._fail(running[found], error)
        return True

    def _lost(self, error: RankLostError) -> bool:
        """Give up what needs a dead rank. The first report of a death wakes all who wait: for what needs only
        the living, wait once more. Raises: RankLostError, that too cannot end."""
        concerned = [t for t in (*self._queued, *self._active) if t.peer in error.ranks and t.finish_ps < 0]
        if not concerned and self._dead >= set(error.ranks):
            raise error
        self._dead |= set(error.ranks)
        for transfer in concerned:
            self._fail(transfer, error)
        return True

    def _explain(self, error: DeadlockError) -> DeadlockError:
        seen = "".join(f"; {t!r}{self._last_seen(t)}" for t in self._active if self._last_seen(t))
        return DeadlockError(f"{error.message}{seen}", error.waiters)

    def _last_seen(self, transfer: Transfer) -> str:
        if transfer.kind == "send":
            return ""
        event = self.field(self.link_from(transfer.peer).tail_field, 0).event
        return f" (the last record from there says event {event})" if event != transfer.event_id else ""
