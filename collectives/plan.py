"""What a collective is, but for its buffers: its phases in order, and what all ranks must say alike."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from collectives.agreement import FIELDS, Descriptor, mark_of
from collectives.algorithms import Exchange, Flow

if TYPE_CHECKING:
    from collectives.work import Work

_CALLED = struct.Struct(f"<qQq{FIELDS}q")
"""Bytes of a record, mark, balance, descriptor: `called_t` of `emulator/engine/exchange_call.c`."""


class Phase(NamedTuple):
    """What happens before, during and after a stretch of virtual time; None for nothing. `due`: the rank is
    about to wait for its end, and comes to `after` next."""

    flow: Flow
    before: Callable[[Work], None] | None = None
    after: Callable[[Work], None] | None = None
    due: Callable[[Work], None] | None = None


@dataclass(frozen=True)
class Plan:
    """All of a collective but its buffers; calls of one kind share one.

    Attributes:
        descriptor: what is called, with number 0. algorithm: its name.
        phases: in order; their functions are given the work.
        note: for the group's log, (operation, bytes, algorithm, reason).
        disagreement: says who expects other than is sent, when the balance of all is not 0.
        mark: 64-bit hash of what must be equal.
    """

    descriptor: Descriptor
    algorithm: str
    phases: tuple[Phase, ...]
    note: tuple[str, int, str, str]
    disagreement: Callable[[Work], str] | None
    mark: int
    packed: bytes
    """For `Group.enter`; empty where the flows are no plain exchanges."""
    single: bool
    """Whether it is one plain exchange after which nobody spends time alone."""

    @classmethod
    def of(
        cls,
        descriptor: Descriptor,
        algorithm: str,
        phases: list[Phase],
        note: tuple[str, int, str, str],
        disagreement: Callable[[Work], str] | None = None,
    ) -> Plan:
        """Return a plan."""
        mark = mark_of(descriptor)
        plain = [p.flow.plain_bytes for p in phases if isinstance(p.flow, Exchange)]
        packed = b""
        if plain and len(plain) == len(phases) and min(plain) >= 0:
            packed = _CALLED.pack(plain[0], mark, descriptor.balance, *descriptor)
        single = bool(packed) and len(phases) == 1 and not getattr(phases[0].flow, "tail_ps", 0)
        return cls(descriptor, algorithm, tuple(phases), note, disagreement, mark, packed, single)
