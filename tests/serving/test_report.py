"""Merging what ranks report: hand-made results, and every invariant shown to break."""

import copy
from typing import Any

import numpy as np
import pytest

from serving.ledger import BUCKETS, TimeLedger, WorkLedger
from serving.report import (
    binding_resource,
    check_invariants,
    equal_to_reference,
    outcomes,
    time_shares,
    virtual_result,
)
from serving.request import RequestSpec

S = 10**12
FABRIC_BYTES = 2 * 700 + 2 * 32


def spec(request_id: int, arrival_s: int, priced: int, outputs: int, truncated: bool = False) -> RequestSpec:
    prompt = np.zeros(priced, dtype=np.int64)
    return RequestSpec(request_id, arrival_s * S, prompt, priced, 1, outputs, truncated, 0)


SPECS = [spec(0, 0, 10, 2, truncated=True), spec(1, 1, 5, 1), spec(2, 1, 99, 1)]


def entry(request_id: int, tokens: list[int], times_s: list[int], error: str | None = None) -> dict[str, Any]:
    return {
        "id": request_id,
        "tokens": tokens,
        "times_ps": [t * S for t in times_s],
        "logits_sha256": f"hash{request_id}",
        "error": error,
        "ends": 1,
    }


def rank(number: int, requests: list[dict[str, Any]], priced_tokens: int) -> dict[str, Any]:
    time = TimeLedger()
    time.add("attention", 3 * S)
    time.add("waiting", S)
    rows = {f"{kind}_rows_{way}": 4 for kind in ("functional", "priced") for way in ("sent", "received")}
    sizes = {f"{kind}_bytes_{way}": 700 for kind in ("functional", "priced") for way in ("sent", "received")}
    work = WorkLedger(
        priced_tokens=priced_tokens,
        functional_tokens=priced_tokens,
        record_bytes_sent=32,
        kv_blocks_allocated=3,
        kv_blocks_freed=3,
        **rows,
        **sizes,
    )
    return {
        "rank": number,
        "end_ps": 4 * S,
        "steps": 5,
        "asleep_ps": 0,
        "time_ps": time.ps,
        "work": vars(work),
        "requests": requests,
    }


def results() -> list[dict[str, Any]]:
    return [
        rank(0, [entry(0, [7, 8], [2, 4])], 11),
        rank(1, [entry(2, [], [], "too long"), entry(1, [9], [3])], 5),
    ]


def invariants(ranks: list[dict[str, Any]], fabric_bytes: int = FABRIC_BYTES) -> dict[str, bool]:
    return check_invariants(SPECS, ranks, outcomes(ranks), 2, fabric_bytes)


def test_counts_latencies_and_throughput_by_hand() -> None:
    result = virtual_result(SPECS, results(), outcomes(results()))
    assert (result["ranks"], result["completed"], result["failed"]) == (2, 2, 1)
    assert (result["input_tokens"], result["output_tokens"], result["truncated_outputs"]) == (15, 3, 1)
    assert result["virtual_duration_s"] == 4.0
    assert result["ttft_ms"]["mean"] == 2000.0
    assert result["tpot_ms"] == {"mean": 2000.0, "p50": 2000.0, "p99": 2000.0}
    assert result["e2el_ms"]["mean"] == 3000.0
    assert result["request_throughput"] == 0.5
    assert result["output_throughput"] == 0.75
    assert result["total_token_throughput"] == 4.5
    assert result["failures"] == [{"request": 2, "error": "too long"}]
    assert result["steps"] == 5


def test_time_shares_cover_everything() -> None:
    shares = time_shares(results())
    assert shares["attention"] == {"mean_s": 3.0, "share": 0.75}
    assert shares["waiting"] == {"mean_s": 1.0, "share": 0.25}
    assert sum(shares[bucket]["share"] for bucket in BUCKETS) == 1.0


def test_reference_differences_are_named() -> None:
    answers = [{"id": 0, "tokens": [7, 8], "logits_sha256": "hash0"}]
    assert equal_to_reference(outcomes(results()), answers) == [1]
    answers.append({"id": 1, "tokens": [9], "logits_sha256": "hash1"})
    assert equal_to_reference(outcomes(results()), answers) == []
    answers[0]["tokens"] = [7, 9]
    answers[1]["logits_sha256"] = "other"
    assert equal_to_reference(outcomes(results()), answers) == [0, 1]


def test_all_invariants_hold_of_a_good_run() -> None:
    assert all(invariants(results()).values())


def lose_rank(ranks: list[dict[str, Any]]) -> None:
    ranks.pop()


def end_twice(ranks: list[dict[str, Any]]) -> None:
    ranks[1]["requests"].append(entry(0, [7, 8], [2, 4]))


def lose_request(ranks: list[dict[str, Any]]) -> None:
    ranks[1]["requests"].pop(0)


def bump(name: str) -> Any:
    def change(ranks: list[dict[str, Any]]) -> None:
        ranks[0]["work"][name] += 1

    return change


def more_steps(ranks: list[dict[str, Any]]) -> None:
    ranks[1]["steps"] += 1


def lose_time(ranks: list[dict[str, Any]]) -> None:
    ranks[1]["end_ps"] += 1


@pytest.mark.parametrize(
    ("break_it", "name"),
    [
        (lose_rank, "every_rank_reported"),
        (end_twice, "every_request_ends_once"),
        (lose_request, "every_request_ends_once"),
        (bump("functional_rows_sent"), "functional_rows_conserved"),
        (bump("functional_bytes_received"), "functional_bytes_conserved"),
        (bump("priced_rows_received"), "priced_rows_conserved"),
        (bump("priced_bytes_sent"), "priced_bytes_conserved"),
        (bump("record_bytes_sent"), "fabric_charged_what_was_posted"),
        (more_steps, "ranks_agree_on_steps"),
        (bump("kv_blocks_allocated"), "kv_blocks_freed"),
        (lose_time, "virtual_time_accounted"),
        (bump("priced_tokens"), "all_prompt_and_output_tokens_charged"),
    ],
)
def test_every_invariant_breaks(break_it: Any, name: str) -> None:
    ranks = copy.deepcopy(results())
    break_it(ranks)
    assert invariants(ranks)[name] is False


def test_the_busiest_resource_binds() -> None:
    ports = {"egress port": 2 * S, "ingress port": S}
    found = binding_resource(results(), ports)
    assert (found["resource"], found["share"]) == ("npu attention", 0.75)
    found = binding_resource(results(), ports | {"ingress port": int(3.5 * S)})
    assert (found["resource"], found["share"]) == ("ingress port", 0.875)
    assert binding_resource([], {})["resource"] == "none"


def test_time_without_work_does_not_count_and_half_idle_resources_do_not_bind() -> None:
    ranks = results()
    for result in ranks:
        result["end_ps"] = 10 * S
    assert binding_resource(ranks, {})["resource"] == "latency and waiting"
    for result in ranks:
        result["asleep_ps"] = 5 * S
    found = binding_resource(ranks, {})
    assert (found["resource"], found["share"]) == ("npu attention", 0.6)
