"""From the ranks' measured steps to one result: published, emulated and error, with every input named.

Sources of the published column: arXiv 2508.02520v6 section 7.1 (iteration, bubble, acceptance, kernel shares
of Fig 20 and its table of dispatch and combine). Only the published case (288 dies, 60 sequences each, the
MTP layer) has that column; any other is measured with the same parameters and stands alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from emulator.errors import InternalError
from emulator.profile import Profile
from serving.decode.settings import WARM_STEPS, DecodePlan
from serving.exchange_price import LIBRARY
from serving.price_tables import COMBINE, DISPATCH, PUBLISHED_ITERATION_MS, PUBLISHED_SHARES

PUBLISHED_US: Final = {DISPATCH: (234.0, 185.0, 1231.0), COMBINE: (312.0, 165.0, 2939.0)}
"""Average, minimum and maximum of a call."""
PUBLISHED_PAIRS: Final = 61
PUBLISHED_TPOT_MS, PUBLISHED_TOKENS_PER_CHIP_S = 50.0, 2400.0
ITERATION_BOUND, BOUND = 0.05, 0.10
MAX_OVER_MIN: Final = (3.0, 15.0)
_PUBLISHED_CASE: Final = ("cloudmatrix384", "deepseek-r1", 288, 60, 2, True)
_PUBLISHED_CONTEXT: Final = (2900, 3250)
"""Mean tokens of context that count as the published "about 3K"."""
_US, _MS, _S = 1e6, 1e9, 1e12

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """One figure. bound: largest error allowed, in percent, or None where nothing is asked; within: whether
    it is met."""

    name: str
    published: float | None
    emulated: float
    unit: str
    error_pct: float | None
    bound_pct: float | None
    within: bool | None


@dataclass(frozen=True)
class Measured:
    """Measured steps of all ranks, ps: [ranks, steps] each, calls [ranks, steps, calls of a step].

    period: between the ends of two steps, the bubble taken off. kernels: mean of a rank and step.
    """

    period: Int64
    jitter: Int64
    dispatch: Int64
    dispatch_wait: Int64
    combine: Int64
    combine_wait: Int64
    expert_rows: Int64
    kernels: dict[str, float]


def measured(results: Sequence[Mapping[str, Any]], bubble_ps: int) -> Measured:
    """Put the ranks' steps together; the first `WARM_STEPS` only start the clock."""
    steps = [result["decode"] for result in results]
    if len({len(s) for s in steps}) != 1:
        raise InternalError("ranks measured different numbers of steps")

    def table(name: str) -> Int64:
        return np.array([[step[name] for step in rank] for rank in steps], dtype=np.int64)

    ends = table("end_ps")
    rest = {
        name: table(f"{name}_ps")[:, WARM_STEPS:]
        for name in ("jitter", "dispatch", "dispatch_wait", "combine", "combine_wait")
    }
    names = sorted({name for rank in steps for step in rank for name in step["kernels"]})
    kernels = {
        name: float(np.mean([[step["kernels"][name] for step in rank[WARM_STEPS:]] for rank in steps]))
        for name in names
    }
    period = np.diff(ends, axis=1)[:, WARM_STEPS - 1 :] - bubble_ps
    return Measured(period, **rest, expert_rows=table("expert_rows")[:, WARM_STEPS:], kernels=kernels)


def result_of(plan: DecodePlan, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Everything that follows from configuration and seed; the caller adds `host`."""
    bubble_ps = plan.priced.step_overhead_ps
    found = measured(results, bubble_ps)
    options = plan.job.decode
    assert options is not None
    rows = figures(plan, found, is_published_case(plan))
    calls = found.dispatch.shape[2]
    return {
        "rows": [asdict(row) for row in rows],
        "within_bounds": all(row.within is not False for row in rows),
        "case": {
            "ranks": plan.job.num_ranks,
            "batch": plan.job.max_seqs,
            "sequences": len(plan.specs),
            "rows_per_sequence": options.queries,
            "context_mean": _mean_context(plan),
            "token_scale": plan.job.token_scale,
            "priced_as": plan.priced.name,
            "profile": plan.job.profile,
            "jitter": options.jitter,
            "seed": plan.job.seed,
            "steps": plan.steps,
            "dispatch_calls": calls,
            "combine_calls": found.combine.shape[2],
        },
        "calls": {name: _call_facts(t, w) for name, t, w in _calls(found)},
        "accounts_ms": _accounts(found),
        "imbalance": _imbalance(found),
        "conflicts": [_pairs_conflict(calls)],
        "inputs": inputs(plan),
    }


def is_published_case(plan: DecodePlan) -> bool:
    """Whether a measurement is of what was published, so that its figures are held against it."""
    job, options = plan.job, plan.job.decode
    assert options is not None
    case = (job.profile, plan.priced.name, job.num_ranks, job.max_seqs, options.queries, options.mtp)
    low, high = _PUBLISHED_CONTEXT
    return case == _PUBLISHED_CASE and low <= _mean_context(plan) <= high


def _mean_context(plan: DecodePlan) -> float:
    return float(np.mean([spec.priced_prompt for spec in plan.specs]))


def figures(plan: DecodePlan, found: Measured, is_published: bool) -> list[Row]:
    """The figures of an iteration, held against the published ones where the case is theirs."""
    iteration = float(found.period.mean()) / _MS
    bubble = plan.priced.step_overhead_ps / _MS
    acceptance = float(plan.priced.entries.value("decode.acceptance")) if _has_draft(plan) else 0.0
    tpot = (iteration + bubble) / (1 + acceptance)
    dies = plan.profile.integer("pod.dies_per_chip")
    speed = dies * plan.job.max_seqs * 1000 / tpot

    def row(name: str, value: float, unit: str, published: float | None, bound: float | None) -> Row:
        return _row(name, value, unit, published if is_published else None, bound)

    rows = [
        row("iteration", iteration, "ms", PUBLISHED_ITERATION_MS, ITERATION_BOUND),
        row("time per output token", tpot, "ms", PUBLISHED_TPOT_MS, None),
        row("tokens per second and chip", speed, "1/s", PUBLISHED_TOKENS_PER_CHIP_S, None),
    ]
    times = found.kernels | {name: float(t.sum(axis=2).mean()) for name, t, _ in _calls(found)}
    for name, share in PUBLISHED_SHARES.items():
        value = 100 * times.get(name, 0.0) / (iteration * _MS)
        rows.append(row(f"share of {name}", value, "%", share, BOUND))
    for name, t, _ in _calls(found):
        average, least, most = (float(x) / _US for x in (t.mean(), t.min(), t.max()))
        published = PUBLISHED_US[name]
        rows.append(row(f"{name} average", average, "us", published[0], BOUND))
        rows.append(row(f"{name} minimum", least, "us", published[1], BOUND))
        rows.append(row(f"{name} maximum", most, "us", published[2], None))
        rows.append(_ratio_row(name, most / least, published[2] / published[1], is_published))
    return rows


def _has_draft(plan: DecodePlan) -> bool:
    assert plan.job.decode is not None
    return plan.job.decode.mtp and plan.job.decode.queries > 1


def _row(name: str, value: float, unit: str, published: float | None, bound: float | None) -> Row:
    if published is None:
        return Row(name, None, round(value, 3), unit, None, None, None)
    error = value / published - 1
    limit = None if bound is None else 100 * bound
    within = None if bound is None else abs(error) <= bound
    return Row(name, published, round(value, 3), unit, round(100 * error, 2), limit, within)


def _ratio_row(name: str, value: float, published: float, is_published: bool) -> Row:
    """The maximum over the minimum: asked to lie in a range, not near a number."""
    if not is_published:
        return Row(f"{name} maximum/minimum", None, round(value, 2), "ratio", None, None, None)
    within = MAX_OVER_MIN[0] <= value <= MAX_OVER_MIN[1]
    return Row(f"{name} maximum/minimum", round(published, 2), round(value, 2), "ratio", None, None, within)


def _calls(found: Measured) -> list[tuple[str, Int64, Int64]]:
    return [(DISPATCH, found.dispatch, found.dispatch_wait), (COMBINE, found.combine, found.combine_wait)]


def _call_facts(times: Int64, waits: Int64) -> dict[str, Any]:
    """Statistics of one kind of call over ranks, steps and layers, us."""
    us = times / _US
    return {
        "average_us": round(float(us.mean()), 2),
        "minimum_us": round(float(us.min()), 2),
        "p50_us": round(float(np.quantile(us, 0.5)), 2),
        "p99_us": round(float(np.quantile(us, 0.99)), 2),
        "maximum_us": round(float(us.max()), 2),
        "average_waiting_us": round(float(waits.mean()) / _US, 2),
        "average_without_waiting_us": round(float((times - waits).mean()) / _US, 2),
        "average_us_by_layer": np.round(us.mean(axis=(0, 1)), 1).tolist(),
        "maximum_us_by_layer": np.round(us.max(axis=(0, 1)), 1).tolist(),
    }


def _accounts(found: Measured) -> dict[str, float]:
    """Where an iteration's time goes, ms: a rank's mean. `between`: status exchange between two steps."""
    parts = dict(found.kernels) | {name: float(t.sum(axis=2).mean()) for name, t, _ in _calls(found)}
    parts["jitter"] = float(found.jitter.mean())
    parts["between"] = float(found.period.mean()) - sum(parts.values())
    return {name: round(ps / _MS, 4) for name, ps in parts.items()}


def _imbalance(found: Measured) -> dict[str, float]:
    """Priced rows of the busiest and the idlest die over the mean, a mean over layers and steps."""
    rows = found.expert_rows
    mean = rows.mean(axis=0)
    return {
        "busiest_die_over_mean": round(float((rows.max(axis=0) / mean).mean()), 3),
        "idlest_die_over_mean": round(float((rows.min(axis=0) / mean).mean()), 3),
        "busiest_die_over_mean_in_any_layer": round(float((rows.max(axis=0) / mean).max()), 3),
        "rows_of_a_layer": int(rows.sum(axis=0).mean()),
    }


def _pairs_conflict(calls: int) -> dict[str, Any]:
    shares = {name: round(10 * PUBLISHED_ITERATION_MS * PUBLISHED_SHARES[name] / PUBLISHED_US[name][0], 1)
              for name in (DISPATCH, COMBINE)}  # fmt: skip
    return {
        "what": "pairs of dispatch and combine in an iteration",
        "called": calls,
        "implied_by_published_shares": shares,
        "settled": f"the model has 58 MoE layers and the MTP layer; share x 93 ms / average gives about "
        f"{PUBLISHED_PAIRS}, the count of all layers: followed is the model",
    }


def inputs(plan: DecodePlan) -> list[dict[str, Any]]:
    """Every number put in that is not a result: name, value, unit, label, source."""
    model = _entries(plan.priced.entries, ("cost.", "decode.", "jitter."))
    machine = _entries(plan.profile, ("kernels.", "vector.", "exchange.", "die.", "ub.", "engine."))
    library = _entries(plan.priced.library.numbers, ("own.", "format."), f"{LIBRARY}.")
    job = plan.job
    workload = [
        ("workload.sequences_per_die", job.max_seqs, "sequences", "arXiv 2508.02520v6 7.1: 60"),
        ("workload.token_scale", job.token_scale, "tokens", "prompt tokens one computed token stands for"),
        ("workload.redundant_experts", job.redundant_experts, "experts", "7.1: one spare slot on each die"),
        ("workload.seed", job.seed, "", "of contents, contexts and jitter"),
    ]
    chosen = [
        {"name": name, "value": value, "unit": unit, "label": "assumed", "source": source}
        for name, value, unit, source in workload
    ]
    return chosen + model + library + machine


def _entries(entries: Profile, sections: tuple[str, ...], called: str = "") -> list[dict[str, Any]]:
    """Numbers of some sections; `called`: what stands before the key instead of its section."""
    return [
        {
            "name": called + key.partition(".")[2] if called else key,
            "value": e.value,
            "unit": e.unit,
            "label": e.label,
            "source": e.source,
        }
        for key, e in entries.items()
        if key.startswith(sections)
    ]
