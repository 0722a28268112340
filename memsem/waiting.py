"""Waiting for and ending several requests: what the calls of `Request` on lists have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from memsem import mpi_errors
from memsem.datatypes import UNDEFINED
from memsem.mpi_errors import ERR_IN_STATUS, failure
from memsem.status import EMPTY, Status

if TYPE_CHECKING:
    from memsem.request import Request

Statuses = list[Status] | None
NAMED = 4
"""How many calls a report of a deadlock names."""


def active(requests: Sequence[Request]) -> list[int]:
    """Return the indices of those that stand for a communication."""
    return [i for i, request in enumerate(requests) if request.is_active()]


def ended(requests: Sequence[Request]) -> list[int]:
    """Return the indices of those whose communication has ended and that nobody has waited for yet."""
    return [i for i in active(requests) if requests[i].is_ready()]


def wait(requests: Sequence[Request], ready: Callable[[], bool]) -> None:
    """Sleep until `ready`."""
    under_way = [requests[i] for i in active(requests) if not requests[i].is_ready()]
    if under_way and not ready():
        under_way[0].endpoint.wait(ready, calls_of(under_way))


def calls_of(requests: Sequence[Request]) -> str:
    """Name what requests wait for, for a report."""
    calls = [operation.call for r in requests for operation in r.operations if not operation.done]
    more = f" and {len(calls) - NAMED} more" if len(calls) > NAMED else ""
    return ", ".join(calls[:NAMED]) + more


def poll(requests: Sequence[Request], all_: bool = False) -> None:
    """Look once for news, unless the answer is known: one has ended (`all_`: all have)."""
    busy, over = active(requests), ended(requests)
    if busy and (len(over) < len(busy) if all_ else not over):
        requests[busy[0]].endpoint.poll("Test of " + calls_of(requests))


def take_any(requests: Sequence[Request], status: Status | None) -> tuple[int, Any]:
    """End the first that can be; returns its index and object, UNDEFINED and None without one."""
    over = ended(requests)
    if not over:
        (status or Status()).fill(*EMPTY)
        return UNDEFINED, None
    return over[0], requests[over[0]].finish(status)


def take_some(requests: Sequence[Request], statuses: Statuses) -> tuple[list[int] | None, list[Any] | None]:
    """End all that can be; returns their indices and objects, None when none is active."""
    if not active(requests):
        return None, None
    over = ended(requests)
    return over, take(requests, over, statuses)


def take(requests: Sequence[Request], indices: Sequence[int], statuses: Statuses) -> list[Any]:
    """End the requests at `indices`; `statuses` is filled from the start and made long enough.

    Returns:
        What each of them received, in the order of `indices`; None where that is no object.

    Raises:
        Exception: ERR_IN_STATUS, some failed; all are over, and each one's error is in its status.
    """
    things, failed = [], []
    for place, index in enumerate(indices):
        status = Status()
        request, last = requests[index], requests[index].operations[-1:]
        error, thing = request.settle(status)
        status.error = error
        things.append(thing)
        failed += [(request, error, last[0])] if error else []
        if statuses is not None:
            statuses[place : place + 1] = [statuses[place]] if place < len(statuses) else [Status()]
            statuses[place].assign(status)
    if failed:
        request, error, of = failed[0]
        text = f"{failure(ERR_IN_STATUS, '')}{len(failed)} failed, first: {request.failed(error, of)}"
        raise mpi_errors.Exception(text, code=ERR_IN_STATUS, value=len(failed))
    return things
