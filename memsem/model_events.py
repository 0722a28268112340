"""The events of a litmus program, and which ones an event waits for: section 2 of `docs/memory_model.md`.

One function per rule. Only events of one thread are related; order between threads comes from the search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from memsem.litmus_ops import Fence, Fetch, Get, Litmus, Op, Put, Send

PLACING = frozenset({"place", "signal", "fetch"})
READING = frozenset({"sample", "fetch"})


@dataclass(frozen=True)
class Event:
    """One thing that happens at a home (or, kind "tell", at the poster).

    Attributes:
        thread, step: the operation it belongs to; epoch: fences before it.
        kind: place, signal, sample, fetch, arrive or tell; op: the operation.
        home: rank it happens at; name: variable, word or register it concerns; value: written or sent.
    """

    thread: int
    step: int
    epoch: int
    kind: str
    op: Op
    home: str
    name: str
    value: int = 0


def events_of(litmus: Litmus) -> list[Event]:
    """The events of all threads, each thread's in program order."""
    found: list[Event] = []
    for thread, ops in enumerate(litmus.threads.values()):
        epoch = 0
        for step, op in enumerate(ops):
            epoch += isinstance(op, Fence)
            base = Event(thread, step, epoch, "", op, "", "")
            found += [replace(base, **parts) for parts in _parts(op, litmus)]
    return found


def _parts(op: Op, litmus: Litmus) -> Iterator[dict[str, Any]]:
    """What sets the events of one operation apart, in the order in which they wait for each other."""
    if isinstance(op, Put):
        home = ""
        for name, value in op.writes:
            home = litmus.homes[name]
            yield {"kind": "place", "home": home, "name": name, "value": value}
        if op.signal is not None:
            word, _, value = op.signal
            home = litmus.homes[word]
            yield {"kind": "signal", "home": home, "name": word, "value": value}
        if op.notice is not None:
            yield {"kind": "arrive", "home": home, "value": op.notice}
        if op.tell is not None:
            yield {"kind": "tell", "home": "", "name": op.tell}
    elif isinstance(op, Get):
        yield {"kind": "sample", "home": litmus.homes[op.var], "name": op.var}
    elif isinstance(op, Fetch):
        yield {"kind": "fetch", "home": litmus.homes[op.var], "name": op.var}
    elif isinstance(op, Send):
        yield {"kind": "arrive", "home": op.to, "value": op.value}


def waits_for(later: Event, earlier: Event) -> bool:
    """Must `earlier` have happened before `later` may? Both of one thread, in program order."""
    if later.step == earlier.step:  # a signal after its data, immediate and completion after everything
        return later.kind in ("signal", "arrive", "tell")
    rules = (_fenced, _strong, _queued, _held_by_flag, _told_in_order, _sent_in_order)
    return any(rule(later, earlier) for rule in rules)


def _fenced(later: Event, earlier: Event) -> bool:
    between = later.epoch > earlier.epoch and later.home == earlier.home
    return between and later.kind in PLACING and earlier.kind in PLACING


def _strong(later: Event, earlier: Event) -> bool:
    if not (isinstance(later.op, Put) and isinstance(earlier.op, Put)):
        return False
    both = later.kind in PLACING and earlier.kind in PLACING and later.home == earlier.home
    return both and later.op.order == "strong" and earlier.op.order != "none"


def _queue(event: Event) -> str | None:
    return event.op.queue if isinstance(event.op, Put | Get) else None


def _queued(later: Event, earlier: Event) -> bool:
    """RC: a queue pair's operations happen in order, and so do its completions."""
    if _queue(later) is None or _queue(later) != _queue(earlier):
        return False
    return (later.kind == "tell") == (earlier.kind == "tell")


def _held_by_flag(later: Event, earlier: Event) -> bool:
    if not (isinstance(later.op, Put) and later.op.fence and earlier.kind in READING):
        return False
    return later.op.queue is None or later.op.queue == _queue(earlier)


def _told_in_order(later: Event, earlier: Event) -> bool:
    return later.kind == earlier.kind == "tell" and isinstance(later.op, Put) and later.op.complete


def _sent_in_order(later: Event, earlier: Event) -> bool:
    """MPI: messages of one pair of ranks do not overtake."""
    if not (isinstance(later.op, Send) and isinstance(earlier.op, Send)):
        return False
    return later.op.how == earlier.op.how == "mpi" and later.home == earlier.home
