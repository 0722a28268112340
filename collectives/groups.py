"""Groups: who takes part in a collective, under numbers of their own, and what they need for it.

    world = Group.world(device)                       # all ranks
    row = world.split(color=me // 4, key=me % 4)      # each rank gets the group of its color
    pair = Group.of(device, [3, 9])                   # called by ranks 3 and 9 alone

A rank may be in several groups at once, and groups may overlap in any way. Making one is local: ranks may
make theirs in any order. At its first collective the members agree on a slot that is free at all of them
(signal words, and an exchange channel while there are any), by messages in a context of the group's own.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from collectives import progress
from collectives.engine_calls import ExchangeTags, exchange_of, words_of
from collectives.meeting import tell_all
from collectives.moves import folder_of, mover_of
from collectives.remote_store import HEAD, RemoteStore
from collectives.store import SharedStore
from emulator import Device
from emulator.board import Board
from emulator.errors import RankLostError, SizeError, StateError, UsageError, misuse
from emulator.staging import MPI_SEGMENTS
from emulator.transport import Area
from memsem.communicator import Communicator
from memsem.endpoint import endpoint_of

if TYPE_CHECKING:
    from collectives.plan import Plan
    from collectives.work import Work

TIMED_PS = 60 * 10**12
"""Time-outs from a minute on are not worth a put to each peer."""
AnyCommunicator = TypeVar("AnyCommunicator", bound=Communicator)
MOST_SLOTS = 16
_FIRST_IDENT = 1 << 30
_LOG = 256


class Space:
    """What the groups of one rank share: slots of signal words and channels, and which of them are taken.

    Collective to make (costs a barrier): the first `Group.world` of all ranks does.
    """

    def __init__(self, device: Device) -> None:
        self.device, self.words = device, words_of(device.num_ranks)
        config = device.config
        self.slots = max(1, min(MOST_SLOTS, config.words_per_rank // 3 // (2 * self.words)))
        self.channels = max(1, (config.channels - 1) // 2)
        shared = device.transport.kind == "shared"  # then the groups' bytes are in files of their own
        self.room = 0 if shared else max(2 * HEAD, config.managed_bytes // 2 // self.slots // 4096 * 4096)
        self.managed, self.first_word, self.first_channel = device.symmetric.carve(
            Area.HEAP if shared else Area.MANAGED, self.slots * self.room, "collective groups",
            words=self.slots * 2 * self.words, channels=self.channels,
        )  # fmt: skip
        self.free = self.unused = (1 << self.slots) - 1
        self.counted = np.zeros(self.slots * 2 * self.words, np.int64)
        """Signals each word has had so far."""
        self.made: dict[tuple[tuple[int, ...], str | None], int] = {}
        self.busy: dict[Group, None] = {}
        """Groups with asynchronous collectives that are not complete."""
        self.epoch = 0
        self.dead: tuple[int, ...] = ()
        """Changes of membership so far, and the ranks that are dead: see `renew`."""
        self.watching = device.config.keep_going
        if self.watching:
            device.subscribe()
        device.beside = lambda condition, timeout_ps: progress.wait(self, condition, timeout_ps)
        self.world = Group(self, tuple(range(device.num_ranks)), "world")
        self.world.take(0)

    @classmethod
    def of(cls, device: Device) -> Space:
        """The rank's space, made at the first call."""
        found = device.library.get(cls)
        if found is None:
            found = device.library[cls] = cls(device)
        assert isinstance(found, Space)
        return found

    def renew(self) -> None:
        """After ranks have died, and all others were told so at one time: all groups made before are over.

        Nothing is under way then, so what my words hold now is what new groups count from, on the slots of
        all but the world.
        """
        if not self.watching:
            return
        lost = self.device.lost()
        epoch = int(lost.max())
        if epoch == self.epoch:
            return
        self.epoch, self.dead = epoch, tuple(np.flatnonzero(lost).tolist())
        self.busy.clear()
        self.free = self.unused = (1 << self.slots) - 2
        self.counted[:] = [self.device.read(self.first_word + word) for word in range(self.counted.size)]


class Group:
    """Some ranks of the machine. Made by `world`, `of` and `split`.

    Attributes:
        members: ranks of the machine, by rank of the group.
        rank, size: my number in it, and how many we are.
        name: for messages and logs.
        timeout_ps: longest a collective may take in virtual time, None for ever; alike on all members. Below
            `TIMED_PS` exchanges are done by puts, which end at the instant; longer ones are noticed when the
            exchange ends.
        apart: choose algorithms as for asynchronous calls for all calls, so that ranks may make a call in
            either way; alike on all members.
        log: the last choices of algorithms, (operation, bytes, algorithm, reason).
    """

    def __init__(self, space: Space, members: tuple[int, ...], name: str, serial: int = 0) -> None:
        self.space, self.device = space, space.device
        self.members, self.name, self.epoch = members, name, space.epoch
        self.rank, self.size = members.index(space.device.rank), len(members)
        self.timeout_ps: int | None = None
        self.apart, self.calls = False, 0
        self.log: deque[tuple[str, int, str, str]] = deque(maxlen=_LOG)
        self.places = np.array(members, np.int32)
        self.nodes: tuple[int, ...] | None = None
        self.plans: dict[Any, Plan] = {}
        """Plans of calls made before, by what they depend on; see `collectives.calls`."""
        self.open: deque[Work] = deque()
        self._slot = self.place = -1
        self._splits, self._serial = 0, serial
        self.comm: Communicator | None = None
        self.exchange_tags: ExchangeTags = exchange_of(space.device)
        self.fold = folder_of(space.device)
        self._store: SharedStore | None = None
        self.prepared = False
        self.enter: Callable[[bytes, int], bool | None] | None = None
        """The compiled entry of collectives, once one has ended: (called, number) -> whether all call the
        same, None if it did nothing. See `Work`."""
        self.quick: Callable[[], int] | None = None
        """A barrier in less code, see `collectives.at_once.meeting`; None before it is made."""
        self.clock: Sequence[int] = ()
        """The rank's virtual time, ps, first; with `enter`."""

    @classmethod
    def world(cls, device: Device) -> Group:
        """Return the group of all ranks (collective at its first call: costs a barrier)."""
        return Space.of(device).world

    @classmethod
    def of(cls, device: Device, members: Sequence[int], name: str | None = None) -> Group:
        """Return a new group. Local; called by each member with the same list, in any order of groups.

        Args:
            members: ranks of the machine, in the order of their numbers in the group.
            name: for messages; by default made of the list. Groups of one list are told apart by their
                names, and those of one name by the order of making.

        Raises:
            SizeError: no members, one twice, one that does not exist, or this rank is none of them.
            RankLostError: one is known to be dead.
        """
        space, text = Space.of(device), None
        space.renew()
        given = np.asarray(members)
        chosen = tuple(given.tolist()) if given.ndim == 1 and given.dtype.kind in "iu" else ()
        if not chosen or len(set(chosen)) != len(chosen):
            text = f"group: members must be different ranks, at least one; got {str(members)[:100]}"
        elif not all(0 <= member < device.num_ranks for member in chosen):
            text = f"group: ranks are 0 to {device.num_ranks - 1}; got {list(chosen)[:20]}"
        elif device.rank not in chosen:
            text = f"group: rank {device.rank} is none of {list(chosen)[:20]}; only members make a group"
        if text is not None:
            raise misuse(SizeError, text, rank=device.rank, now_ps=device.now_ps, value=chosen)
        if not set(chosen).isdisjoint(space.dead):
            raise RankLostError(f"group: ranks {list(space.dead)[:20]} are lost, make it without", space.dead)
        serial = space.made[chosen, name] = space.made.get((chosen, name), 0) + 1
        called = name or f"{zlib.crc32(repr(chosen).encode()):08x}.{serial}"
        return cls(space, chosen, called, serial)

    def split(self, color: int | None, key: int = 0) -> Group | None:
        """Make groups of the members that give the same color (collective over this group).

        Args:
            color: any number, or None to be in no new group.
            key: order within the new group; equal keys keep the order of this one.

        Returns: my new group; None without a color.
        """
        self.check()
        self._splits += 1
        rows = self._gather((color, key), f"split {self._splits}")
        if color is None:
            return None
        chosen = sorted((row[1], place) for place, row in enumerate(rows) if row[0] == color)
        return Group.of(self.device, [self.members[place] for _, place in chosen])

    def meet(self) -> None:
        """Agree with all members on where the group's bytes and signals lie, which its first collective does
        otherwise. Collective.

        Raises: CollectiveTimeoutError, CollectiveMismatchError: some do not come. UsageError: no room left.
        """
        if self._store is None:
            self._store = self._opened_anew()

    def free(self) -> None:
        """Give the slot back; local, when the group's last collective has ended on all members. The world
        stays.

        Raises:
            StateError: operations of it are not complete, and could be.
        """
        if self.open and self.epoch == self.space.epoch:
            raise self.error(StateError, f"group {self.name}: {len(self.open)} operations are not complete")
        if self._slot > 0:
            if self.epoch == self.space.epoch:
                self.space.free |= 1 << self._slot
            self._slot, self._store, self.enter, self.quick = -1, None, None, None
            self.prepared = False
            self.plans.clear()

    def check(self) -> None:
        """Raises: RankLostError, ranks have died since the group was made (under `keep_going`)."""
        self.space.renew()
        if self.epoch != self.space.epoch:
            dead = self.space.dead
            text = f"group {self.name}: ranks {list(dead)[:20]} are lost; the groups made before are over"
            raise RankLostError(f"{text}, make a new one of the living", dead)

    # --- what a collective needs ------------------------------------------------------------------------

    @property
    def store(self) -> SharedStore:
        """The group's published bytes (agrees on a slot at its first use)."""
        if self._store is None:
            self._store = self._opened_anew()
        return self._store

    @property
    def timed(self) -> bool:
        """Whether exchanges are done by puts, to end at a time-out's instant."""
        return self.timeout_ps is not None and self.timeout_ps < TIMED_PS

    @property
    def channel(self) -> int | None:
        """The exchange channel, None if the group has none."""
        return self.space.first_channel + self._slot if self._slot < self.space.channels else None

    def first_word(self, call: int) -> int:
        """Place of the words of a call among the space's."""
        return (2 * self._slot + call % 2) * self.space.words

    def take(self, slot: int) -> None:
        """Use this slot."""
        self._slot = slot
        self.space.free &= ~(1 << slot)
        self.space.unused &= ~(1 << slot)
        if slot and self.channel is not None:
            self.device.open_group(self.channel, self.places)

    def prepare(self) -> None:
        """Have calls enter by compiled code from now on, where that is possible: a first one has ended."""
        self.prepared = True
        compiled, channel, mine = self.device.compiled, self.channel, self.store.mine
        if compiled is not None and channel is not None and mine:
            self.enter, self.place = compiled.entrance(channel, self.size, mine), channel
            self.clock = compiled.clock

    def _opened_anew(self) -> SharedStore:
        if self._slot < 0:
            self._agree()
        job = int(self.device.board.header[Board.HEADER_JOB])
        key = f"{zlib.crc32(repr((self.members, self.name)).encode()):08x}-{self._serial}"
        folder = os.environ.get(MPI_SEGMENTS, "/dev/shm")
        path = f"{folder}/superpod-{job:016x}-group-{key}-{self._slot}"
        if self.device.transport.kind == "shared":
            return SharedStore(path, self.size, self.rank, mover_of(self.device))
        base = self.space.managed + self._slot * self.space.room
        transport = self.device.transport
        return RemoteStore(path, self.members, self.rank, transport, base, self.space.room)

    def _agree(self) -> None:
        """Agree with all members on a slot that is free at all of them."""
        self.check()
        free = unused = -1
        for masks in self._gather((self.space.free, self.space.unused), "slot"):
            free, unused = free & masks[0], unused & masks[1]
        free = unused or free  # given back slots last: others may still be in their last collective
        if not free:
            raise self.error(
                UsageError,
                f"group {self.name}: all {self.space.slots} slots are taken at some rank; free a group or "
                f"raise words_per_rank (now {self.device.config.words_per_rank})",
            )
        self.take((free & -free).bit_length() - 1)

    def _gather(self, mine: Any, what: str) -> list[Any]:
        """What each member says, by rank, through messages of the group's own. Collective."""
        return tell_all(self.communicator(what, Communicator), mine, self.name, self.timeout_ps)

    def communicator(self, what: str, kind: type[AnyCommunicator]) -> AnyCommunicator:
        """Match contexts for messages of this group about `what`, equal on its members."""
        words = repr((self.members, self._serial, self.name, what)).encode()
        return kind(endpoint_of(self.device), _FIRST_IDENT | zlib.crc32(words) >> 2, self.members)

    def error(self, kind: type[UsageError], message: str, value: Any = None) -> UsageError:
        """An error that names this rank and its time."""
        return misuse(kind, message, rank=self.device.rank, now_ps=self.device.now_ps, value=value)
