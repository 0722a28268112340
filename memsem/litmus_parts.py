"""Pieces that litmus programs share: short forms of operations, and predicates over outcomes."""

from __future__ import annotations

from functools import partial
from typing import Any

from memsem.litmus_ops import Fence, Get, Op, Outcome, Put, Quiet

FENCE, QUIET = (Fence(),), (Quiet(),)
Ops = tuple[Op, ...]


def equals(**wanted: int) -> Any:
    """Outcome predicate: all of these registers or variables have these values."""
    return partial(_matches, wanted)


def _matches(wanted: dict[str, int], outcome: Outcome) -> bool:
    return all(outcome[name] == value for name, value in wanted.items())


def some_zero(*names: str) -> Any:
    """Outcome predicate: one of these registers was read as 0."""
    return partial(_any_zero, names)


def _any_zero(names: tuple[str, ...], outcome: Outcome) -> bool:
    return any(outcome[name] == 0 for name in names)


def put(name: str, value: int, **flags: Any) -> Put:
    return Put(((name, value),), **flags)


def reads(first: tuple[str, str], second: tuple[str, str], between: Ops = (), blocking: bool = True) -> Ops:
    """Two gets; non-blocking ones are completed by a quiet at the end."""
    end = () if blocking else QUIET
    return (Get(*first, blocking=blocking), *between, Get(*second, blocking=blocking), *end)
