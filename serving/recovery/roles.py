"""Who serves: every living rank has a slot of its own for good, and is *in* (serves) or *out* (a spare).

A rank that is out takes part in the status exchange like all others, so that it knows what they know; it has
no experts, gets no requests and sleeps through the steps. It comes in when a rank dies (a hot spare), or when
somebody wishes it. A wish is made in a step and agreed at the next status exchange: the sign bit of a status
word says that there is one, a second exchange says which; then all do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emulator.faults import NOT_NOW, Fault, Faults, Undo

NO_WISH = 0


class Wish(NamedTuple):
    """A rank is to come in, or to go out."""

    comes: bool
    rank: int

    def encode(self) -> int:
        """As a status word; not `NO_WISH`."""
        return 1 + 2 * self.rank + self.comes


def decode(words: NDArray[np.int64]) -> list[Wish]:
    """The wishes in int64[n] words, each once, in order of rank."""
    given = sorted({int(word) - 1 for word in words if word != NO_WISH})
    return [Wish(bool(word % 2), word // 2) for word in given]


class RolesChanged(Exception):
    """All have agreed on `wishes` at a step's boundary; nothing is under way."""

    def __init__(self, wishes: Sequence[Wish]) -> None:
        super().__init__(wishes)
        self.wishes = tuple(wishes)


@dataclass
class Roles:
    """Who lives and who serves, alike on all ranks.

    Attributes:
        rank: this one. living: ascending. out: those of them that do not serve.
        wishes: what this rank wishes, one at an exchange.
    """

    rank: int
    living: list[int]
    out: set[int] = field(default_factory=set)
    wishes: list[Wish] = field(default_factory=list)

    @property
    def members(self) -> list[int]:
        """Ranks that serve, ascending."""
        return [rank for rank in self.living if rank not in self.out]

    def lose(self, dead: Sequence[int]) -> dict[int, int]:
        """Ranks are gone. Those that served are replaced by spares, the lowest first, as far as there are
        any: {dead: spare}; these are in from now on."""
        served = [rank for rank in dead if rank not in self.out]
        self.living = [rank for rank in self.living if rank not in dead]
        self.out -= set(dead)
        stand_in = dict(zip(served, sorted(self.out), strict=False))
        self.out -= set(stand_in.values())
        return stand_in

    def grant(self, wishes: Sequence[Wish]) -> tuple[list[int], list[int]]:
        """Carry agreed wishes out: (who comes in, who goes out). One that cannot be is passed over: somebody
        is gone, where asked for already, or the last that serves."""
        came, went = [], []
        for wish in wishes:
            if wish.comes and wish.rank in self.out:
                self.out.discard(wish.rank)
                came.append(wish.rank)
            elif not wish.comes and wish.rank in self.members and len(self.members) > 1:
                self.out.add(wish.rank)
                went.append(wish.rank)
        self.wishes = [wish for wish in self.wishes if wish not in wishes]
        return [rank for rank in came if rank not in self.out], [rank for rank in went if rank in self.out]


class RoleFaults:
    """Carries `leave` and `join` out: wishes. A rank that left for a while wishes to come back.

    Args:
        roles: of this rank. faults: its injector.
    """

    def __init__(self, roles: Roles, faults: Faults) -> None:
        self._roles = roles
        faults.on("leave", self._leave)
        faults.on("join", self._join)

    def _leave(self, _: Fault) -> Undo | object:
        roles = self._roles
        if roles.rank not in roles.members or len(roles.members) == 1 or roles.wishes:
            return NOT_NOW
        roles.wishes.append(Wish(False, roles.rank))
        return self._return

    def _return(self) -> None:
        self._roles.wishes.append(Wish(True, self._roles.rank))

    def _join(self, fault: Fault) -> object:
        """The lowest rank that is out comes in; noted by whoever this happens to."""
        roles = self._roles
        if not roles.out or roles.wishes:
            return NOT_NOW
        named = isinstance(fault.rank, int) and fault.rank in roles.out
        roles.wishes.append(Wish(True, int(fault.rank) if named else min(roles.out)))  # type: ignore[arg-type]
        return None


def exchange_wishes(
    exchange: Callable[[int], NDArray[np.int64]], word: int, roles: Roles
) -> NDArray[np.int64]:
    """A status exchange with wishes: words int64[n].

    Raises:
        RolesChanged: somebody wished something, and all know.
    """
    wish = roles.wishes[0] if roles.wishes else None
    words = exchange(word if wish is None else word - (1 << 63))
    if not (words < 0).any():
        return words
    raise RolesChanged(decode(exchange(NO_WISH if wish is None else wish.encode())))
