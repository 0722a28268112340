"""One send or receive under way: what it stores into the other die, when, and what it waits for.

Stores are posts of the engine. A wave's data leave when the cores have it in their buffers and the ring has
room; its record leaves when the stores are done, and takes effect after them (ORD_STRONG). Each record adds 1
to a word of the receiver, each acknowledgement to one of the sender: that is what a die that polls its
metadata sleeps on here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from collectives.xccl.batch import Batch
from collectives.xccl.layout import ACK, CORES_SHIFT, REFUSED, TAIL
from collectives.xccl.sides import Field, ReceiveSide, SendSide, Shares, first_fill
from collectives.xccl.waves import TwoStage, Wave, cut, cut_blocks, local_ps, store_ps
from emulator.engine.api import GE
from emulator.engine.posts import ORD_TRACK
from emulator.errors import SizeError, SuperpodError, UsageError, misuse
from emulator.transport import Bytes

if TYPE_CHECKING:
    from collectives.xccl.endpoint import Xccl

Condition = tuple[int, int, int]
_NO_CHUNK = (1 << 32) - 1
"""chunkID of a refusal."""


class Transfer(ABC):
    """A send or a receive. Made by `Xccl`.

    Attributes:
        peer, event_id, cores: as asked for.
        nbytes: charged bytes; of a receive 0 until the first record is in.
        start_ps, end_ps: virtual times; end_ps 0 until it is done.
        is_done: known to be complete. held: cores it takes while it is under way.
        error: why it never will be; None if it may. Waiting for it or testing it raises that, each time.
    """

    kind = ""

    def __init__(self, owner: Xccl, peer: int, event_id: int, cores: int, memory: Bytes) -> None:
        self._owner, self.peer, self.event_id, self.cores, self._memory = owner, peer, event_id, cores, memory
        self.nbytes = self.start_ps = self.end_ps = 0
        self.finish_ps, self.held = -1, cores
        self.is_done = False
        self.error: SuperpodError | None = None
        self._cls = owner.device.engine.link_class(peer)
        self._stage = TwoStage.at(0)

    def wait(self, timeout_ps: int | None = None) -> bool:
        """Wait until it is done; False: `timeout_ps` passed first (it goes on, and can be waited for again).

        Completion: of a send: the receiver has copied everything; of a receive: the bytes are in `dst`.

        Raises: SizeError, DeadlockError, RankLostError as `Xccl.send`; UsageError: withdrawn.
        """
        return self._owner.wait(self, timeout_ps)

    def withdraw(self) -> bool:
        """Give up a transfer of which nothing has moved: one that has not begun, or a receive no record has
        come for. Its pair is free for another. False: too late, it goes on (or is over)."""
        error = self._owner.error(UsageError, f"{self!r} was withdrawn", self.event_id)
        return self._owner.withdraw(self, error)

    def test(self) -> bool:
        """Whether it is done now; moves on whatever can. Raises: as `wait`."""
        self._owner.progress()
        if self.error is not None:
            raise self.error
        return self.is_done

    def __repr__(self) -> str:
        where = "to" if self.kind == "send" else "from"
        state = "done" if self.is_done else "under way" if self.start_ps else "not begun"
        state = "given up" if self.error else state
        return f"<{self.kind} of event {self.event_id} {where} rank {self.peer}, {state}>"

    @abstractmethod
    def begin(self, now_ps: int) -> None:
        """Cores and the pair are free."""

    @abstractmethod
    def condition(self) -> Condition:
        """What I wait for."""

    @abstractmethod
    def step(self) -> None:
        """My condition holds: go on. Raises: SizeError, refused; both ends are in step again."""

    def is_untouched(self) -> bool:
        """Whether nothing of it has moved, though it has begun."""
        return False

    def finish(self, end_ps: int) -> None:
        """All is known to be over."""
        self.is_done, self.end_ps = True, end_ps
        self._memory = np.empty(0, np.uint8)


class Send(Transfer):
    """The sender's end."""

    kind = "send"

    def __init__(self, owner: Xccl, peer: int, event_id: int, cores: int, memory: Bytes, charged: int,
                 engine: str) -> None:  # fmt: skip
        super().__init__(owner, peer, event_id, cores, memory)
        self.nbytes, self._engine, g = charged, engine, owner.geometry
        self.held = cores if engine == "mte" else 0
        if engine == "mte":
            waves = cut(charged, cores, g.chunk_bytes, g.slots, owner.control)
        else:
            waves = cut_blocks(charged, cores, g.chunk_bytes, g.slots)
        self._waves, self._shares, self._real = waves, Shares(waves, memory.size), memory.size
        for index, wave in enumerate(waves):
            low, high = self._shares.of(index)
            if high - low > wave.chunks * g.slot_bytes:
                message = (f"xccl send: {high - low} real bytes in {wave.chunks} chunks, a slot keeps "
                           f"{g.slot_bytes}; raise slot_bytes or charge_bytes")  # fmt: skip
                raise misuse(SizeError, message, rank=owner.device.rank, now_ps=owner.device.now_ps,
                             value=high - low)  # fmt: skip

    def begin(self, now_ps: int) -> None:
        """Store what the ring has room for."""
        self.start_ps, self._stage = now_ps, TwoStage.at(now_ps)
        self._link = self._owner.link_to(self.peer)
        self._side = SendSide(self._waves, self._owner.geometry.slots, self._link.tail)
        self._store()

    def condition(self) -> Condition:
        return self._link.ack_word, GE, self._link.acks + self._side.acknowledgements()

    def step(self) -> None:
        """Read the receiver's acknowledgement; store more, or end."""
        field = self._owner.field(self._link.ack_field, ACK)
        if field.chunk == _NO_CHUNK:
            self._link.tail, self._link.acks = self._side.tail, self._link.acks + REFUSED
            raise self._owner.error(SizeError, f"{self!r} was refused: the receiver takes {field.real} "
                                    f"bytes with {field.cores} AIV cores, I send {self._real} with "
                                    f"{self.cores}", self._real)  # fmt: skip
        self._side.acknowledge(field.tail)
        if self._side.is_done:
            self._link.tail, self._link.acks = self._side.tail, self.condition()[2]
            self.finish(self._owner.device.now_ps)
        else:
            self._store()

    # --- what is stored ---------------------------------------------------------------------------------

    def _store(self) -> None:
        batch = Batch(self._owner, self.peer)
        while self._side.has_room():
            tail, low, high = self._side.tail, *self._shares.of(self._side.posted)
            wave = self._side.fill()
            pieces = self._owner.geometry.pieces(self._link.ring, tail, wave.chunks, high - low)
            leave = self._move(batch, wave, pieces, self._memory[low:high])
            if wave.records:
                self._stage.write_end = self._tell(batch, wave, leave)
        batch.post()

    def _move(self, batch: Batch, wave: Wave, pieces: list[tuple[int, int]], data: Bytes) -> int:
        """Post the data of a wave; returns when its record may leave."""
        charged = self._owner.numbers.charged(self._cls, wave.nbytes)
        timing, leave = self._timing(batch.next_ps, wave, charged)
        if len(pieces) == 2:  # the first part is free: the wave's time is that of the second
            batch.add(pieces[0][0], data[: pieces[0][1]], start_ps=timing["start_ps"], order=ORD_TRACK)
            data = data[pieces[0][1] :]
        batch.add(pieces[-1][0], data, payload=wave.nbytes, order=ORD_TRACK, **timing)
        return leave

    def _timing(self, post_ps: int, wave: Wave, charged: int) -> tuple[dict[str, int], int]:
        n, fabric = self._owner.numbers, self._owner.device.fabric
        if self._engine == "mte":
            took = store_ps(n, self._cls, wave)
            start, end = self._stage.advance(0, local_ps(n, wave), took, post_ps)
            tail = took - n.port_ps(self._cls, wave.nbytes)
            return {"nbytes": charged, "start_ps": start, "tail_ps": tail}, end
        if self._engine == "dma":
            shape = fabric.put(self._cls, wave.nbytes, "dma")
        else:
            shape = fabric.urma("write", wave.nbytes, self._cls)
        fields = shape._asdict()
        return {"nbytes": wave.nbytes, **fields, "start_ps": post_ps + fields["start_ps"]}, post_ps

    def _tell(self, batch: Batch, wave: Wave, leave_ps: int) -> int:
        """Post the record after a wave; returns when the cores are free again."""
        cores = self.cores if self._engine == "mte" else 0
        tail, last_chunk = self._side.tail, self._side.tail - self._side.base - 1
        size = cores << CORES_SHIFT | self.nbytes
        field = (self.event_id, last_chunk, tail % (1 << 32), size, self._real)
        return batch.tell(self._link.tail_field, TAIL, field, wave.records, self._link.tail_word, leave_ps)


class Receive(Transfer):
    """The receiver's end."""

    kind = "receive"

    def begin(self, now_ps: int) -> None:
        """Look for the first record."""
        self.start_ps, self._stage = now_ps, TwoStage.at(now_ps)
        self._link = self._owner.link_from(self.peer)
        slots = self._owner.geometry.slots
        self._side = ReceiveSide(self.event_id, self._memory.size, self.cores, slots, self._link.tail)
        self._ignored, self._wrong = 0, ""

    def condition(self) -> Condition:
        wanted = self._drain[1] if self._wrong else 1
        return self._link.tail_word, GE, self._link.records + self._ignored + wanted

    def step(self) -> None:
        """Look at the record: copy what it announces, or ignore it. Of a transfer I refuse, wait for all that
        the sender has stored: what comes afterwards into the ring is of another."""
        field = self._owner.field(self._link.tail_field, TAIL)
        if self._wrong:
            self._refuse(field)
        elif not self._side.is_news(field):
            self._ignored += 1
            self._owner.counters.ignored += 1
        else:
            self._take(field)

    def _take(self, field: Field) -> None:
        """A record of this transfer: copy the waves it announces."""
        if not self._side.waves:
            self._agree(field)
        if self._wrong:
            return
        self._copy(self._side.arrived(field))
        if self._side.is_done:
            self._link.tail, self.finish_ps = self._side.head, self._stage.write_end
            self._link.records += self._ignored

    def is_untouched(self) -> bool:
        """No record was for me; those I have ignored are looked at again by the next receive."""
        return not self._side.waves

    def _agree(self, field: Field) -> None:
        """Learn from the first record how the transfer is cut, and whether I take it."""
        self.nbytes, g, cores = field.nbytes, self._owner.geometry, field.cores
        wrong = self._side.disagreement(field) if cores else ""
        if not cores and field.real != self._side.real:
            wrong = f"the sender has {field.real} bytes, the receiver takes {self._side.real}"
        if cores:
            self._side.waves = cut(self.nbytes, cores, g.chunk_bytes, g.slots, self._owner.control)
        else:
            self._side.waves = cut_blocks(self.nbytes, self.cores, g.chunk_bytes, g.slots)
        if wrong:
            self._wrong, self._drain = wrong, first_fill(self._side.waves, g.slots)
        else:
            self._shares = Shares(self._side.waves, self._side.real)

    def _refuse(self, field: Field) -> None:
        """Raise SizeError, on the other side too, once all that the sender has stored is in; pass over it."""
        slots, records = self._drain
        tail = self._link.tail + slots
        if (field.tail - tail) % (1 << 32):  # the word counts a stale record
            self._ignored += 1
            return
        batch = Batch(self._owner, self.peer)
        refusal = self.event_id, _NO_CHUNK, tail % (1 << 32), self.cores << CORES_SHIFT, self._side.real
        batch.tell(self._link.ack_field, ACK, refusal, 1, self._link.ack_word, 0)
        batch.posts[-1]["value"] = REFUSED
        batch.post()
        self._link.tail, self._link.records = tail, self._link.records + records + self._ignored
        raise self._owner.error(SizeError, f"{self!r}: {self._wrong}", self._side.real)

    def _copy(self, waves: int) -> None:
        """Copy waves from the ring to the app area, and acknowledge them when that is done."""
        owner, batch, now_ps = self._owner, Batch(self._owner, self.peer), self._owner.device.now_ps
        for _ in range(waves):
            low, high = self._shares.of(self._side.emptied)
            head, wave = self._side.head, self._side.empty()
            for start, size in owner.geometry.pieces(self._link.ring, head, wave.chunks, high - low):
                self._memory[low : low + size] = owner.own(start, size)
                low += size
            took = local_ps(owner.numbers, wave)
            _, end_ps = self._stage.advance(now_ps, took, took)
            if wave.records:
                self._link.records += 1
                field = (
                    self.event_id,
                    wave.chunks,
                    self._side.head % (1 << 32),
                    self.nbytes,
                    self._side.real,
                )
                batch.tell(self._link.ack_field, ACK, field, wave.records, self._link.ack_word, end_ps)
        batch.post()
