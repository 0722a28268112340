"""Restart the world: after a rank's death the whole pod starts again with the requests that have not ended.

Pure: what the next round of a run has to serve, under which faults, and from when its clock counts. Requests
that ended before keep their answers; the others are computed again from their prompts, and since a token
is a pure function of request and position, they get the very same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from emulator.faults import Fault, FaultPlan
from serving.request import RequestSpec

LOST = "lost with another rank"
"""How the error of a request begins that may be served again."""


@dataclass(frozen=True)
class Round:
    """One life of the pod: original request ids and fault numbers by position; `start_ps` is its time 0."""

    number: int
    start_ps: int
    requests: tuple[int, ...]
    faults: tuple[int, ...]


@dataclass(frozen=True)
class Ending:
    """How a request ended for good, in original ids and times of the whole run."""

    request: int
    round: int
    rank: int
    tokens: tuple[int, ...]
    times_ps: tuple[int, ...]
    logits_sha256: str
    error: str | None
    aborted: bool = False


def endings_of(
    life: Round, results: Sequence[Mapping[str, Any]], noted: Sequence[Mapping[str, Any]]
) -> list[Ending]:
    """Every final ending of a round, once per rank that tells it.

    Args:
        life: the round.
        results: what the ranks that lived to the end report (`serving.job.read_results`).
        noted: endings noted at their time (`read_endings`); they count for ranks that do not report.
    """
    reported = {result["rank"] for result in results}
    told = [entry for result in results for entry in result["requests"]]
    told += [entry for entry in noted if entry["rank"] not in reported]
    return [_ending(life, entry) for entry in told if _is_final(entry)]


def _is_final(entry: Mapping[str, Any]) -> bool:
    return bool(entry["ends"]) and not (entry["error"] or "").startswith(LOST)


def _ending(life: Round, entry: Mapping[str, Any]) -> Ending:
    times = tuple(life.start_ps + ps for ps in entry["times_ps"])
    request, tokens = life.requests[entry["id"]], tuple(entry["tokens"])
    how = entry["logits_sha256"], entry["error"], entry.get("finish") == "abort"
    return Ending(request, life.number, entry["rank"], tokens, times, *how)


def next_round(life: Round, ended: Sequence[Ending], fired: Sequence[int], down_ps: int) -> Round:
    """The round after a death: what has not ended, what has not fired, from `down_ps` after `life` began.

    Args:
        life: the round that ended.
        ended: its final endings.
        fired: positions in `life.faults` of the faults that fired.
        down_ps: from the round's time 0 to the pod's serving again, ps.
    """
    gone = {ending.request for ending in ended}
    left = tuple(request for request in life.requests if request not in gone)
    faults = tuple(number for i, number in enumerate(life.faults) if i not in set(fired))
    return Round(life.number + 1, life.start_ps + down_ps, left, faults)


def round_specs(life: Round, specs: Sequence[RequestSpec]) -> list[RequestSpec]:
    """The round's requests, with arrivals in its time and ids by position."""
    return [_in_time(life, specs[r], i) for i, r in enumerate(life.requests)]


def _in_time(life: Round, spec: RequestSpec, number: int) -> RequestSpec:
    abort_ps = None if spec.abort_ps is None else max(0, spec.abort_ps - life.start_ps)
    arrival_ps = max(0, spec.arrival_ps - life.start_ps)
    return replace(spec, request_id=number, arrival_ps=arrival_ps, abort_ps=abort_ps)


def round_answers(
    life: Round, answers: Sequence[Mapping[str, Any]] | None
) -> Sequence[Mapping[str, Any]] | None:
    """The reference's answers to the round's requests, with ids by position."""
    if answers is None:
        return None
    by_request = {int(answer["id"]): answer for answer in answers}
    known = [(i, by_request[r]) for i, r in enumerate(life.requests) if r in by_request]
    return [{**answer, "id": i} for i, answer in known]


def round_plan(life: Round, plan: FaultPlan) -> FaultPlan:
    """The round's faults in its time and its request ids. A fault of a request that has ended keeps its
    place, but waits for a request that will not come."""
    return FaultPlan([_moved(life, plan.faults[number]) for number in life.faults], plan.seed)


def _moved(life: Round, fault: Fault) -> Fault:
    changes: dict[str, Any] = {}
    if isinstance(fault.at_ps, int):
        changes["at_ps"] = max(0, fault.at_ps - life.start_ps)
    at = fault.at_request
    if at is not None and at.request is not None:
        there = at.request in life.requests
        number = life.requests.index(at.request) if there else len(life.requests)
        changes["at_request"] = at.model_copy(update={"request": number})
    return fault.model_copy(update=changes)
