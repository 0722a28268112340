"""What faulty links do to one operation: when it gets through, how often it was sent, or that it never does.

Pure. A link is down, slower or lossy for a time. An operation that finds a link on its way down, or is lost,
is sent again at the ticks of a ladder; after the last retry has had its time-out too, the poster gives up.

    sent at t, t + w1, t + w1 + w2, ..., t + w1 + .. + wR; given up at t + w1 + .. + wR + wR

Links: `die:N` and `node:N` carry all UB traffic to and from them, `nic:N` all of plane RDMA; `plane:N/P`,
`l1:N` (one switch of the node) and `l2:P` (pod-distant traffic only) are one of seven planes over which
traffic is spread anew at once, so what one of them lacks is a seventh of the rate. Traffic within a die
crosses no link.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from emulator.faults.plan import Fault
from emulator.topology import LinkClass, Topology

LINK_KINDS = ("link_down", "link_degraded", "link_flap", "loss", "corruption", "nic_down")
UB, RDMA = 0, 1
_WHOLE = ("die", "node", "nic")


@cache
def numbers() -> dict[str, int]:
    """Return the values of `ladder.toml`, where unit and source of each stand."""
    rows: dict[str, Any] = tomllib.loads((Path(__file__).parent / "ladder.toml").read_text())
    return {name: int(row["value"]) for name, row in rows.items()}


def ub_ladder() -> tuple[int, ...]:
    """Return UB's waits before each retry, ps."""
    n = numbers()
    return tuple(n["first_us"] * 1_000_000 * n["factor"] ** k for k in range(n["retries"]))


class Passage(NamedTuple):
    """How an operation gets through.

    Attributes:
        start_ps: when it leaves for good, or when the poster gives up.
        retries: how often it was sent again.
        failed: it was given up.
        slower: by what its time at the link is multiplied.
    """

    start_ps: int
    retries: int
    failed: bool
    slower: Fraction


@dataclass(frozen=True)
class LinkFault:
    """One link fault of a plan.

    Attributes:
        index: its number in the plan, which its draws depend on.
        name, numbers: the link, as ("plane", (5, 3)).
        begin_ps, end_ps: when it holds, begin <= t < end; `end_ps` None is for ever.
    """

    index: int
    kind: str
    name: str
    numbers: tuple[int, ...]
    begin_ps: int
    end_ps: int | None
    factor: Fraction = Fraction(1)
    rate: float = 0.0
    period_ps: int = 0

    def holds(self, t: int) -> bool:
        """Whether it is under way at `t`."""
        return self.begin_ps <= t and (self.end_ps is None or t < self.end_ps)

    def is_down(self, t: int) -> bool:
        """Whether the link carries nothing at `t`; a flapping one begins down, for half of each period."""
        if not self.holds(t):
            return False
        if self.kind == "link_flap":
            return (t - self.begin_ps) % self.period_ps < self.period_ps - self.period_ps // 2
        return self.kind in ("link_down", "nic_down")

    def lacks(self, t: int) -> Fraction:
        """Which share of the link's rate is missing at `t`."""
        if self.is_down(t):
            return Fraction(1)
        return 1 - 1 / self.factor if self.holds(t) else Fraction(0)

    def crossed(self, a: int, b: int, plane: int, topology: Topology) -> bool:
        """Whether traffic between two dies on a plane of the fabric goes over the link."""
        distance, number = topology.link_class(a, b), self.numbers[0]
        if distance == LinkClass.SELF or plane != (RDMA if self.name == "nic" else UB):
            return False
        if self.name in ("die", "nic", "plane"):
            return number in (a, b)
        if self.name == "l2":
            return distance == LinkClass.POD
        nodes = topology.node_of(a), topology.node_of(b)
        # what stays within a node crosses its L1 switches, but does not leave the node
        within = nodes[0] == nodes[1]
        return number in nodes and (not within or (self.name == "l1" and distance == LinkClass.NODE))

    @property
    def is_whole(self) -> bool:
        """Whether it is all of a place's links, not one of its seven planes."""
        return self.name in _WHOLE

    @property
    def plane_key(self) -> object:
        """The plane it is, so that two faults of one plane are not counted twice."""
        return self.numbers[-1] if self.name in ("plane", "l2") else 0


def link_faults(plan: Sequence[Fault]) -> tuple[LinkFault, ...]:
    """Return the link faults of a resolved plan that begin at a virtual time."""
    made = []
    for index, fault in enumerate(plan):
        if fault.kind not in LINK_KINDS or not isinstance(fault.at_ps, int):
            continue
        link = fault.link or f"nic:{fault.rank}"
        name, _, rest = link.partition(":")
        end = None if fault.duration_ps is None else fault.at_ps + fault.duration_ps
        places = tuple(int(part) for part in rest.split("/"))
        factor = Fraction(fault.factor or 1)
        made.append(
            LinkFault(
                index,
                fault.kind,
                name,
                places,
                fault.at_ps,
                end,
                factor,
                fault.rate or 0.0,
                fault.period_ps or 0,
            )
        )
    return tuple(made)


def is_lost(fault: LinkFault, t: int, rank: int, number: int, turn: int, seed: int) -> bool:
    """Whether sending number `turn` of a rank's operation is lost or damaged: a draw from these alone."""
    if fault.kind not in ("loss", "corruption") or not fault.holds(t):
        return False
    share = fault.rate if fault.is_whole else fault.rate / numbers()["planes"]
    text = f"{seed},{fault.index},{rank},{number},{turn}".encode()
    drawn = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return drawn < int(share * (1 << 64))


def slower(faults: Sequence[LinkFault], t: int) -> Fraction | None:
    """Return by what time at links that are crossed is multiplied at `t`; None: nothing gets through."""
    times, missing = Fraction(1), dict[object, Fraction]()
    for fault in faults:
        lacks = fault.lacks(t)
        if not fault.is_whole:
            missing[fault.plane_key] = max(missing.get(fault.plane_key, Fraction(0)), lacks)
        elif lacks == 1:
            return None
        else:
            times /= 1 - lacks
    share = 1 - sum(missing.values(), Fraction(0)) / numbers()["planes"]
    return times / share if share > 0 else None


def passage(
    faults: Sequence[LinkFault], t: int, ladder: Sequence[int], rank: int, number: int, seed: int
) -> Passage:
    """Say how an operation that is first sent at `t` gets through.

    Args:
        faults: those of links it crosses.
        ladder: ps before each retry.
        rank, number: who sends it, and its number there: what loss is drawn from.
    """
    for turn in range(len(ladder) + 1):
        times = slower(faults, t)
        if times is not None and not any(is_lost(f, t, rank, number, turn, seed) for f in faults):
            return Passage(t, turn, False, times)
        t += ladder[min(turn, len(ladder) - 1)] if ladder else 0
    return Passage(t, len(ladder), True, Fraction(1))
