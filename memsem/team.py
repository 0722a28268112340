"""Teams: some of the ranks under numbers of their own, with a barrier among them.

    world = Team.world(device)                        # all ranks
    row = world.split(color=me // 4, key=me % 4)      # each rank gets the team of its color
    window = Window.create(shape, team=row)           # ranks of its calls are the row's

A split is made by all members of the team that is split. Each team has signal words of its own that no other
team of any of its members uses, also where teams overlap: its members agree on a block that is free at all of
them (pytorch/pytorch #192581: pads shared between groups).

Source: OpenSHMEM 1.5, 9.4; the barrier is a dissemination barrier, ceil(log2 n) rounds of one signal each.
"""

from __future__ import annotations

import numpy as np

from emulator import Device
from emulator.errors import SizeError, StateError, UsageError, misuse
from memsem.operations import Operations
from memsem.whole import is_whole
from memsem.window import Window

BLOCKS = 62
"""Teams a rank can be in at a time, the world included; free ones are the bits of one word."""
NO_TEAM = -1
_LARGEST = (1 << 31) - 1
_COLOR, _KEY, _FREE, _CALL = range(4)


def rounds_of(size: int) -> int:
    """Rounds of a dissemination barrier of `size` ranks."""
    return max(size - 1, 0).bit_length()


def members_of(rows: list[tuple[int, int]], members: tuple[int, ...], color: int) -> tuple[int, ...]:
    """Who is in the new team of `color`: by key, then by rank in the team that is split.

    Args:
        rows: (color, key) of each member of the old team.
        members: the old team.
    """
    chosen = sorted((key, at) for at, (c, key) in enumerate(rows) if c == color)
    return tuple(members[at] for _, at in chosen)


class World:
    """What the teams of one rank share: a table for splits, signal words, which blocks of them are taken."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.words = rounds_of(device.num_ranks) + 1
        self.blocks = max(2, min(BLOCKS, device.config.words_per_rank // 4 // self.words))
        self.table = Window.create(
            (device.num_ranks, 4), np.int64, signals=self.blocks * self.words, device=device
        )
        self.free = (1 << self.blocks) - 1
        self.counts = np.zeros(self.blocks * self.words, np.int64)
        """Signals that each word has had so far."""
        self.team = Team(self, tuple(range(device.num_ranks)), 0)


class Team:
    """A team of ranks. Made by `Team.world` and the splits.

    Attributes:
        members: the machine's ranks, in the team's order.
        rank: my number in the team. size: how many we are.
    """

    def __init__(self, world: World, members: tuple[int, ...], block: int) -> None:
        self._world, self.members, self._block = world, members, block
        self._first = block * world.words
        self.rank, self.size = members.index(world.device.rank), len(members)
        world.free &= ~(1 << block)
        self._closed = False

    @classmethod
    def world(cls, device: Device) -> Team:
        """Return the team of all ranks (collective at its first call: costs a barrier)."""
        ops = Operations.of(device)
        if ops.world is None:
            ops.world = World(device)
        return ops.world.team

    # --- numbers ----------------------------------------------------------------------------------------

    def translate(self, rank: int, other: Team) -> int | None:
        """Number in `other` of the member that is `rank` here; None if it is not in `other`.

        Raises:
            SizeError: no such rank here.
        """
        if not is_whole(rank) or not 0 <= rank < self.size:
            raise self._error(SizeError, f"team: no rank {rank}; ranks are 0 to {self.size - 1}", rank)
        member = self.members[rank]
        return other.members.index(member) if member in other.members else None

    def _error(self, kind: type[UsageError], message: str, value: object) -> UsageError:
        device = self._world.device
        return misuse(kind, message, rank=device.rank, now_ps=device.now_ps, value=value)

    # --- splits -----------------------------------------------------------------------------------------

    def split(self, color: int | None, key: int = 0) -> Team | None:
        """Make teams of the members that give the same color (collective over this team).

        Args:
            color: 0 or more, or None to be in no new team.
            key: order within the new team; equal keys keep the order of this one.

        Returns: my new team; None without a color.

        Raises:
            SizeError: negative color. StateError: no signal words are left, or the team is freed.
        """
        if color is not None and not (is_whole(color) and 0 <= color <= _LARGEST):
            raise self._error(SizeError, f"team: a color is 0 or more, or None; got {color!r}", color)
        if not is_whole(key) or abs(key) > _LARGEST:
            raise self._error(SizeError, f"team: a key is a whole number within {_LARGEST}; got {key!r}", key)
        mine = NO_TEAM if color is None else color
        rows = self._exchange(mine, key, 0)
        return self._made(rows, members_of([(r[_COLOR], r[_KEY]) for r in rows], self.members, mine), mine)

    def split_strided(self, start: int, stride: int, size: int) -> Team | None:
        """Make a team of members start, start + stride, ... (collective over this team, equal arguments).

        Returns: the new team; None to those that are not in it.

        Raises:
            SizeError: members that are not here, or ranks that give different arguments.
        """
        if not all(map(is_whole, (start, stride, size))):
            message = f"team: start, stride and size are whole numbers, got {(start, stride, size)}"
            raise self._error(SizeError, message, (start, stride, size))
        last = start + stride * (size - 1)
        if size < 1 or stride == 0 or not (0 <= start < self.size and 0 <= last < self.size):
            message = f"team: {size} ranks from {start} in steps of {stride} are not within {self.size}"
            raise self._error(SizeError, message, (start, stride, size))
        chosen = range(start, last + (1 if stride > 0 else -1), stride)
        color = 0 if self.rank in chosen else NO_TEAM
        key = chosen.index(self.rank) if color == 0 else 0
        call = hash((start, stride, size)) & 0x7FFFFFFFFFFFFFFF
        rows = self._exchange(color, key, call)
        if any(row[_CALL] != call for row in rows):
            other = next(at for at, row in enumerate(rows) if row[_CALL] != call)
            message = f"team: split_strided{(start, stride, size)} here, other arguments at rank {other}"
            raise self._error(SizeError, message, (start, stride, size))
        return self._made(rows, members_of([(r[_COLOR], r[_KEY]) for r in rows], self.members, 0), color)

    def _exchange(self, color: int, key: int, call: int) -> list[list[int]]:
        """What all members give: rows (color, key, free blocks, call), by rank of this team."""
        self._check_open()
        world, table = self._world, self._world.table
        row = np.array([color, key, world.free, call], np.int64)
        count, me = self.size, world.device.rank
        word = self._first + world.words - 1
        ones = np.ones(count, np.int64)
        table.put_batch(
            self.members, np.tile(row, count), ones * 4 * me, ones * 4, signals=word, values=1, op="add"
        )
        world.counts[word] += count
        table.signal_wait_until(word, "ge", int(world.counts[word]))
        return table.local[list(self.members)].tolist()  # type: ignore[no-any-return]

    def _made(self, rows: list[list[int]], members: tuple[int, ...], color: int) -> Team | None:
        free = -1
        for row in rows:
            free &= row[_FREE]
        self.sync()  # all have read the table
        if not free:
            taken = self._world.blocks
            message = f"team: all {taken} blocks of signal words are taken at some rank; free a team"
            raise self._error(StateError, message, taken)
        block = (free & -free).bit_length() - 1
        return None if color == NO_TEAM else Team(self._world, members, block)

    # --- meeting ----------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Wait until all members are here. Completes nothing. Blocks."""
        self._check_open()
        world = self._world
        for step in range(rounds_of(self.size)):
            word = self._first + step
            peer = self.members[(self.rank + (1 << step)) % self.size]
            world.table.signal_add(peer, word, 1)
            world.counts[word] += 1
            world.table.signal_wait_until(word, "ge", int(world.counts[word]))

    def barrier(self) -> None:
        """Complete everything I have posted, then wait for all members. Blocks.

        Completion: what any member posted before is in its target's memory.
        """
        self._world.table.quiet()
        self.sync()

    def free(self) -> None:
        """Give the team's signal words back (collective over the team). The world stays.

        Raises:
            StateError: it is the world, or freed already.
        """
        if self is self._world.team:
            raise self._error(StateError, "team: the world is never freed", 0)
        self.barrier()
        self._world.free |= 1 << self._block
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise self._error(StateError, "team: it has been freed", self._block)
