"""A die that cannot take part in an A2E or E2A, and how all learn of it.

It tells those it would have sent to, they tell theirs, and so it comes home to every attention die. An event
that was given up is over for all of them; the next one works. Who has nothing to do with it any more (an
expert whose outputs are sent) hears nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from collectives.agreement import CollectiveMismatchError
from emulator import Device
from emulator.engine.reports import ranges
from emulator.errors import DeadlockError, UsageError
from emulator.remarks import remark, remarked

_WORD = re.compile(r"word (\d+)")


class GivenUp(Exception):
    """Rank `who` could not take part in the event that was waited for."""

    def __init__(self, who: int) -> None:
        super().__init__(who)
        self.who = who


def give_up(device: Device, word: int, event: int, error: UsageError) -> UsageError:
    """Say why I cannot take part in an event; returns the error as all raise it.

    Args:
        word: the first of the micro-batch.
    """
    remark(device.board, device.rank, _mark(word, event) + error.message)
    return given_up(device, word, event, device.rank)


def given_up(device: Device, word: int, event: int, who: int) -> UsageError:
    """The error of an event in which rank `who` could not take part."""
    said = remarked(device.board, _mark(word, event)).get(who, "a2e: could not take part")
    return UsageError(f"rank {who}: {said}", ranks=[who])


def _mark(word: int, event: int) -> str:
    return f"refused in event {event} of word {word}: "


def explained(
    error: DeadlockError, calls: Mapping[int, str], members: Iterable[int]
) -> CollectiveMismatchError:
    """A deadlock as who is in which call.

    Args:
        calls: of A2E and E2A, by the word they wait for. members: ranks that take part.
    """
    where = dict.fromkeys(members, "in no call of it")
    for waiter in error.fields["waiters"]:
        if waiter["rank"] in where:
            found = _WORD.search(waiter["detail"])
            where[waiter["rank"]] = calls.get(int(found.group(1)) if found else -1, "in another call")
    parts = (
        f"{ranges([r for r in where if where[r] == call])}: {call}" for call in dict.fromkeys(where.values())
    )
    return CollectiveMismatchError(f"a2e: the dies wait in vain: {'; '.join(parts)}; {error.message}")
