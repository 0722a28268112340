"""Who is in a communicator: its ranks, its name, and making new ones from it.

A communicator is a number and a list of ranks of the pod. Two numbers of it are match contexts: one for the
program's messages, one for those by which its ranks agree (`memsem.agreement`), so neither can take the
other's. Ranks agree on the number of a new communicator as the largest that any of them has free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, Self

from emulator.engine.reports import ranges
from memsem import agreement
from memsem.datatypes import UNDEFINED
from memsem.endpoint import CONTEXTS, Endpoint
from memsem.mpi_errors import ERR_ARG, ERR_COMM, ERR_GROUP, ERR_OTHER, ERR_RANK, ERR_TAG, failure
from memsem.mpi_group import CONGRUENT, IDENT, SIMILAR, UNEQUAL, Group
from memsem.status import ANY_SOURCE, ANY_TAG, LARGEST_TAG, PROC_NULL
from memsem.whole import is_whole

COMM_TYPE_SHARED = 0
WORLD_ID, SELF_ID = 0, 1
_LARGEST = (1 << 31) - 1
TAG_UB = 1
"""Key of the attribute that holds the largest tag, see `Communicator.Get_attr`."""


class Communicator:
    """A list of ranks with contexts of their own; null without an endpoint.

    Attributes:
        ident: its number, equal on all its ranks.
        members: its ranks' numbers in the whole pod, by rank.
        name: "" unless set.
    """

    def __init__(self, endpoint: Endpoint | None, ident: int, members: Sequence[int], name: str = "") -> None:
        self._endpoint, self.ident, self.members, self.name = endpoint, ident, tuple(members), name
        self._places = {member: place for place, member in enumerate(self.members)}

    @property
    def endpoint(self) -> Endpoint:
        """This rank's messages. Raises: Exception (ERR_COMM) for the null or a freed communicator."""
        if self._endpoint is None:
            raise failure(ERR_COMM, "the communicator is null or freed", value=None)
        return self._endpoint

    @property
    def context(self) -> int:
        """Match context of the program's messages; the next number is that of agreements."""
        return CONTEXTS | self.ident << 1

    @property
    def rank(self) -> int:
        """My number in it."""
        return self._places[self.endpoint.device.rank]

    @property
    def size(self) -> int:
        """How many ranks it has."""
        self.endpoint  # noqa: B018 (null has no size)
        return len(self.members)

    def Get_rank(self) -> int:
        """Return my number in it."""
        return self.rank

    def Get_size(self) -> int:
        """Return how many ranks it has."""
        return self.size

    def Get_name(self) -> str:
        """Return its name."""
        return self.name

    def Set_name(self, name: str) -> None:
        """Give it a name, on this rank."""
        self.name = name

    def Get_attr(self, keyval: int) -> int | None:
        """Return the largest tag for the key TAG_UB; None for keys that hold nothing."""
        self.endpoint  # noqa: B018 (null has none)
        return LARGEST_TAG if keyval == TAG_UB else None

    def rank_of(self, member: int) -> int:
        """Return the rank here of a rank of the whole pod."""
        return self._places[member]

    def Is_inter(self) -> bool:
        """Return False: there are no inter-communicators."""
        return False

    def Is_intra(self) -> bool:
        """Return True."""
        return True

    def __bool__(self) -> bool:
        return self._endpoint is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Communicator):
            return NotImplemented
        return self is other or (
            self._endpoint is other._endpoint and (not self or self.ident == other.ident)
        )

    def __hash__(self) -> int:
        return hash(self.ident)

    def Compare(self, other: Communicator) -> int:
        """Return IDENT, CONGRUENT (same ranks in the same order), SIMILAR (same ranks) or UNEQUAL."""
        if self == other:
            return IDENT
        if self.members == other.members:
            return CONGRUENT
        return SIMILAR if sorted(self.members) == sorted(other.members) else UNEQUAL

    # --- new ones ---------------------------------------------------------------------------------------

    def Dup(self, info: Any = None) -> Self:
        """Return a communicator of the same ranks whose messages never meet this one's. Collective."""
        number = self._agreed("Dup")[0]
        return self._made(number, self.members)

    def Clone(self) -> Self:
        """As `Dup`."""
        return self.Dup()

    def Split(self, color: int = 0, key: int = 0) -> Self:
        """Return the communicator of those that give my `color`, ordered by `key`, then by rank here.

        Args:
            color: not negative; UNDEFINED for none, which returns the null communicator. Collective.

        Raises:
            Exception: ERR_ARG, a negative color, or what is no number of C's int.
        """
        for name, value, low in (("color", color, 0), ("key", key, -_LARGEST - 1)):
            if not is_whole(value) or not (low <= value <= _LARGEST or value == UNDEFINED):
                raise self._refused(ERR_ARG, f"{name} {value!r}; {low} to {_LARGEST}", value)
        number, rows = self._agreed("Split", color, key)
        mine = sorted((row[1], rank) for rank, row in enumerate(rows) if row[0] == color)
        made = self._made(number, [self.members[rank] for _, rank in mine])
        return type(self)(None, -1, ()) if color == UNDEFINED else made

    def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> Self:
        """Return the communicator of those on my node (COMM_TYPE_SHARED), or null for UNDEFINED. Collective.

        Raises:
            Exception: ERR_ARG, another split type, or a key that is no number of C's int.
        """
        if split_type not in (COMM_TYPE_SHARED, UNDEFINED):
            raise failure(ERR_ARG, f"split type {split_type}: only COMM_TYPE_SHARED", value=split_type)
        device = self.endpoint.device
        return self.Split(device.topology.node_of(device.rank) if split_type != UNDEFINED else UNDEFINED, key)

    def Get_group(self) -> Group:
        """Return its ranks as a group."""
        return Group(self.members, self.endpoint.device.rank)

    def Create(self, group: Group) -> Self:
        """Return the communicator of a group, null for who is not in it. Collective over all ranks here; some
        may pass another group, if the two have no rank in common.

        Raises:
            Exception: ERR_GROUP, no group or one of ranks that are not here.
        """
        self._check_group(group)
        number, _ = self._agreed("Create")
        made = self._made(number, group.members)
        return made if self.endpoint.device.rank in group.members else type(self)(None, -1, ())

    def Create_group(self, group: Group, tag: int = 0) -> Self:
        """As `Create`, collective over the group's ranks alone; null, at once, for others. `tag` is for
        calls of several threads, which a rank has not."""
        self._check_group(group)
        if self.endpoint.device.rank not in group.members:
            return type(self)(None, -1, ())
        own = Communicator(self._endpoint, self.ident, group.members)
        return self._made(own._agreed("Create_group")[0], group.members)

    def _agreed(self, call: str, *mine: int) -> tuple[int, list[tuple[int, ...]]]:
        """The largest number of a communicator that any rank has free, and what each says, by rank.

        Raises: Exception, ERR_OTHER: ranks are in different calls.
        """
        rows = agreement.gather_all(self, (call, self.endpoint.next_id, *mine))
        if len({row[0] for row in rows}) > 1:
            calls = ((name, [self.members[r] for r, row in enumerate(rows) if row[0] == name])
                     for name in dict.fromkeys(row[0] for row in rows))  # fmt: skip
            said = "; ".join(f"{ranges(sorted(ranks))}: {name}" for name, ranks in calls)
            raise self._refused(ERR_OTHER, f"the ranks are not in the same call: {said}", call)
        return max(row[1] for row in rows), [tuple(row[2:]) for row in rows]

    def _check_group(self, group: Group) -> None:
        if not isinstance(group, Group) or not group:
            raise self._refused(ERR_GROUP, f"{group!r} is no group", group)
        if strangers := sorted(set(group.members) - set(self.members)):
            raise self._refused(ERR_GROUP, f"ranks {strangers} of the pod are not in it", strangers)

    def _made(self, number: int, members: Sequence[int]) -> Self:
        self.endpoint.next_id = number + 1
        return type(self)(self.endpoint, number, members)

    def Free(self) -> None:
        """Give it up on this rank; what is under way goes on.

        Raises:
            Exception: ERR_COMM for the null communicator and the two predefined ones.
        """
        if not self or self.ident in (WORLD_ID, SELF_ID):
            raise failure(ERR_COMM, "only a communicator made by Dup or Split is freed", value=self.ident)
        self._endpoint = None

    free = Disconnect = Free

    # --- together ---------------------------------------------------------------------------------------

    def Barrier(self) -> None:
        """Wait until all its ranks are here. Says nothing of puts and gets under way (that is `quiet`)."""
        agreement.meet(self)

    barrier = Barrier

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the run on every rank, with this exit code."""
        self.endpoint.device.transport.abort(errorcode)

    # --- checks -----------------------------------------------------------------------------------------

    def _check_dest(self, dest: int, tag: int) -> None:
        self._check_rank(dest, PROC_NULL)
        if not is_whole(tag) or not 0 <= tag <= LARGEST_TAG:
            raise self._refused(ERR_TAG, f"tag {tag!r}; tags are 0 to {LARGEST_TAG}", tag)

    def _check_source(self, source: int, tag: int) -> None:
        self._check_rank(source, PROC_NULL, ANY_SOURCE)
        if not is_whole(tag) or (tag != ANY_TAG and not 0 <= tag <= LARGEST_TAG):
            raise self._refused(ERR_TAG, f"tag {tag!r}; tags are 0 to {LARGEST_TAG}, or ANY_TAG", tag)

    def _check_rank(self, rank: int, *others: int) -> None:
        if not is_whole(rank) or (not 0 <= rank < self.size and rank not in others):
            raise self._refused(ERR_RANK, f"rank {rank!r}; ranks are 0 to {self.size - 1}", rank)

    def _refused(self, code: int, detail: str, value: Any) -> BaseException:
        device = self.endpoint.device
        return failure(code, detail, rank=device.rank, now_ps=device.now_ps, value=value)
