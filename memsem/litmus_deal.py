"""One litmus program at one seed on one rank: which memory it uses, who is who; and what can run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from memsem.litmus_ops import Barrier, Litmus, Op

SLOTS, NAMES = 32, 8
"""Programs between two clean-ups; most variables and signals of one."""
Found = dict[str, int]


class Stuck(Exception):
    """A wait was not fulfilled within PATIENCE_PS."""


@dataclass
class Deal:
    """One program at one seed on this rank.

    Attributes:
        litmus, seed: which.
        slot: whose memory it uses.
        number: name of a rank to its number.
        found: registers of my thread.
    """

    litmus: Litmus
    seed: int
    slot: int
    number: Mapping[str, int]
    found: Found

    def place(self, name: str) -> int:
        """Index of a variable or signal within window and signal words."""
        return self.slot * NAMES + list(self.litmus.homes).index(name)

    def home(self, name: str) -> int:
        """Rank of a variable or signal."""
        return self.number[self.litmus.homes[name]]

    def thread(self, rank: int) -> tuple[Op, ...]:
        """What a rank runs; a mere home only joins the barriers, which all ranks meet in."""
        named = {self.number[name]: ops for name, ops in self.litmus.threads.items()}
        barriers = tuple(op for op in next(iter(named.values())) if isinstance(op, Barrier))
        return named.get(rank, barriers)


class Machine(Protocol):
    """Executes operations of one path on this rank."""

    def prepare(self, deal: Deal) -> None:
        """Get ready, before the barrier from which all threads start."""
        ...

    def do(self, deal: Deal, op: Op) -> None:
        """Execute one operation; registers go to `deal.found`. Raises Stuck."""
        ...

    def complete(self, deal: Deal) -> None:
        """End the thread: everything complete, late registers filled."""
        ...
