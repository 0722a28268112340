"""Plans drawn from a seed; pure. Used by `superpod chaos`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from emulator.faults.kinds import ALL_STATES, KILLS, KINDS, STATES
from emulator.faults.links import LINK_KINDS
from emulator.faults.plan import AtRequest, Fault, FaultPlan, draw

INJECTED = tuple(name for name, row in KINDS.items() if row.owner == "injector")
"""Kinds that need no layer above the injector."""
SERVED = ("page_fault",)
"""Kinds that serving carries out."""
LINKED = tuple(name for name in LINK_KINDS if KINDS[name].place == "link")
"""Kinds of the fabric's links."""
BEATEN = ("stale_heartbeat", "control_death")
"""Kinds of who watches whom: with recovery in place."""
NIC = ("qp_error", "completion_lost", "completion_duplicated", "completion_late", "nic_down", "full_ring")
"""Kinds of the NIC that takes tokens to the front end: with recovery in place."""
TIMED = (*LINK_KINDS, "control_death")
"""Kinds that all ranks have to know the time of: where a plan names a request's state instead, `timed` puts
the time in its place."""
MEMBERS = ("leave", "join")
"""Kinds of who serves: with recovery in place."""
_MS = 1_000_000_000
_SETTLED_PS = 20 * _MS
"""After so long a rank that wants to leave has left: two steps."""
_KILLS_OF = 9, (0, 2, 4, 6)
"""Of so many plans in a row, those whose first fault is a kill."""
_PERIOD = 36
"""After so many plans the numbers of faults repeat."""


class Moment(NamedTuple):
    """A request's `turn`-th entry into a state, as it is in a run without faults.

    ps, rank: when and where; in_flight: requests that had arrived and not ended then.
    """

    ps: int
    rank: int
    request: int
    state: str
    turn: int
    in_flight: int


def generate(
    seed: int,
    num_ranks: int,
    kinds: Sequence[str] = INJECTED,
    num_requests: int = 24,
    in_flight: int = 8,
    moments: Sequence[Moment] = (),
    states: Sequence[str] = STATES,
) -> FaultPlan:
    """Draw a plan of one to five faults.

    Every fault meets a request in a state. In four plans of nine the first is a kill (where `kinds` has one);
    the others go round all pairs of kind and state, one pair after the other from plan to plan, so that any
    run of plans covers them evenly. One plan in eighteen kills once more, at any time: beside the first
    death, or while the pod recovers.

    Args:
        seed: decides everything.
        num_ranks: ranks of the run.
        kinds: kinds to draw from.
        num_requests: requests of the run.
        in_flight: how many requests must be in flight where the first fault strikes.
        moments: of a run without faults; then the first fault is at one of those with enough in flight, the
            others later. Without: the first fault meets a request that has so many others before it.
        states: of requests, to draw from.
    """
    kills = [kind for kind in kinds if kind in KILLS]
    others = _mixed([kind for kind in kinds if kind not in KILLS])
    drawn: list[tuple[str, str]] = []
    if kills and (not others or _begins_with_a_kill(seed)):
        turn = seed // 2
        drawn.append((kills[draw(f"{seed}:kill", len(kills))], states[turn % len(states)]))
    before = sum(_others_of(number) for number in range(seed % _PERIOD))
    before += seed // _PERIOD * sum(map(_others_of, range(_PERIOD)))
    for number in range(before, before + _others_of(seed) if others else before):
        drawn.append((others[number % len(others)], states[number // len(others) % len(states)]))
    drawn.sort(key=_turn)
    places = _Places(num_requests, in_flight, moments)
    faults: list[Fault] = []
    after, left_ps = -1, None
    joins = any(kind == "join" for kind, _ in drawn)
    dies_again = bool(kills) and seed % 18 == 0
    deaths = sum(kind in KILLS for kind, _ in drawn) + dies_again
    for number, (kind, state) in enumerate(drawn):
        if joins and left_ps is None and kind not in TIMED:
            left, left_ps = _leaves(seed, 1 + deaths, states, after, places)
            faults += left
        begin = left_ps if kind == "join" and left_ps is not None else after
        if number == 0 and joins and kind in TIMED:
            moment = places.early(state, after, kind)
        else:
            moment = places.one(f"{seed}:{number}", state, begin, kind)
        after = moment.ps if number == 0 else after
        faults.append(_fault(f"{seed}:{number}", kind, moment))
    if dies_again:
        faults.append(_again(seed, kills, num_ranks, max(0, after)))
    return FaultPlan(faults, seed)


def _leaves(
    seed: int, count: int, states: Sequence[str], after: int, places: _Places
) -> tuple[list[Fault], int]:
    """Faults by which so many ranks leave for good, one after the other, and when the last has left: whoever
    is out replaces the next who dies, and one more has to be out for somebody to join."""
    faults = []
    for turn in range(count):
        moment = places.early(states[(seed + turn) % len(states)], after)
        after = moment.ps + _SETTLED_PS
        fault = _fault(f"{seed}:before{turn or ''}", "leave", moment)
        faults.append(fault.model_copy(update={"duration_ps": None}))
    return faults, after


def timed(plan: FaultPlan, moments: Sequence[Moment]) -> FaultPlan:
    """The plan with times, where a kind of `TIMED` names a request's state; pure.

    A state that no run without faults has keeps its place: the fault never fires.
    """
    at = {(m.request, m.state, m.turn): m for m in moments}
    faults = []
    for fault in plan.faults:
        when = fault.at_request
        if fault.kind in TIMED and when is not None and when.request is not None:
            moment = at.get((when.request, when.state, when.count))
            if moment is not None:
                changes: dict[str, Any] = {"at_ps": moment.ps, "at_request": None}
                if KINDS[fault.kind].place == "rank" and fault.rank is None:
                    changes["rank"] = moment.rank
                fault = fault.model_copy(update=changes)
        faults.append(fault)
    return FaultPlan(faults, plan.seed)


def _mixed(kinds: Sequence[str]) -> list[str]:
    """The same, with kinds that need a time apart from each other as far as can be: a plan has but one first
    fault."""
    timed_ones = [kind for kind in kinds if kind in TIMED]
    others = [kind for kind in kinds if kind not in TIMED]
    share = len(timed_ones) / max(1, len(kinds))
    mixed: list[str] = []
    for number in range(len(kinds)):
        due = round((number + 1) * share) > round(number * share)
        mixed.append((timed_ones if (due or not others) and timed_ones else others).pop(0))
    return mixed


def _turn(pair: tuple[str, str]) -> int:
    """What needs a time comes first: until the first fault the run is the calm one. Who joins has left."""
    return 0 if pair[0] in TIMED else 2 if pair[0] == "join" else 1


def _begins_with_a_kill(seed: int) -> bool:
    return seed % _KILLS_OF[0] in _KILLS_OF[1]


def _others_of(seed: int) -> int:
    """How many faults that are no kills a plan has: one beside a kill, else two; one more in every second."""
    return (1 if _begins_with_a_kill(seed) else 2) + seed % 2


class _Places:
    """Where faults may strike.

    Args: as `generate`.
    """

    def __init__(self, num_requests: int, in_flight: int, moments: Sequence[Moment]) -> None:
        self._num_requests, self._in_flight = num_requests, in_flight
        self._of: Mapping[str, Sequence[Moment]] = {
            state: [m for m in moments if m.state == state] for state in ALL_STATES
        }

    def early(self, state: str, after: int, kind: str = "") -> Moment:
        """The earliest moment of a state, after that time, with enough in flight."""
        known = self._known(state, kind)
        fits = [m for m in known if m.ps > after and m.in_flight >= self._in_flight]
        return min(fits) if fits else self.one("", state, after, kind)

    def _known(self, state: str, kind: str) -> Sequence[Moment]:
        """Moments of a state; those of the control's own rank, which is the lowest, where its death is
        wanted: it dies when it acts next."""
        known = self._of[state]
        lowest = [m for m in known if m.rank == 0] if kind == "control_death" else []
        return lowest or known

    def one(self, key: str, state: str, after: int, kind: str = "") -> Moment:
        """Draw a moment of a state; the first of a plan (`after` < 0) with enough in flight, any other later
        and at a first entry: after a death a request has fewer of them."""
        known = self._known(state, kind)
        if not known:
            low = min(self._in_flight, self._num_requests - 1)
            request = low + draw(f"{key}:request", max(1, self._num_requests - low))
            many = state in ("decode", "dispatch", "combine") and after < 0
            return Moment(0, 0, request, state, 1 + draw(f"{key}:count", 3) if many else 1, 0)
        if after < 0:
            fits = [m for m in known if m.in_flight >= self._in_flight]
        else:
            fits = [m for m in known if m.ps > after and m.turn == 1]
        fits = fits or [max(known, key=lambda m: (m.in_flight if after < 0 else m.ps, -m.turn))]
        return fits[draw(f"{key}:moment", len(fits))]


def _fault(key: str, kind: str, moment: Moment) -> Fault:
    """A fault of a kind at a moment; a link's is one that the request's die uses."""
    when = AtRequest(request=moment.request, state=moment.state, count=moment.turn)
    where: dict[str, Any] = {}
    if KINDS[kind].place == "link":
        links = (f"die:{moment.rank}", f"die:{moment.rank}", f"plane:{moment.rank}/{draw(key, 7)}")
        where["link"] = links[draw(f"{key}:link", len(links))]
    return Fault(kind=kind, at_request=when, **where, **_own_fields(key, kind))


def _again(seed: int, kills: Sequence[str], num_ranks: int, after: int) -> Fault:
    """One more kill, of any rank: soon after the first fault, or in the seconds in which the pod recovers."""
    key = f"{seed}:again"
    span = (40 * _MS, 15_000 * _MS)[draw(f"{key}:when", 2)]
    kind = kills[draw(f"{key}:kind", len(kills))]
    return Fault(kind=kind, rank=draw(f"{key}:rank", num_ranks), at_ps=after + draw(f"{key}:at", span))


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
