"""A fault plan: what breaks, where, when and for how long. Data and pure functions only.

    plan = FaultPlan([Fault(kind="freeze", rank=3, at_ps=1_000_000, duration_ps=50_000_000)], seed=7)
    FaultPlan.load("plan.toml").resolve(num_ranks=16, topology=topology)

All times are virtual picoseconds. `"random"` as rank, link or time is drawn from the plan's seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from emulator.errors import UsageError
from emulator.faults.kinds import ALL_STATES, DEADLY, KINDS, fields_of
from emulator.faults.names import choice

if TYPE_CHECKING:
    from emulator.topology import Topology

Random = Literal["random"]
PLANES = 7
"""Planes of the UB fabric (docs: seven L2 sub-planes, published)."""
LINKS = ("die:N", "plane:N/P", "l1:N", "l2:P", "node:N", "nic:N")


class AtRequest(BaseModel):
    """When a request is in a state: at its `count`-th entry into it; without `request`, any
    request's (then the fault names a rank)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    request: int | None = None
    state: str
    count: int = Field(default=1, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _fields(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            choice("field of at_request", name, cls.model_fields)
        return values

    @model_validator(mode="after")
    def _known(self) -> AtRequest:
        choice("state", self.state, ALL_STATES)
        if isinstance(self.request, int) and self.request < 0:
            raise ValueError(f"request {self.request} is negative")
        return self


class Fault(BaseModel):
    """One fault. Fields that its kind does not have are refused (`emulator.faults.kinds.KINDS`).

    Attributes:
        kind: name of the kind.
        rank, link: where. A kind with a rank may leave it out with `at_request`: the rank that serves it.
        at_ps, at_op, at_request: when; exactly one. `at_op` counts the rank's operations from 1.
        within_ps: range of a random time, ps.
        duration_ps: how long; None is to the end of the run.
        factor: slow: price of compute times this; link_degraded: rate divided by it. rate: share of packets,
            0 to 1. blocks: KV blocks lost. period_ps: of a flap, half of it down. delay_ps: of a completion.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    kind: str
    rank: int | Random | None = None
    link: str | None = None
    at_ps: int | Random | None = Field(default=None)
    at_op: int | None = Field(default=None, ge=1)
    at_request: AtRequest | None = None
    within_ps: int | None = Field(default=None, ge=1)
    duration_ps: int | None = Field(default=None, ge=1)
    factor: float | None = Field(default=None, ge=1)
    rate: float | None = Field(default=None, gt=0, le=1)
    blocks: int | None = Field(default=None, ge=1)
    period_ps: int | None = Field(default=None, ge=2)
    delay_ps: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _fields(cls, values: Any) -> Any:
        if isinstance(values, dict) and "kind" in values:
            kind = values["kind"]
            choice("kind", kind, KINDS)
            for name in values:
                choice(f"field of {kind}", name, fields_of(kind))
        return values

    @model_validator(mode="after")
    def _complete(self) -> Fault:
        row, given = KINDS[self.kind], self.model_dump(exclude_none=True)
        for name in row.needed:
            if name not in given:
                raise ValueError(f"{self.kind} needs {name}")
        whens = [name for name in ("at_ps", "at_op", "at_request") if name in given]
        if len(whens) != 1:
            raise ValueError(f"{self.kind} needs one of at_ps, at_op, at_request; it has {len(whens)}")
        by_request = self.at_request is not None and self.at_request.request is not None
        if row.place and row.place not in given and not (row.place == "rank" and by_request):
            raise ValueError(f"{self.kind} needs {row.place}")
        if self.at_op and row.place != "rank":
            raise ValueError(f"{self.kind} is no rank's: give at_ps instead of at_op")
        if isinstance(self.at_ps, int) and self.at_ps < 0:
            raise ValueError(f"at_ps {self.at_ps} is negative")
        if self.duration_ps and not row.lasts:
            raise ValueError(f"{self.kind} has no duration")
        return self

    @property
    def owner(self) -> str:
        """The layer that carries it out."""
        return KINDS[self.kind].owner


class FaultPlan:
    """Faults and the seed that everything random of them is drawn from.

    Args:
        faults: the faults, `Fault` or mappings of its fields.
        seed: of the draws.
        places: where each fault's fields stand, for messages: field -> "file:line", "" for the fault.

    Raises:
        UsageError: what `Fault` refuses.
    """

    def __init__(
        self,
        faults: Iterable[Fault | dict[str, Any]] = (),
        seed: int = 0,
        places: Sequence[Mapping[str, str]] = (),
    ) -> None:
        from emulator.faults.read import make_fault

        made = [f if isinstance(f, Fault) else make_fault(f, f"fault {i}") for i, f in enumerate(faults)]
        self.faults, self.seed, self._places = tuple(made), seed, tuple(places)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FaultPlan) and (self.faults, self.seed) == (other.faults, other.seed)

    def __hash__(self) -> int:
        return hash((self.faults, self.seed))

    @classmethod
    def load(cls, path: str | Path) -> FaultPlan:
        """Read a TOML or (`.json`) JSON file. Raises UsageError with file, line and the nearest name."""
        from emulator.faults.read import read_plan

        return read_plan(path)

    @property
    def kills(self) -> bool:
        """Whether a rank's process may end."""
        return any(fault.kind in DEADLY for fault in self.faults)

    def without(self, index: int) -> FaultPlan:
        """Return the plan without its fault number `index`."""
        return FaultPlan([*self.faults[:index], *self.faults[index + 1 :]], self.seed)

    def resolve(self, num_ranks: int, topology: Topology) -> tuple[Fault, ...]:
        """Draw what is random and check every place against the machine; the same on every rank.

        Raises:
            UsageError: a rank or a link the run does not have; the message names line, fault and nearest
                choice.
        """
        drawn = [_draw(fault, f"{self.seed}:{i}", num_ranks) for i, fault in enumerate(self.faults)]
        for index, fault in enumerate(drawn):
            try:
                _check_place(index, fault, num_ranks, topology)
            except UsageError as error:
                raise UsageError(f"{self.place(index, KINDS[fault.kind].place)}{error}") from None
        return tuple(drawn)

    def place(self, index: int, field: str = "") -> str:
        """Where a fault's field stands, as a message begins: `plan.toml:4: `; empty for plans not read."""
        if index >= len(self._places):
            return ""
        known = self._places[index]
        return f"{known.get(field, known.get('', ''))}: "

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {"seed": self.seed, "fault": [f.model_dump(exclude_none=True) for f in self.faults]}

    def to_toml(self) -> str:
        """Return the plan as a TOML text that `load` reads back."""
        lines = [f"seed = {self.seed}"]
        for fault in self.faults:
            lines += ["", "[[fault]]"]
            lines += [f"{k} = {_toml(v)}" for k, v in fault.model_dump(exclude_none=True).items()]
        return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


DEFAULT_WITHIN_PS = 20_000_000_000
"""Range of a random time where the plan gives none: 20 ms."""


def draw(key: str, limit: int) -> int:
    """Return a number of 0 .. limit - 1 that follows from `key` alone."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little") % limit


def _draw(fault: Fault, key: str, num_ranks: int) -> Fault:
    changes: dict[str, Any] = {}
    if fault.rank == "random":
        changes["rank"] = draw(f"{key}:rank", num_ranks)
    if fault.link == "random":
        changes["link"] = f"die:{draw(f'{key}:link', num_ranks)}"
    if fault.at_ps == "random":
        changes["at_ps"] = draw(f"{key}:at_ps", fault.within_ps or DEFAULT_WITHIN_PS)
    return fault.model_copy(update=changes)


def _check_place(index: int, fault: Fault, num_ranks: int, topology: Topology) -> None:
    if isinstance(fault.rank, int) and not 0 <= fault.rank < num_ranks:
        nearest = min(max(fault.rank, 0), num_ranks - 1)
        raise UsageError(
            f"fault {index} ({fault.kind}): the run has no rank {fault.rank}; nearest: {nearest}"
        )
    if fault.link is not None:
        check_link(index, fault, num_ranks, topology)


def check_link(index: int, fault: Fault, num_ranks: int, topology: Topology) -> None:
    """Refuse a link the run does not have. Raises UsageError."""
    name, _, rest = str(fault.link).partition(":")
    nodes = -(-num_ranks // topology.dies_per_node)
    sizes: dict[str, Sequence[int]] = {
        "die": (num_ranks,),
        "nic": (num_ranks,),
        "plane": (num_ranks, PLANES),
        "l1": (nodes,),
        "node": (nodes,),
        "l2": (PLANES,),
    }
    where = f"fault {index} ({fault.kind}): link {fault.link!r}"
    if name not in sizes:
        near = min(LINKS, key=lambda form: (form.split(":")[0][:1] != name[:1], abs(len(form) - len(name))))
        raise UsageError(f"{where} is not one of {', '.join(LINKS)}; nearest: {near}")
    parts, limits = rest.split("/"), sizes[name]
    if len(parts) != len(limits) or not all(part.isdecimal() for part in parts):
        form = next(form for form in LINKS if form.startswith(f"{name}:"))
        raise UsageError(f"{where} is not of the form {form}")
    nearest = [min(int(part), limit - 1) for part, limit in zip(parts, limits, strict=True)]
    if nearest != [int(part) for part in parts]:
        raise UsageError(f"{where}: the run has none; nearest: {name}:{'/'.join(map(str, nearest))}")
