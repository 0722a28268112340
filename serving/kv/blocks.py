"""A pool of blocks: lent, shared by counting, kept for reuse when nobody holds them, evicted when needed.

Every block is in one of three states:

    free      nobody holds it, it contains nothing worth keeping
    held      `references` of it are 1 or more
    kept      nobody holds it, but its content may be asked for again; the longest unused one goes first

A block's *charge* is what it counts against the pool's capacity, in priced tokens. Where a computed token
stands for several priced ones, blocks of a prompt charge more than blocks of an answer.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from emulator.errors import InternalError, UsageError

__all__ = ["BlockPool"]


class BlockPool:
    """Blocks `first`, `first` + 1, … of one memory.

    Args:
        num_blocks: how many there are.
        capacity: most that held and kept blocks may charge together.
        first: number of the first one (0 stands for padding in a cache of pages, which start at 1).

    Attributes:
        allocated, freed: blocks ever lent to a first holder, and given back by their last one.
        evicted: kept blocks that had to go.
    """

    def __init__(self, num_blocks: int, capacity: int, first: int = 1) -> None:
        if num_blocks < 1 or capacity < 1:
            raise UsageError(f"a pool needs a block and a capacity, got {num_blocks} and {capacity}")
        self.num_blocks, self.capacity, self._first = num_blocks, capacity, first
        self._free = deque(range(first, first + num_blocks))
        self._references: dict[int, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._charge: dict[int, int] = {}
        self.charged_held = 0
        self.charged_kept = 0
        self.allocated = self.freed = self.evicted = 0

    @property
    def num_held(self) -> int:
        return len(self._references)

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def references(self, block: int) -> int:
        """How many hold it."""
        return self._references.get(block, 0)

    def has_room(self, charge: int) -> bool:
        """Whether a block that charges so much can be lent, kept ones evicted."""
        room = len(self._free) + len(self._kept) > 0
        return room and self.charged_held + charge <= self.capacity

    def room_for(self, charges: list[int]) -> bool:
        """Whether blocks of these charges can be held besides, kept ones among them or evicted for them."""
        blocks = len(self._free) + len(self._kept)
        return len(charges) <= blocks and self.charged_held + sum(charges) <= self.capacity

    def next_victim(self, charge: int) -> int | None:
        """The kept block that must go before a block of this charge can be lent; None if none must."""
        full = self.charged_held + self.charged_kept + charge > self.capacity
        if self._kept and (full or not self._free):
            return next(iter(self._kept))
        return None

    def alloc(self, charge: int) -> int:
        """Lend a free block. Raises InternalError where `next_victim` should have been evicted first."""
        if not self._free or self.charged_held + self.charged_kept + charge > self.capacity:
            raise InternalError("KV pool: a block is asked for where none is free")
        block = self._free.popleft()
        self._references[block] = 1
        self._charge[block] = charge
        self.charged_held += charge
        self.allocated += 1
        return block

    def share(self, block: int) -> None:
        """One more holder of a held or kept block."""
        if block in self._kept:
            del self._kept[block]
            self._references[block] = 1
            self.charged_kept -= self._charge[block]
            self.charged_held += self._charge[block]
            self.allocated += 1
        else:
            self._references[block] += 1

    def release(self, block: int, keep: bool) -> bool:
        """One holder less; True if it was the last one. The block is then kept, or free."""
        self._references[block] -= 1
        if self._references[block]:
            return False
        del self._references[block]
        self.charged_held -= self._charge[block]
        self.freed += 1
        if keep:
            self._kept[block] = None
            self.charged_kept += self._charge[block]
        else:
            self._give_back(block)
        return True

    def evict(self, block: int) -> None:
        """A kept block becomes free."""
        del self._kept[block]
        self.charged_kept -= self._charge[block]
        self.evicted += 1
        self._give_back(block)

    def charge(self, block: int) -> int:
        """What a held or kept block charges."""
        return self._charge[block]

    def kept(self) -> list[int]:
        """Kept blocks, the longest unused one first."""
        return list(self._kept)

    def held(self) -> list[int]:
        """Blocks somebody holds."""
        return list(self._references)

    def _give_back(self, block: int) -> None:
        del self._charge[block]
        self._free.appendleft(block)  # the warmest memory is used again first

    def check_integrity(self) -> None:
        """Raise InternalError unless every block is in one state and the charges add up."""
        everything = sorted([*self._free, *self._kept, *self._references])
        if everything != list(range(self._first, self._first + self.num_blocks)):
            raise InternalError("KV pool: a block is lost, or in two states at once")
        if min(self._references.values(), default=1) < 1:
            raise InternalError("KV pool: a held block has no holder")
        held = sum(self._charge[block] for block in self._references)
        kept = sum(self._charge[block] for block in self._kept)
        if (held, kept) != (self.charged_held, self.charged_kept) or held + kept > self.capacity:
            raise InternalError(
                f"KV pool: {held} held and {kept} kept are charged, {self.charged_held} and "
                f"{self.charged_kept} counted, of {self.capacity}"
            )
        if self.allocated - self.freed != len(self._references):
            raise InternalError(
                f"KV pool: {self.allocated} lent, {self.freed} given back, {len(self._references)} held"
            )
