"""The operations that litmus programs are made of: plain data, for the model and for the emulator alike.

Variables and signals are named by strings and hold one 64-bit integer, 0 at first. A rank is named P0, P1, …
(threads) or C, D (homes, which may have a program too).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Order = Literal["none", "relaxed", "strong"]
Outcome = Mapping[str, int]


@dataclass(frozen=True)
class Put:
    """Non-blocking write of `writes` (variable, value), all at one home; then its signal, then its message.

    Attributes:
        signal: (word, "set" or "add", value), placed after the writes of this operation.
        order, complete, fence: order flags of the work request (docs/memory_model.md, section 2).
        queue: the RC queue pair it is posted to; None outside verbs.
        tell: register that receives this operation's place among the completions of its thread, from 0 on.
        notice: immediate data: a message to the home's owner, after the writes.
    """

    writes: tuple[tuple[str, int], ...] = ()
    signal: tuple[str, str, int] | None = None
    order: Order = "none"
    complete: bool = False
    fence: bool = False
    queue: str | None = None
    tell: str | None = None
    notice: int | None = None


@dataclass(frozen=True)
class Get:
    """Read `var` into register `reg`; not blocking: the value is there at the next quiet."""

    reg: str
    var: str
    blocking: bool = True
    queue: str | None = None


@dataclass(frozen=True)
class Fetch:
    """Blocking atomic: `reg` gets the old value. op "add" adds operand, "cas" stores it if old == compare."""

    reg: str
    var: str
    op: Literal["add", "cas"]
    operand: int
    compare: int = 0


@dataclass(frozen=True)
class Fence:
    """Order my puts to each home."""


@dataclass(frozen=True)
class Quiet:
    """Complete everything of mine."""


@dataclass(frozen=True)
class Barrier:
    """Quiet, then meet all threads."""


@dataclass(frozen=True)
class Wait:
    """Wait until my signal word is at least `value` (how "ge") or equals it ("eq")."""

    signal: str
    value: int
    how: Literal["ge", "eq"] = "ge"


@dataclass(frozen=True)
class Load:
    """Read my own variable or signal word now."""

    reg: str
    var: str


@dataclass(frozen=True)
class Local:
    """Read my own variable as of my last observation point."""

    reg: str
    var: str


@dataclass(frozen=True)
class Reset:
    """Set my own signal word to 0 now."""

    signal: str


@dataclass(frozen=True)
class Send:
    """Message to a thread: MPI's order for one pair of ranks, or none of it ("ud")."""

    to: str
    value: int
    how: Literal["mpi", "ud"] = "mpi"


@dataclass(frozen=True)
class Recv:
    """Receive a message (or immediate data) into `reg`; `source` None takes it from anybody."""

    reg: str
    source: str | None = None
    how: Literal["mpi", "ud", "imm"] = "mpi"


Op = Put | Get | Fetch | Fence | Quiet | Barrier | Wait | Load | Local | Reset | Send | Recv
Path = Literal["window", "verbs", "urma", "message"]


@dataclass(frozen=True)
class Litmus:
    """One row of the table: a program, an outcome, and what the table says of it.

    Attributes:
        name: the row's name in docs/memory_model.md.
        threads: rank name to its operations.
        homes: variable or signal to the rank that holds it.
        signals: which of `homes` are signal words.
        outcome: does this outcome (registers, final values, "stuck") show what the row asks about?
        verdict: weak, allowed or forbidden, as in the docs.
        path: how the program is run on the emulator.
    """

    name: str
    threads: Mapping[str, tuple[Op, ...]]
    homes: Mapping[str, str]
    outcome: Callable[[Outcome], bool]
    verdict: Literal["weak", "allowed", "forbidden"]
    signals: frozenset[str] = frozenset()
    path: Path = "window"

    @property
    def ranks(self) -> tuple[str, ...]:
        """Names of the ranks it needs: threads and homes, in the order of their numbers on the emulator."""
        return tuple(sorted({*self.threads, *self.homes.values()}, key=lambda name: (name[0] != "P", name)))
