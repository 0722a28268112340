"""mpi4py's `Group`: an ordered set of ranks, from which communicators are made. Pure; nobody else is asked.

    team = comm.Get_group().Incl([0, 2, 3])
    part = comm.Create_group(team)          # by its members alone; `comm.Create(team)` by all

Source: MPI 4.1, section 7.3. Left out: groups of other worlds and sessions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from memsem.datatypes import UNDEFINED
from memsem.mpi_errors import ERR_ARG, ERR_GROUP, ERR_RANK, failure
from memsem.status import PROC_NULL
from memsem.whole import is_whole

IDENT, CONGRUENT, SIMILAR, UNEQUAL = 0, 1, 2, 3


class Group:
    """An ordered set of ranks of the pod; null without members given.

    Attributes:
        members: numbers in the whole pod, by rank in the group.
    """

    def __init__(self, members: Sequence[int] | None, me: int) -> None:
        self._members, self._me = None if members is None else tuple(members), me

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks' numbers in the pod. Raises: Exception (ERR_GROUP) for the null or a freed group."""
        if self._members is None:
            raise failure(ERR_GROUP, "the group is null or freed", value=None)
        return self._members

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return len(self.members)

    @property
    def rank(self) -> int:
        """My number in it, UNDEFINED if I am not in it."""
        return self.members.index(self._me) if self._me in self.members else UNDEFINED

    def Get_size(self) -> int:
        """Return how many ranks it has."""
        return self.size

    def Get_rank(self) -> int:
        """Return my number in it, UNDEFINED if I am not in it."""
        return self.rank

    def __bool__(self) -> bool:
        return self._members is not None

    def __eq__(self, other: object) -> bool:
        return self._members == other._members if isinstance(other, Group) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._members)

    def Dup(self) -> Self:
        """Return the same ranks once more."""
        return self._of(self.members)

    def Free(self) -> None:
        """Give it up on this rank."""
        self.members  # noqa: B018 (null cannot be freed)
        self._members = None

    free = Free

    def Incl(self, ranks: Sequence[int]) -> Self:
        """Return these ranks of mine as a group, in their order. Raises: ERR_RANK, not mine, or one twice."""
        return self._of([self.members[rank] for rank in self._checked(ranks)])

    def Excl(self, ranks: Sequence[int]) -> Self:
        """Return the group without these ranks of mine. Raises: as `Incl`."""
        out = {self.members[rank] for rank in self._checked(ranks)}
        return self._of([member for member in self.members if member not in out])

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> Self:
        """`Incl` of ranges (first, last, stride), the last one included. Raises: ERR_ARG, a stride of 0."""
        return self.Incl(_spelled(ranks))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> Self:
        """`Excl` of ranges (first, last, stride). Raises: ERR_ARG, a stride of 0."""
        return self.Excl(_spelled(ranks))

    @classmethod
    def Union(cls, group1: Self, group2: Self) -> Self:
        """Return those of the first, then those only of the second."""
        return group1._of([*group1.members, *(m for m in group2.members if m not in group1.members)])

    @classmethod
    def Intersection(cls, group1: Self, group2: Self) -> Self:
        """Return those in both, in the order of the first."""
        return group1._of([member for member in group1.members if member in group2.members])

    @classmethod
    def Difference(cls, group1: Self, group2: Self) -> Self:
        """Return those only of the first."""
        return group1._of([member for member in group1.members if member not in group2.members])

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        """Return the numbers of these ranks of mine in another group; UNDEFINED where it has them not.

        Args:
            ranks: all of mine if None; PROC_NULL stays what it is.
            group: mine if None.
        """
        places = {member: place for place, member in enumerate((group or self).members)}
        asked = range(self.size) if ranks is None else ranks
        self._checked({rank for rank in asked if rank != PROC_NULL})
        return [r if r == PROC_NULL else places.get(self.members[r], UNDEFINED) for r in asked]

    def Compare(self, group: Group) -> int:
        """Return IDENT (same ranks in the same order), SIMILAR (same ranks) or UNEQUAL."""
        if self.members == group.members:
            return IDENT
        return SIMILAR if sorted(self.members) == sorted(group.members) else UNEQUAL

    def _of(self, members: Sequence[int]) -> Self:
        return type(self)(members, self._me)

    def _checked(self, ranks: Sequence[int] | set[int]) -> list[int]:
        found = list(ranks)
        for rank in found:
            if not is_whole(rank) or not 0 <= rank < self.size or found.count(rank) > 1:
                text = f"rank {rank!r}; each of 0 to {self.size - 1} once"
                raise failure(ERR_RANK, text, value=rank)
        return found


def _spelled(ranges: Sequence[tuple[int, int, int]]) -> list[int]:
    ranks: list[int] = []
    for first, last, stride in ranges:
        if not all(map(is_whole, (first, last, stride))) or stride == 0:
            raise failure(ERR_ARG, f"range {(first, last, stride)}: a stride that is not 0", value=stride)
        ranks += range(first, last + (1 if stride > 0 else -1), stride)
    return ranks
