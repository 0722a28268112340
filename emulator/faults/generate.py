"""Plans drawn from a seed; pure. Used by `superpod chaos`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emulator.faults.kinds import KILLS, KINDS, STATES
from emulator.faults.plan import AtRequest, Fault, FaultPlan, draw

INJECTED = tuple(name for name, row in KINDS.items() if row.owner == "injector")
"""Kinds that need no layer above the injector."""
SERVED = ("page_fault",)
"""Kinds that serving carries out."""
BEATEN = ("stale_heartbeat",)
"""Kinds that heartbeats carry out: with recovery in place."""
_MS = 1_000_000_000


def generate(
    seed: int,
    num_ranks: int,
    kinds: Sequence[str] = INJECTED,
    num_requests: int = 24,
    in_flight: int = 8,
) -> FaultPlan:
    """Draw a plan of one to three faults.

    The first fault meets a request that has at least `in_flight` others before it, in a state that goes
    round with the seed; half of the first faults are kills where `kinds` has one; a third of the plans
    have more than one fault, and one in eighteen kills again: beside the first, or while the pod recovers.

    Args:
        seed: decides everything.
        num_ranks: ranks of the run.
        kinds: kinds to draw from.
        num_requests: requests of the run.
        in_flight: position of the first request that may be met.
    """
    kills = [kind for kind in kinds if kind in KILLS]
    others = [kind for kind in kinds if kind not in KILLS]
    first_kinds = kills if kills and (not others or seed % 2 == 0) else others
    first = first_kinds[draw(f"{seed}:kind", len(first_kinds))]
    state = STATES[(seed // 2) % len(STATES)]
    faults = [_at_request(f"{seed}:0", first, state, num_requests, in_flight)]
    for number in range(1, 1 + (seed % 3 == 0) + (seed % 9 == 0)):
        pool = kills if kills and (not others or seed % 18 == 0) else others
        kind = pool[draw(f"{seed}:{number}:kind", len(pool))]
        faults.append(_second(f"{seed}:{number}", kind, num_ranks, num_requests, in_flight))
    return FaultPlan(faults, seed)


def _at_request(key: str, kind: str, state: str, num_requests: int, in_flight: int) -> Fault:
    low = min(in_flight, num_requests - 1)
    request = low + draw(f"{key}:request", max(1, num_requests - low))
    count = 1 + draw(f"{key}:count", 3) if state in ("decode", "dispatch", "combine") else 1
    when = AtRequest(request=request, state=state, count=count)
    return Fault(kind=kind, at_request=when, **_own_fields(key, kind))


def _second(key: str, kind: str, num_ranks: int, num_requests: int, in_flight: int) -> Fault:
    """Another fault: at a time, an operation, or a request's state."""
    way = draw(f"{key}:when", 3)
    if KINDS[kind].place == "rank" and way == 0:
        state = STATES[draw(f"{key}:state", len(STATES))]
        return _at_request(key, kind, state, num_requests, in_flight)
    where: dict[str, Any] = {}
    if KINDS[kind].place == "rank":
        where["rank"] = draw(f"{key}:rank", num_ranks)
    elif KINDS[kind].place == "link":
        where["link"] = f"die:{draw(f'{key}:link', num_ranks)}"
    if KINDS[kind].place == "rank" and way == 1:
        return Fault(kind=kind, at_op=1 + draw(f"{key}:op", 60), **where, **_own_fields(key, kind))
    return Fault(kind=kind, at_ps=draw(f"{key}:at", 40) * _MS, **where, **_own_fields(key, kind))


def _own_fields(key: str, kind: str) -> dict[str, Any]:
    """The fields the kind needs, and a duration where it lasts."""
    drawn: dict[str, Any] = {
        "factor": 2.0 + draw(f"{key}:factor", 8),
        "rate": (1 + draw(f"{key}:rate", 10)) / 1000,
        "blocks": 1 + draw(f"{key}:blocks", 4),
        "period_ps": (1 + draw(f"{key}:period", 100)) * 100_000,
        "delay_ps": (1 + draw(f"{key}:delay", 100)) * 10_000_000,
    }
    fields = {name: drawn[name] for name in KINDS[kind].fields}
    if KINDS[kind].lasts:
        fields["duration_ps"] = (1 + draw(f"{key}:duration", 50)) * _MS
    return fields
