"""The KV cache of one DP group: block tables, prefix reuse, two tiers. Decisions only.

    match       which cached prefix a prompt begins with          (MatchByPrefixToken, MatchByID)
    open        a sequence begins on a match; what lies in DRAM is loaded       (Populate)
    grow        blocks for its next tokens                        (AllocBlocks, AppendBlock)
    commit      its full blocks may be reused from now on
    fork        another sequence begins with the same tokens      (Copy: the last, unfinished block is copied)
    truncate    its last tokens are forgotten
    free        it ends                                           (Free)

What has to be moved between the tiers comes out of `take_transfers`, in the order in which it must be done,
before the next step computes. Names of the calls in brackets: RTC, arXiv 2501.14417.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InternalError, UsageError
from serving.kv.blocks import BlockPool
from serving.kv.prefix import ROOT_HASH, Node, PrefixIndex, block_hashes

__all__ = ["KVCache", "Match", "Move", "Transfer"]


class Move(Enum):
    """How a block moves."""

    LOAD = "load"  # DRAM to HBM
    STORE = "store"  # HBM to DRAM
    COPY = "copy"  # HBM to HBM


@dataclass(frozen=True)
class Transfer:
    """The content of block `source` goes to block `target`; `charge` priced tokens are moved."""

    move: Move
    source: int
    target: int
    charge: int


@dataclass(frozen=True)
class Match:
    """A cached prefix: its nodes in order, and the tokens they hold."""

    nodes: tuple[Node, ...] = ()
    num_tokens: int = 0

    @property
    def num_in_dram(self) -> int:
        """Blocks that have to be loaded."""
        return sum(node.hbm is None for node in self.nodes)


Spans = Callable[[int, int], int]
"""(first position, position after the last) -> priced tokens they stand for."""


def _one_each(first: int, end: int) -> int:
    return end - first


@dataclass
class _Sequence:
    """A sequence's tokens so far and how far its blocks are in the index."""

    tokens: NDArray[np.int64]
    spans: Spans
    hashes: list[bytes] = field(default_factory=list)
    committed: int = 0
    """Blocks in the index, or known to have an equal there."""
    node: Node | None = None
    """The last of them."""


class KVCache:
    """Block tables of one DP group over an HBM pool and, if there is one, a DRAM pool.

    Args:
        block_size: tokens of a block.
        hbm: blocks the model reads.
        dram: blocks behind them; None: what HBM cannot keep is forgotten.
        reuse: whether ended prefixes are kept and matched.
        ahead: tokens after a block that its content depends on: as many as there are draft layers, whose rows
            lie in the blocks, too.

    Attributes:
        tables: sequence -> its blocks in order; shared with whoever stores the bytes.
        queried, hit: tokens ever looked up and found (both as the caller counts them in `open`).
    """

    def __init__(
        self,
        block_size: int,
        hbm: BlockPool,
        dram: BlockPool | None = None,
        reuse: bool = True,
        ahead: int = 0,
    ) -> None:
        if block_size < 1:
            raise UsageError(f"--block-size {block_size} must be at least 1")
        if dram is not None and not reuse:
            raise UsageError("a DRAM pool keeps prefixes for reuse: take --enable-prefix-caching")
        self.block_size, self.hbm, self.dram, self.reuse = block_size, hbm, dram, reuse
        self.ahead = ahead
        self.index = PrefixIndex()
        self.tables: dict[Hashable, list[int]] = {}
        self._sequences: dict[Hashable, _Sequence] = {}
        self._transfers: list[Transfer] = []
        self._waiting_load: list[int] = []

    # ---- look-up ----------------------------------------------------------------------------------

    def hashes(self, tokens: NDArray[np.int64], spans: Spans = _one_each) -> list[bytes]:
        """Hashes of the full blocks of these tokens, those known that their content depends on among them."""
        size = self.block_size
        widths = [spans(first, first + size) for first in range(0, len(tokens) - size + 1, size)]
        return block_hashes(tokens, size, ROOT_HASH, widths, self.ahead)

    def match(self, hashes: Sequence[bytes], most_tokens: int) -> Match:
        """The longest cached prefix of these blocks, of at most so many tokens."""
        if not self.reuse:
            return Match()
        nodes = self.index.match(hashes[: most_tokens // self.block_size])
        return Match(tuple(nodes), len(nodes) * self.block_size)

    def match_name(self, name: Hashable) -> Match:
        """The cached part of a prefix that was given a name (`name`)."""
        nodes = self.index.match_name(name) if self.reuse else []
        return Match(tuple(nodes), len(nodes) * self.block_size)

    def name(self, name: Hashable, sequence: Hashable) -> None:
        """Give the full blocks of a sequence a name."""
        self.index.name(name, self._sequences[sequence].hashes)

    # ---- a sequence's life ------------------------------------------------------------------------

    def open(
        self,
        sequence: Hashable,
        tokens: NDArray[np.int64],
        match: Match,
        num_tokens: int,
        spans: Spans = _one_each,
    ) -> bool:
        """Begin a sequence on a match, with blocks for its first tokens; False (nothing is changed) without
        room for loads and blocks.

        Args:
            tokens: int64, what is known of it; `extend` adds to it.
            num_tokens: tokens to have blocks for, those of the match among them.
            spans: priced tokens of its positions.
        """
        if sequence in self.tables:
            raise InternalError(f"KV cache: sequence {sequence!r} is open already")
        if not self._can_open(match, num_tokens, spans):
            return False
        for node in match.nodes:  # nothing of the match may go while room is made for the loads
            if node.hbm is not None:
                self.hbm.share(node.hbm)
            else:
                self._hold_in_dram(node)
        for place, node in enumerate(match.nodes):
            if node.hbm is None:
                self._load(node, spans(place * self.block_size, (place + 1) * self.block_size))
        self.tables[sequence] = [_in_hbm(node) for node in match.nodes]
        last = match.nodes[-1] if match.nodes else None
        hashes = [node.hash for node in match.nodes]
        self._sequences[sequence] = _Sequence(tokens, spans, hashes, len(match.nodes), last)
        return self.grow(sequence, num_tokens)

    def _can_open(self, match: Match, num_tokens: int, spans: Spans) -> bool:
        size = self.block_size
        charges = []
        for place in range(max(len(match.nodes), -(-num_tokens // size))):
            block = match.nodes[place].hbm if place < len(match.nodes) else None
            if block is None:
                charges.append(spans(place * size, (place + 1) * size))
            elif not self.hbm.references(block):
                charges.append(self.hbm.charge(block))
        return self.hbm.room_for(charges)

    def _hold_in_dram(self, node: Node) -> None:
        assert node.dram is not None and self.dram is not None
        self.dram.share(node.dram)
        self._waiting_load.append(node.dram)

    def _load(self, node: Node, charge: int) -> None:
        assert node.dram is not None
        target = self._take(charge)
        self._transfers.append(Transfer(Move.LOAD, node.dram, target, charge))
        self.index.place(node, hbm=target)

    def extend(self, sequence: Hashable, tokens: NDArray[np.int64]) -> None:
        """Tell all tokens known of a sequence, int64; they begin with those told before."""
        self._sequences[sequence].tokens = tokens

    def grow(self, sequence: Hashable, num_tokens: int) -> bool:
        """Blocks for the first `num_tokens` tokens of a sequence; False (nothing is changed) without room."""
        table, one = self.tables[sequence], self._sequences[sequence]
        size = self.block_size
        needed = range(len(table), -(-num_tokens // size))
        charges = [one.spans(i * size, (i + 1) * size) for i in needed]
        if not self.hbm.room_for(charges):
            return False
        table.extend(self._take(charge) for charge in charges)
        return True

    def _take(self, charge: int) -> int:
        """A block, for which kept ones go where they must."""
        while (victim := self.hbm.next_victim(charge)) is not None:
            self._evict(victim)
        return self.hbm.alloc(charge)

    def _evict(self, block: int) -> None:
        node = self.index.in_hbm(block)
        if node is None:
            raise InternalError(f"KV cache: block {block} is kept and is nothing")
        if self.dram is not None and node.dram is None:
            self._store(node, block)
        self.index.leave_hbm(node)
        self.hbm.evict(block)

    def _store(self, node: Node, block: int) -> None:
        """Copy a block to the DRAM pool, where the longest unused one goes for it; not at all where none
        can."""
        assert self.dram is not None
        charge = self.hbm.charge(block)
        while (victim := self.dram.next_victim(charge)) is not None:
            gone = self.index.in_dram(victim)
            assert gone is not None
            self.index.leave_dram(gone)
            self.dram.evict(victim)
        if not self.dram.has_room(charge):
            return
        target = self.dram.alloc(charge)
        self.dram.release(target, keep=True)
        self._transfers.append(Transfer(Move.STORE, block, target, charge))
        self.index.place(node, dram=target)

    def commit(self, sequence: Hashable, num_tokens: int) -> None:
        """The first `num_tokens` tokens of a sequence, and what their content depends on, are computed: their
        full blocks may be reused."""
        if not self.reuse:
            return
        one, table, size = self._sequences[sequence], self.tables[sequence], self.block_size
        full = (num_tokens - self.ahead) // size
        if full <= one.committed:
            return
        first = one.committed * size
        parent = one.hashes[-1] if one.hashes else ROOT_HASH
        widths = [one.spans(i * size, (i + 1) * size) for i in range(one.committed, full)]
        fresh = block_hashes(one.tokens[first : full * size + self.ahead], size, parent, widths, self.ahead)
        one.hashes += fresh
        node, begin = one.node, one.committed
        if node is None or node.parent is None:  # none yet, or cut off when an equal of mine was evicted
            node, begin = self.index.root, 0
        for block, key in zip(table[begin:full], one.hashes[begin:], strict=True):
            node = self.index.child(node, key)
            if node.hbm is None:
                self.index.place(node, hbm=block)
        one.node, one.committed = node, full

    def fork(self, sequence: Hashable, child: Hashable, num_tokens: int) -> bool:
        """Another sequence begins with the first `num_tokens` tokens of one; False without room.

        Full blocks are shared; the rest of the tokens is copied to a block of its own.
        """
        one, table, size = self._sequences[sequence], self.tables[sequence], self.block_size
        full, rest = divmod(num_tokens, size)
        charge = one.spans(full * size, (full + 1) * size)
        if rest and not self.hbm.room_for([charge]):
            return False
        shared = table[:full]
        for block in shared:
            self.hbm.share(block)
        self.tables[child] = list(shared)
        if rest:
            copy = self._take(charge)
            self._transfers.append(Transfer(Move.COPY, table[full], copy, charge))
            self.tables[child].append(copy)
        hashes = one.hashes[:full]
        nodes = self.index.match(hashes)
        committed = min(len(nodes), one.committed)
        self._sequences[child] = _Sequence(
            one.tokens[:num_tokens],
            one.spans,
            hashes[:committed],
            committed,
            nodes[committed - 1] if committed else None,
        )
        return True

    def truncate(self, sequence: Hashable, num_tokens: int) -> None:
        """Forget the tokens of a sequence from `num_tokens` on. They must not have been committed."""
        one, table = self._sequences[sequence], self.tables[sequence]
        kept = -(-num_tokens // self.block_size)
        if num_tokens // self.block_size < one.committed:
            raise InternalError(f"KV cache: sequence {sequence!r}: committed blocks cannot be taken back")
        self._release(table[kept:])
        del table[kept:]

    def free(self, sequence: Hashable) -> None:
        """End a sequence: its blocks go back, or are kept for reuse, the last one to be evicted first."""
        self._release(self.tables.pop(sequence))
        del self._sequences[sequence]

    def _release(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self.hbm.release(block, keep=self.reuse and self.index.in_hbm(block) is not None)

    def forget(self, blocks: Sequence[int]) -> None:
        """The content of these HBM blocks is lost: nobody may match it any more."""
        for block in blocks:
            node = self.index.in_hbm(block)
            if node is not None:
                self.index.leave_hbm(node)
                if not self.hbm.references(block):
                    self.hbm.evict(block)

    def owners(self, blocks: Sequence[int]) -> list[Hashable]:
        """The sequences that hold any of these blocks."""
        lost = set(blocks)
        return [sequence for sequence, table in self.tables.items() if lost.intersection(table)]

    # ---- moving -----------------------------------------------------------------------------------

    def take_transfers(self) -> list[Transfer]:
        """What is to be moved now, in this order; it counts as done."""
        transfers, self._transfers = self._transfers, []
        for block in reversed(self._waiting_load):  # of a path the end is the first to go
            assert self.dram is not None
            self.dram.release(block, keep=True)
        self._waiting_load.clear()
        return transfers

    # ---- checks -----------------------------------------------------------------------------------

    def check_integrity(self, idle: bool = False) -> None:
        """Check pools, tree and tables against each other.

        Args:
            idle: no sequence may be open, and nothing may be held or wait to be moved.

        Raises:
            InternalError: naming what is broken.
        """
        self.hbm.check_integrity()
        self.index.check_integrity()
        held: dict[int, int] = {}
        for table in self.tables.values():
            for block in table:
                held[block] = held.get(block, 0) + 1
        if held != {block: self.hbm.references(block) for block in self.hbm.held()}:
            raise InternalError("KV cache: block tables and holders disagree")
        for block in self.hbm.kept():
            if self.index.in_hbm(block) is None:
                raise InternalError(f"KV cache: block {block} is kept and is nothing")
        if self.dram is not None:
            self.dram.check_integrity()
        if idle and (self.tables or self._sequences or self._transfers or self.hbm.num_held):
            raise InternalError(f"KV cache: {self.hbm.num_held} blocks are held though nothing is served")


def _in_hbm(node: Node) -> int:
    if node.hbm is None:
        raise InternalError("KV cache: a block is expected in HBM and is not there")
    return node.hbm
