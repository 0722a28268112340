"""What a campaign of plans has shown: one record a plan, the sums, the coverage matrix, a table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from emulator.faults import ALL_STATES, STATES, FaultPlan
from emulator.faults.kinds import DEADLY
from launch.chaos.history import Answers
from launch.chaos.rounds import PS_PER_S, Served
from serving.job import ReplayJob
from serving.request import RequestSpec

OTHER = "time or operation"
_HEADS = {
    "queued": "que-\nued",
    "prefill": "pre-\nfill",
    "dispatch": "dis-\npatch",
    "combine": "com-\nbine",
    "decode": "de-\ncode",
    "sampling": "samp-\nling",
    "finishing": "fini-\nshing",
    "preemption": "pre-\nempt",
    OTHER: "time\n/ op",
}
_SHARES = (
    "exact_share",
    "plans_with_a_kill",
    "plans_with_two_faults",
    "plans_with_8_in_flight",
    "mean_goodput_lost",
)


def in_flight(served: Served, specs: Sequence[RequestSpec], at_ps: int) -> int:
    """Requests that have arrived and not ended at a time."""
    ends = {e.request: e.times_ps[-1] for e in served.endings if e.times_ps}
    return sum(spec.arrival_ps <= at_ps < ends.get(spec.request_id, at_ps + 1) for spec in specs)


def record(
    served: Served,
    specs: Sequence[RequestSpec],
    answers: Answers,
    violations: Sequence[str],
    calm_ps: int,
    ran: FaultPlan | None = None,
    touched: Mapping[int, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Everything worth keeping of one plan.

    Args:
        served: the run.
        specs: its requests.
        answers: the reference's.
        violations: what did not hold.
        calm_ps: time of the last token without faults.
        touched: requests served without experts they needed; never counted as exact.
        ran: the plan with the times that stand for states (`emulator.faults.generate.timed`).
    """
    faults = served.faults
    for row in faults:
        if row["fired"]:
            row["in_flight"] = in_flight(served, specs, row["fired_ps"])
            row["state"] = _state(served.plan, ran or served.plan, row)
    degraded = {request: dict(facts) for request, facts in (touched or {}).items()}
    equal = [
        e.request
        for e in served.endings
        if e.error is None and not e.aborted and answers.get(e.request) == (e.tokens, e.logits_sha256)
    ]
    aborted = sum(e.aborted for e in served.endings)
    for request, facts in degraded.items():
        facts["as_reference_under_mask"] = request in equal
    exact = sum(request not in degraded for request in equal)
    last = max((e.times_ps[-1] for e in served.endings if e.times_ps), default=0)
    restarts = [_restart(served, number) for number in range(1, len(served.lives))]
    page_faults = [
        e for life in served.lives for result in life.results for e in result.get("page_faults", [])
    ]
    recoveries = [_recovery(life.round.start_ps, entry) for life in served.lives for entry in life.recoveries]
    return {
        "seed": served.plan.seed,
        "plan": served.plan.as_dict(),
        "faults": faults,
        "requests": len(specs),
        "exact": exact,
        "degraded": degraded,
        "failed": sum(e.error is not None for e in served.endings),
        "aborted": aborted,
        "recomputed": sum(len(life.round.requests) for life in served.lives[1:])
        + sum(len(entry["recomputed"]) for entry in (*recoveries, *page_faults)),
        "restarts": restarts,
        "recoveries": recoveries,
        "page_faults": page_faults,
        "last_token_ps": last,
        "goodput_lost": max(0.0, 1 - calm_ps / last) if last else 1.0,
        "trace_sha256": [(life.machine or {}).get("trace_sha256") for life in served.lives],
        "wall_s": round(served.wall_s, 3),
        **served.clock,
        "violations": list(violations),
    }


def _state(plan: FaultPlan, ran: FaultPlan, row: Mapping[str, Any]) -> str | None:
    """The state of the request a fault met; None: it had no such aim, or missed it."""
    when, at_ps = plan.faults[row["fault"]].at_request, ran.faults[row["fault"]].at_ps
    missed = isinstance(at_ps, int) and row["fired_ps"] != at_ps
    return None if when is None or missed else str(when.state)


def _restart(served: Served, number: int) -> dict[str, Any]:
    before, after = served.lives[number - 1], served.lives[number]
    down = before.round.start_ps + (before.down_ps or 0)
    killed = [
        row["fired_ps"]
        for row in served.faults
        if row["fired"] and row["kind"] in DEADLY and row.get("round") == number - 1
    ]
    tokens = [e.times_ps[0] for e in served.endings if e.round == number and e.times_ps]
    first = min(tokens, default=after.round.start_ps)
    return {"killed_ps": min(killed, default=down), "up_ps": after.round.start_ps, "first_token_ps": first}


def _recovery(start_ps: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A recovery in the run's time. silent_ps: of each of `dead`; detected: from the first of them on. Who
    leaves or joins need not be detected."""
    times = {name: start_ps + entry[name] for name in ("found_ps", "declared_ps", "resumed_ps")}
    silent = [start_ps + ps for ps in entry["silent_ps"]]
    spans = {
        "detect_ps": times["declared_ps"] - min(silent, default=times["declared_ps"]),
        "recover_ps": times["resumed_ps"] - times["declared_ps"],
    }
    return {**entry, **times, **spans, "silent_ps": silent}


def coverage(
    records: Sequence[Mapping[str, Any]], kinds: Sequence[str] = (), states: Sequence[str] = STATES
) -> dict[str, dict[str, int]]:
    """Faults that fired, by kind (`kinds` in any case) and by the state of the request they met."""
    table: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    for entry in records:
        for row in entry["faults"]:
            if row["fired"]:
                table.setdefault(row["kind"], Counter())[row.get("state") or OTHER] += 1
    met = {state for counts in table.values() for state in counts}
    columns = [state for state in ALL_STATES if state in states or state in met]
    return {kind: {state: counts[state] for state in (*columns, OTHER)} for kind, counts in table.items()}


def summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The campaign in numbers."""
    requests = sum(r["requests"] - r.get("aborted", 0) for r in records)
    fired = [[row for row in r["faults"] if row["fired"]] for r in records]
    up = [s["first_token_ps"] - s["killed_ps"] for r in records for s in r["restarts"]]
    in_place = [entry for r in records for entry in r["recoveries"]]
    up += [entry["detect_ps"] + entry["recover_ps"] for entry in in_place]
    detect = [entry["detect_ps"] for entry in in_place if entry["dead"]]
    count = max(1, len(records))
    return {
        "plans": len(records),
        "violations": sum(bool(r["violations"]) for r in records),
        "exact_share": sum(r["exact"] for r in records) / max(1, requests),
        "degraded": sum(len(r["degraded"]) for r in records),
        "failed": sum(r["failed"] for r in records),
        "aborted": sum(r.get("aborted", 0) for r in records),
        "recomputed": sum(r["recomputed"] for r in records),
        "plans_with_a_kill": sum(any(f["kind"] in DEADLY for f in rows) for rows in fired) / count,
        "plans_with_two_faults": sum(len(rows) > 1 for rows in fired) / count,
        "plans_with_8_in_flight": sum(any(f["in_flight"] >= 8 for f in rows) for rows in fired) / count,
        "plans_that_never_fired": [r["seed"] for r, rows in zip(records, fired, strict=True) if not rows],
        "restarts": sum(len(r["restarts"]) for r in records),
        "recoveries_in_place": sum(bool(entry["dead"]) for entry in in_place),
        "ranks_left": sum(len(entry["left"]) for entry in in_place),
        "ranks_joined": sum(len(entry["joined"]) for entry in in_place),
        "mean_detection_s": sum(detect) / len(detect) / PS_PER_S if detect else None,
        "longest_detection_s": max(detect) / PS_PER_S if detect else None,
        "mean_recovery_s": sum(up) / len(up) / PS_PER_S if up else None,
        "longest_recovery_s": max(up) / PS_PER_S if up else None,
        "mean_goodput_lost": sum(r["goodput_lost"] for r in records) / count,
        "wall_s_a_plan": sum(r["wall_s"] for r in records) / count,
        **clock_summary(records),
    }


def clock_summary(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the wall clock has kept over all rounds; nothing under the virtual clock."""
    walls = [wall for r in records for wall in r.get("wall", [])]
    if not walls:
        return {}
    kept = [wall["kept"] for wall in walls]
    return {
        "clock": f"wall, 1 s lasts {walls[0]['dilation']:g} s",
        "rounds": len(walls),
        "rounds_trustworthy": sum(k["trustworthy"] for k in kept),
        "largest_error_of_delays": max(k["error"] for k in kept),
    }


def coverage_table(matrix: Mapping[str, Mapping[str, int]]) -> Table:
    """The coverage matrix as a table that fits 80 columns; kinds that have not fired stand below it."""
    columns = list(next(iter(matrix.values()), {OTHER: 0}))
    idle = [kind for kind, counts in matrix.items() if not any(counts.values())]
    table = Table(
        title="faults that fired, by the state of the request they met",
        caption=f"none of: {', '.join(idle)}" if idle else None,
        box=SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("fault", no_wrap=True)
    for column in columns:
        table.add_column(_HEADS.get(column, column), justify="right", no_wrap=True)
    for kind, counts in matrix.items():
        if kind not in idle:
            name = kind.replace("_", "_\n", 1) if len(columns) > len(STATES) + 1 else kind
            table.add_row(name, *(str(counts[column]) for column in columns))
    return table


def least_covered(matrix: Mapping[str, Mapping[str, int]]) -> int:
    """The smallest number of a kind and a state in the matrix."""
    return min((n for counts in matrix.values() for state, n in counts.items() if state != OTHER), default=0)


def summary_table(numbers: Mapping[str, Any]) -> Table:
    """The campaign's numbers as a table."""
    table = Table("of the campaign", "value")
    for name, value in numbers.items():
        table.add_row(name.replace("_", " "), _shown(name, value))
    return table


def _shown(name: str, value: Any) -> str:
    if value is None or value == []:
        return "-" if value is None else "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{100 * value:.1f} %" if name in _SHARES else f"{value:.3f}"
    return str(value)


def replay_command(
    plan: FaultPlan, path: str, job: ReplayJob, num_requests: int, states: Sequence[str] = STATES
) -> str:
    """The command that runs a plan again."""
    what = f"-n {job.num_ranks} --requests {num_requests} --plan {path}"
    if job.recovery is not None:
        beats = job.recovery.period_ps / PS_PER_S, job.recovery.timeout_ps / PS_PER_S
        what += f" --recovery in-place --heartbeat-period {beats[0]:g} --heartbeat-timeout {beats[1]:g}"
        what += f" --spares {job.spares}" if job.spares else ""
        what += {"load": "", "fail": " --no-reload", "mask": " --allow-degraded"}[job.lost_experts]
    what += f" --states {','.join(states)}" if tuple(states) != STATES else ""
    return f"superpod chaos {what}  # seed {plan.seed}"
