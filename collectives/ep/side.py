"""One operation of one micro-batch, from its block to what came of it.

    write block and table -> exchange with every rank of the group -> read the blocks of the others

Write after read: a rank writes event e + 2 only after all records of e + 1 are in, and posts its own of e + 1
only after its reads of e. So a slow reader of e holds everybody back (`collectives.moe` has the same rule).

Agreement: the tag of an exchange is the event and a checksum of the call's facts; where they differ, or a
rank says that it cannot take part, all ranks raise the same error, made from the tables. Nobody hangs, and no
rank has read a row by then.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.blocks import Block
from collectives.ep.area import CHUNKS, EpArea, Places
from collectives.ep.layout import Grouped
from collectives.ep.tables import HEAD_BYTES, TEXT_BYTES
from collectives.ep.traffic import Opening, Stage, cut
from emulator.engine.api import ADD, GE, ExchangeResult
from emulator.engine.posts import K_PUT, new_posts
from emulator.engine.schedules import Sends, new_sends, new_steps
from emulator.errors import DeadlockError, RankLostError, UsageError
from emulator.rows import Received, Records, RowFormat

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
_FIELD = 2**31


class Blocks(NamedTuple):
    """The blocks of one row format: their shape, those of all mapped ranks and mine, by parity."""

    shape: Block
    all: tuple[Records, Records]
    own: tuple[Records, Records]


class Call(NamedTuple):
    """A call before its exchange. facts: `area.FIELDS` but the event; counts: int32, what others may read;
    trouble: why I cannot take part, or ''."""

    facts: tuple[int, ...]
    counts: Int32
    trouble: str = ""


class Side:
    """One operation of one micro-batch.

    Attributes:
        event: how many are over. busy: one is posted and not yet waited for. signals: what each of its words
            has counted when everything so far is in. planes: int64 [R], the plane of pushes to each rank.
    """

    def __init__(self, area: EpArea, place: Places, number: int, planes: Int64) -> None:
        self.area, self.place, self._number, self.planes = area, place, number, planes
        self.event, self.busy = 0, False
        self.signals: dict[int, int] = {}
        self._blocks: dict[tuple[int, int], Blocks] = {}

    # --- rows out -----------------------------------------------------------------------------------------

    def blocks(self, form: RowFormat, most: int) -> Blocks:
        """Blocks of `form` for up to `most` rows from one rank to another; cut once."""
        key = form.record_bytes, most
        if key not in self._blocks:
            self._blocks[key] = self._cut(form, most)
        return self._blocks[key]

    def _cut(self, form: RowFormat, most: int) -> Blocks:
        capacity = self.place.block_bytes // form.record_bytes
        capacity = capacity // 32 * 32 if capacity >= 32 else 1 << max(0, capacity.bit_length() - 1)
        if not capacity:
            raise UsageError(f"a block of {self.place.block_bytes} bytes holds no row of {form.record_bytes}")
        capacity = min(capacity, (_FIELD - 1) // (most + 1))
        shape = Block(capacity, form, most)
        device = self.area.ranks.device
        whole, own = [], []
        for parity in (0, 1):
            memory, ranks = device.transport.piece(
                self.place.block + parity * self.place.block_bytes, shape.nbytes
            )
            records = Records(memory.reshape(-1, ranks, shape.chunk, form.record_bytes))
            mine = device.rank if ranks > 1 else 0
            whole.append(records)
            own.append(Records(records.view[:, mine : mine + 1]))
        return Blocks(shape, (whole[0], whole[1]), (own[0], own[1]))

    def pack(self, blocks: Blocks, raw: Float32, order: Int32, per_row: int, slot_ids: Int64 | None) -> None:
        """Write record i of my coming block from row order[i] // per_row of raw float32 [., words]."""
        rows = self.area.ranks.device.rows
        rows.pack(blocks.own[self.event % 2], blocks.shape.form, raw, order, per_row, slot_ids, None)

    # --- exchange -----------------------------------------------------------------------------------------

    def begin(self, call: Call, told: Grouped, most: int) -> int:
        """Write my table: facts, trouble, and for each rank where its rows begin in my block and how many.

        The engine does not hand on what goes with rows that it does not pull itself, so it stands here.

        Returns:
            the tag of my exchange (negative: trouble).
        """
        device = self.area.ranks.device
        row = self.area.own_table(self.place, self.event % 2)
        facts = np.array([*call.facts, self.event], np.int64)
        row[: 8 * facts.size] = facts.view(np.uint8)
        row[HEAD_BYTES - 16 : HEAD_BYTES - 8] = np.array([device.now_ps], np.int64).view(np.uint8)
        text = call.trouble.encode()[: TEXT_BYTES - 1]
        row[HEAD_BYTES : HEAD_BYTES + TEXT_BYTES] = 0
        row[HEAD_BYTES : HEAD_BYTES + len(text)] = np.frombuffer(text, np.uint8)
        fields = (told.first.astype(np.int64) * (most + 1) + told.counts).astype(np.int32)
        for start, numbers in ((HEAD_BYTES + TEXT_BYTES, fields), (self.area.counts_at, call.counts)):
            row[start : start + numbers.nbytes] = numbers.view(np.uint8)
        device.transport.publish()
        self.area.enter(self._number, self.event)
        return -1 if call.trouble else zlib.crc32(facts.tobytes()) << 24 | self.event & 0xFFFFFF

    def exchange(self, opening: Opening, tag: int) -> ExchangeResult:
        """Open the operation and wait for everybody's record (and pull, where the scheme does)."""
        if opening.sizes is not None and self.planes.any():
            self.post(opening, tag)
            return self.wait(opening, tag)
        device = self.area.ranks.device
        try:
            result = device.exchange(
                self.place.channel, opening.pulls, opening.row_bytes, opening.meta_bytes,
                opening.pull_start_ps, opening.record_ps, (), None, tag, opening.sizes,
            )  # fmt: skip
        except (DeadlockError, RankLostError) as error:
            raise self.area.why(error) from None
        return self._checked(result, tag)

    def post(self, opening: Opening, tag: int) -> None:
        """Open the operation without waiting; `wait` later.

        Rows of a push that use several planes go as puts of their own, each with a signal; the exchange then
        only says what they are, at no bytes.
        """
        if opening.sizes is not None and self.planes.any():
            self._put(self._around(), opening.sizes[self._around()], CHUNKS + self.event % 2)
            opening = opening._replace(sizes=None)
        self.area.ranks.device.exchange_post(
            self.place.channel, opening.pulls, opening.row_bytes, opening.meta_bytes, None,
            tag, opening.sizes,
        )  # fmt: skip
        self.busy = True

    def wait(self, opening: Opening, tag: int) -> ExchangeResult:
        """Wait for everybody's record of the operation I posted."""
        self.area.enter(self._number, self.event)
        if opening.sizes is not None and self.planes.any():
            self._await(CHUNKS + self.event % 2, self.area.ranks.size)
        try:
            result = self.area.ranks.device.exchange_wait(
                self.place.channel, opening.pull_start_ps, opening.record_ps
            )
        except (DeadlockError, RankLostError) as error:
            raise self.area.why(error) from None
        self.busy = False
        return self._checked(result, tag)

    def _around(self) -> Int64:
        """me + 1, me + 2, …, me."""
        size = self.area.ranks.size
        return (np.arange(size) + self.area.ranks.me + 1) % size

    def again(self, sizes: Int64) -> None:
        """Rows of known counts after the first exchange of the operation, `sizes` int64 [R] bytes."""
        if self.planes.any():
            last = CHUNKS + (self.event - 1) % 2
            self._put(self._around(), sizes[self._around()], last)
            self._await(last, self.area.ranks.size)
            return
        self.area.ranks.device.exchange(self.place.channel, None, 0, 0, record_bytes=sizes)

    def hops(self, first: Stage, second: Stage) -> None:
        """Two stages of puts that follow each other in pieces: a piece of the second leaves when all of that
        piece of the first are in, whoever sent them; done when all pieces of the second are in.

        Each piece has a word of its own, so a fast sender's later piece does not count for a slow one's
        earlier.
        """
        last = CHUNKS + (self.event - 1) % 2
        words = np.append(np.arange(CHUNKS), last)
        expected = [first.expected] * CHUNKS + [CHUNKS * second.expected]
        counts = np.full(CHUNKS + 1, second.targets.size)
        counts[0] = CHUNKS * first.targets.size
        sends = np.concatenate([self._sends(first, np.arange(CHUNKS)), self._sends(second, [last] * CHUNKS)])
        for word, more in zip(words.tolist(), expected, strict=True):
            self.signals[word] = self.signals.get(word, 0) + more
        steps = new_steps(
            CHUNKS + 1, first=np.cumsum(counts) - counts, count=counts, cmp=GE,
            word=np.where(np.array(expected) > 0, words + self.place.word, -1),
            value=[self.signals[word] for word in words.tolist()],
        )  # fmt: skip
        try:
            self.area.ranks.device.schedule(steps, sends)
        except (DeadlockError, RankLostError) as error:
            raise self.area.why(error) from None

    def _sends(self, stage: Stage, words: npt.ArrayLike) -> Sends:
        """A stage's puts, piece by piece; those of piece i add 1 to words[i]."""
        size, ranks = stage.targets.size, self.area.ranks
        return new_sends(
            CHUNKS * size, peer=np.tile(ranks.members[stage.targets], CHUNKS), op=ADD, value=1,
            nbytes=cut(stage.nbytes, CHUNKS).ravel(), word=np.repeat(words, size) + self.place.word,
            plane=np.tile(self.planes[stage.targets], CHUNKS),
        )  # fmt: skip

    def _put(self, targets: Int64, nbytes: Int64, word: int) -> None:
        """Puts without payload, each with a signal, on the plane of their link class."""
        if targets.size:
            ranks = self.area.ranks
            posts = new_posts(
                targets.size, kind=K_PUT, peer=ranks.members[targets], nbytes=nbytes,
                plane=self.planes[targets], word=self.place.word + word, op=ADD, value=1,
            )  # fmt: skip
            ranks.device.post(posts)

    def _await(self, word: int, more: int) -> None:
        """Wait until `more` signals than ever before have come."""
        if more:
            self.signals[word] = self.signals.get(word, 0) + more
            try:
                self.area.ranks.device.wait([(self.place.word + word, GE, self.signals[word])])
            except (DeadlockError, RankLostError) as error:
                raise self.area.why(error) from None

    def _checked(self, result: ExchangeResult, tag: int) -> ExchangeResult:
        """Count the event; raise what all ranks raise if they do not agree."""
        self.event += 1
        self.area.enter(0, 0)
        if tag < 0 or (result.tags != tag).any():
            raise self.area.disagreement(self.area.tables(self.place, (self.event - 1) % 2))
        return result

    def posted(self) -> Int64:
        """When each rank opened the last event, int64 [R], ps."""
        return (
            self.area.column(self.place, (self.event - 1) % 2, HEAD_BYTES - 16, 2).copy().view(np.int64)[:, 0]
        )

    # --- rows in ------------------------------------------------------------------------------------------

    def counts(self, first: int, size: int) -> Int32:
        """What the ranks of the group counted for this event, from number `first` on, int32 [R, size]."""
        return self.area.column(self.place, (self.event - 1) % 2, self.area.counts_at + 4 * first, size)

    def rows(self, blocks: Blocks) -> tuple[Records, Int32, Int32, int]:
        """Find the rows announced to me; returns records, counts and first int32 [R], and the sum."""
        mine = HEAD_BYTES + TEXT_BYTES + 4 * self.area.ranks.me
        fields = self.area.column(self.place, (self.event - 1) % 2, mine)[:, 0]
        first, counts = np.divmod(fields, np.int32(blocks.shape.most + 1))
        parity, stride = (self.event - 1) % 2, blocks.shape.form.record_bytes
        base = self.place.block + parity * self.place.block_bytes
        records, first = self.area.fetch(blocks.all[parity], base, stride, counts, first)
        return records, counts, first, int(counts.sum())

    def unpack(self, blocks: Blocks) -> tuple[Received, Int32]:
        """Read the rows announced to me, placed by slot; returns them and how many each rank sent."""
        records, counts, first, total = self.rows(blocks)
        kernels = self.area.ranks.device.rows
        return kernels.unpack(records, blocks.shape.form, counts, first, total), counts
