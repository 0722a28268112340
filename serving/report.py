"""From the ranks' own results to one result: merged, checked, and readable as JSON or as tables.

Every key but `host` is a function of configuration and seed. What depends on the machine underneath (wall
time, memory, versions) goes under `host` and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from serving.ledger import BUCKETS
from serving.metrics import LatencyReport, Timeline, latency_report
from serving.request import RequestSpec
from serving.speculation_report import rejected_rows

_BINDS = 0.5
PS_PER_S = 1_000_000_000_000


@dataclass(frozen=True)
class Outcome:
    """How one request ended, as its rank (or the reference) tells it."""

    request_id: int
    rank: int
    tokens: tuple[int, ...]
    token_times_ps: tuple[int, ...]
    logits_sha256: str
    error: str | None
    finish: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None and self.finish != "abort"


def outcomes(results: Sequence[Mapping[str, Any]]) -> list[Outcome]:
    """Every ending of every request, in order of request (a request that ended twice shows twice)."""
    endings = [
        Outcome(
            request_id=entry["id"],
            rank=result["rank"],
            tokens=tuple(entry["tokens"]),
            token_times_ps=tuple(entry["times_ps"]),
            logits_sha256=entry["logits_sha256"],
            error=entry["error"],
            finish=entry.get("finish"),
        )
        for result in results
        for entry in result["requests"]
    ]
    return sorted(endings, key=lambda outcome: outcome.request_id)


def equal_to_reference(endings: Sequence[Outcome], reference: Sequence[Mapping[str, Any]]) -> list[int]:
    """Ids of the requests whose tokens or logits differ from the reference's, or that it lacks."""
    wanted = {entry["id"]: (tuple(entry["tokens"]), entry["logits_sha256"]) for entry in reference}
    return [
        ending.request_id
        for ending in endings
        if ending.ok and wanted.get(ending.request_id) != (ending.tokens, ending.logits_sha256)
    ]


def sum_fields(results: Sequence[Mapping[str, Any]], key: str = "") -> dict[str, int]:
    """Add up the ranks' ledgers, or those stored under `key`; zeros are kept."""
    total: Counter[str] = Counter()
    for result in results:
        total.update(result[key] if key else result)
    return dict(total)


def check_invariants(
    specs: Sequence[RequestSpec],
    results: Sequence[Mapping[str, Any]],
    endings: Sequence[Outcome],
    num_ranks: int,
    fabric_bytes: int,
) -> dict[str, bool]:
    """What must always hold (each name -> whether it does). fabric_bytes: all the engine has charged."""
    work = sum_fields(results, "work")
    ended = Counter(ending.request_id for ending in endings)
    return {
        "every_rank_reported": [r["rank"] for r in results] == list(range(num_ranks)),
        "every_request_ends_once": ended == Counter(spec.request_id for spec in specs),
        "functional_rows_conserved": work["functional_rows_sent"] == work["functional_rows_received"],
        "functional_bytes_conserved": work["functional_bytes_sent"] == work["functional_bytes_received"],
        "priced_rows_conserved": work["priced_rows_sent"] == work["priced_rows_received"],
        "priced_bytes_conserved": work["priced_bytes_sent"] == work["priced_bytes_received"],
        "fabric_charged_what_was_posted": fabric_bytes
        == work["priced_bytes_received"] + work["record_bytes_sent"] + work["group_bytes_sent"],
        "ranks_agree_on_steps": len({result["steps"] for result in results}) == 1,
        "kv_blocks_freed": work["kv_blocks_allocated"] == work["kv_blocks_freed"],
        "virtual_time_accounted": all(sum(r["time_ps"].values()) == r["end_ps"] for r in results),
        "all_prompt_and_output_tokens_charged": _all_charged(specs, results, endings, work["priced_tokens"]),
    }


def _all_charged(
    specs: Sequence[RequestSpec],
    results: Sequence[Mapping[str, Any]],
    endings: Sequence[Outcome],
    charged: int,
) -> bool:
    """Whether what was charged is what requests came to, less what was found in a cache, and what was given
    up besides."""
    cache = sum_fields([result["cache"] for result in results if "cache" in result])
    charged -= rejected_rows(results)
    if not cache:
        return charged == sum(spec.priced_total for spec in specs if _succeeded(spec, endings))
    ended = sum(int(entry["charged"]) for result in results for entry in result["requests"])
    return charged + cache["cached"] - cache["dropped"] == ended


def cache_facts(results: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the ranks' paged caches did, summed; None where there were none. Tokens are priced ones."""
    counted = [result["cache"] for result in results if "cache" in result]
    if not counted:
        return None
    total = sum_fields(counted)
    rate = total["hit"] / total["queried"] if total["queried"] else None
    return {**total, "hit_rate": rate}


def _succeeded(spec: RequestSpec, endings: Sequence[Outcome]) -> bool:
    return any(ending.request_id == spec.request_id and ending.ok for ending in endings)


def virtual_result(
    specs: Sequence[RequestSpec], results: Sequence[Mapping[str, Any]], endings: Sequence[Outcome]
) -> dict[str, Any]:
    """The part of the result that follows from what the ranks report: counts, latencies, virtual time."""
    by_id = {spec.request_id: spec for spec in specs}
    good = [ending for ending in endings if ending.ok]
    timelines = [Timeline(by_id[e.request_id].arrival_ps, e.token_times_ps) for e in good]
    latencies = latency_report(timelines)
    duration_ps = max((line.token_times_ps[-1] for line in timelines), default=0)
    counts = _counts(by_id, good, endings)
    return {
        "ranks": len(results),
        **counts,
        "virtual_duration_s": duration_ps / PS_PER_S,
        **_throughputs(counts, duration_ps),
        **_latencies(latencies),
        "logits_sha256": _digest(f"{e.request_id}:{e.logits_sha256}" for e in good),
        "tokens_sha256": _digest(f"{e.request_id}:{','.join(map(str, e.tokens))}" for e in good),
        "failures": [{"request": e.request_id, "error": e.error} for e in endings if e.error is not None],
        "steps": max((result["steps"] for result in results), default=0),
        "idle_s": min((result["asleep_ps"] for result in results), default=0) / PS_PER_S,
        "virtual_time": time_shares(results),
        "work": sum_fields(results, "work"),
    }


def _counts(
    by_id: Mapping[int, RequestSpec], good: Sequence[Outcome], endings: Sequence[Outcome]
) -> dict[str, int]:
    served = [by_id[ending.request_id] for ending in good]
    return {
        "completed": len(good),
        "failed": len(endings) - len(good),
        "truncated_outputs": sum(spec.truncated for spec in by_id.values()),
        "input_tokens": sum(spec.priced_prompt for spec in served),
        "output_tokens": sum(len(ending.tokens) for ending in good),
    }


def _throughputs(counts: Mapping[str, int], duration_ps: int) -> dict[str, float | None]:
    def per_second(count: int) -> float | None:
        return count * PS_PER_S / duration_ps if duration_ps else None

    return {
        "request_throughput": per_second(counts["completed"]),
        "output_throughput": per_second(counts["output_tokens"]),
        "total_token_throughput": per_second(counts["input_tokens"] + counts["output_tokens"]),
    }


def _latencies(report: LatencyReport) -> dict[str, dict[str, float | None]]:
    return {name: asdict(summary) for name, summary in vars(report).items()}


def _digest(parts: Any) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def time_shares(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Per bucket: mean seconds a rank, and the share of all ranks' virtual time."""
    total = sum_fields(results, "time_ps")
    everything = sum(total.values())
    ranks = max(1, len(results))
    return {
        bucket: {
            "mean_s": total.get(bucket, 0) / ranks / PS_PER_S,
            "share": total.get(bucket, 0) / everything if everything else 0.0,
        }
        for bucket in (*BUCKETS, *(name for name in total if name not in BUCKETS))
    }


def binding_resource(results: Sequence[Mapping[str, Any]], ports: Mapping[str, int]) -> dict[str, Any]:
    """The busiest resource of the busiest die, and its share of the time in which the pod had work.

    ports: picoseconds the busiest die's ports were busy. Compute is what one rank was charged. Where nothing
    is busy half the time, latency and waiting for each other bind more than any resource.
    """
    end_ps = max((result["end_ps"] - result["asleep_ps"] for result in results), default=0)
    if end_ps <= 0:
        return {"resource": "none", "share": 0.0, "busy_shares": {}}
    busy = {
        "npu attention": max(result["time_ps"]["attention"] for result in results),
        "npu experts": max(result["time_ps"]["experts"] for result in results),
        "npu other kernels": max(result["time_ps"]["other"] for result in results),
        **ports,
    }
    shares = {name: ps / end_ps for name, ps in busy.items()}
    name = max(shares, key=lambda key: shares[key])
    if shares[name] < _BINDS:
        return {"resource": "latency and waiting", "share": 1 - shares[name], "busy_shares": shares}
    return {"resource": name, "share": shares[name], "busy_shares": shares}
