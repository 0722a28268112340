"""The serving engine over threads: same bits as the reference in every layout, every token charged once."""

import hashlib

import numpy as np
import pytest
from local_pod import load_priced, run_pod

from emulator.errors import UsageError
from serving.charges import plan_layers
from serving.model.config import preset_config
from serving.model.reference import ReferenceRequest, generate
from serving.model.sampling import SamplingParams
from serving.placement import PlacementOptions, place_experts
from serving.request import RequestSpec
from serving.scheduler import SchedulerLimits
from serving.workload import WorkloadOptions, builtin_trace, make_requests

SEED = 7


def workload(num_requests: int = 6, scale: int = 64, max_output: int = 5) -> list[RequestSpec]:
    return make_requests(
        builtin_trace(num_requests, SEED),
        WorkloadOptions(vocab=64, token_scale=scale, max_output=max_output, seed=SEED),
    )


def limits(**changes: int) -> SchedulerLimits:
    values = {
        "batched_tokens": 2048,
        "max_seqs": 8,
        "context": 16384,
        "priced_context": 163840,
        "kv_blocks": 400,
        "block_tokens": 16,
        "priced_kv_tokens": 10**6,
    }
    return SchedulerLimits(**(values | changes))


@pytest.fixture(scope="module")
def reference(tiny_model: str) -> dict[int, tuple[tuple[int, ...], str]]:
    requests = [ReferenceRequest(s.prompt.tolist(), s.max_output, seed=s.seed) for s in workload()]
    return {i: (r.tokens, r.logits_sha256) for i, r in enumerate(generate(tiny_model, requests))}


def answers(ends: list) -> dict[int, tuple[tuple[int, ...], str]]:
    return {
        request.spec.request_id: (tuple(request.outputs), record.logits[request.spec.request_id].hexdigest())
        for record, _, _ in ends
        for request in record.requests
        if request.error is None
    }


@pytest.mark.parametrize("shared", ["local", "placed"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 8, 19])
def test_every_layout_gives_the_reference_bits(
    tiny_model: str, tiny_priced: str, reference: dict, num_ranks: int, shared: str
) -> None:
    """19 ranks exceed the 16 experts: three of them hold replicas."""
    redundant = max(0, num_ranks - 16)
    placement = place_experts(num_ranks, 16, 2, PlacementOptions(shared, redundant))
    ends = run_pod(tiny_model, workload(), placement, limits(), load_priced(tiny_priced))
    assert answers(ends) == reference
    rows = 2 + (shared == "placed")
    priced = sum(s.priced_total for s in workload())
    assert sum(record.work.priced_tokens for record, _, _ in ends) == priced
    moe_layers = 2
    assert sum(link.priced_rows_sent for _, _, link in ends) == priced * rows * moe_layers
    blocks = [(r.work.kv_blocks_allocated, r.work.kv_blocks_freed) for r, _, _ in ends]
    assert sum(a for a, _ in blocks) > 0 and all(a == b for a, b in blocks)
    assert len({record.steps for record, _, _ in ends}) == 1


@pytest.mark.parametrize(
    "changes", [{"batched_tokens": 128}, {"max_seqs": 1}, {"kv_blocks": 8}, {"block_tokens": 5}]
)
def test_chunks_batches_and_pages_do_not_change_a_bit(
    tiny_model: str, tiny_priced: str, reference: dict, changes: dict[str, int]
) -> None:
    placement = place_experts(2, 16, 2, PlacementOptions())
    ends = run_pod(tiny_model, workload(), placement, limits(**changes), load_priced(tiny_priced))
    assert answers(ends) == reference


def test_sampling_is_the_reference_s_too(tiny_model: str, tiny_priced: str, reference: dict) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.95)
    specs = workload()
    requests = [ReferenceRequest(s.prompt.tolist(), s.max_output, params, s.seed) for s in specs]
    wanted = {i: (r.tokens, r.logits_sha256) for i, r in enumerate(generate(tiny_model, requests))}
    placement = place_experts(3, 16, 2, PlacementOptions())
    ends = run_pod(tiny_model, specs, placement, limits(), load_priced(tiny_priced), params)
    assert answers(ends) == wanted
    assert wanted != reference


def test_a_request_beyond_the_context_fails_alone(tiny_model: str, tiny_priced: str, reference: dict) -> None:
    longest = max(workload(), key=lambda s: s.prompt_tokens)
    context = longest.prompt_tokens + longest.max_output - 1
    placement = place_experts(2, 16, 2, PlacementOptions())
    ends = run_pod(tiny_model, workload(), placement, limits(context=context), load_priced(tiny_priced))
    expected = {i: answer for i, answer in reference.items() if i != longest.request_id}
    assert answers(ends) == expected
    failed = [request for record, _, _ in ends for request in record.requests if request.error]
    assert [r.spec.request_id for r in failed] == [longest.request_id]
    assert "exceed the context" in (failed[0].error or "")
    assert failed[0].num_ends == 1


def test_one_rank_is_charged_the_priced_layers(tiny_model: str, tiny_priced: str) -> None:
    """One prompt, two outputs: 1 dense + 8 MoE layers, a prefill of 630 tokens and a decode after 630."""
    priced = load_priced(tiny_priced)
    spec = RequestSpec(0, 0, np.arange(10, dtype=np.int64), 630, 64, 2, False, 0)
    placement = place_experts(1, 16, 2, PlacementOptions())
    ((record, clock, link),) = run_pod(tiny_model, [spec], placement, limits(), priced)
    prefill = sum(priced.layer_kernels(np.zeros(0, np.int64), [(0, 630)]).values())
    decode = sum(priced.layer_kernels(np.array([631])).values())
    attention = 9 * (prefill + decode) + 8 * (priced.router_ps(630) + priced.router_ps(1))
    assert record.time.ps["attention"] == attention
    dense, head = priced.dense_mlp_ps(630) + priced.dense_mlp_ps(1), 2 * priced.head_ps(1)
    assert record.time.ps["other"] == 2 * priced.step_overhead_ps + dense + head
    assert [int(rows.sum()) for rows in link.priced_received] == [1260, 1260, 2, 2]
    experts = 4 * sum(priced.experts_ps(rows) for rows in link.priced_received)
    shared = 8 * (priced.shared_ps(630) + priced.shared_ps(1))
    assert record.time.ps["experts"] == experts + shared
    assert sum(ps for label, ps in clock.charged if label == 1) == attention
    assert record.requests[0].token_times_ps[-1] == clock.now_ps


def test_scale_one_and_scale_64_charge_the_same_prefill(tiny_model: str, tiny_priced: str) -> None:
    priced = load_priced(tiny_priced)
    placement = place_experts(2, 16, 2, PlacementOptions())
    seen = []
    for scale in (1, 64):
        specs = [s for s in workload(4, scale, max_output=1) if s.priced_prompt < 2048]
        assert len(specs) > 1
        ends = run_pod(tiny_model, specs, placement, limits(), priced)
        seen.append(
            [(r.time.ps["attention"], r.work.priced_tokens, link.priced_rows_sent) for r, _, link in ends]
        )
        functional = sum(r.work.functional_tokens for r, _, _ in ends)
        assert functional == sum(-(-s.priced_prompt // scale) for s in specs)
    assert seen[0] == seen[1]


def test_layers_must_match_the_priced_model(tiny_priced: str) -> None:
    with pytest.raises(UsageError, match="routed experts"):
        plan_layers(preset_config("tiny"), load_priced("deepseek-r1"))
    plans = plan_layers(preset_config("tiny"), load_priced(tiny_priced))
    assert [(p.index, p.is_moe, p.repeat) for p in plans] == [(0, False, 1), (1, True, 4), (2, True, 4)]
    plans = plan_layers(preset_config("mini"), load_priced("deepseek-r1"))
    assert [p.repeat for p in plans] == [1, 1, 1, 12, 12, 12, 11, 11]


def test_equal_runs_have_equal_timelines(tiny_model: str, tiny_priced: str) -> None:
    placement = place_experts(3, 16, 2, PlacementOptions())
    runs = []
    for _ in range(2):
        ends = run_pod(tiny_model, workload(), placement, limits(), load_priced(tiny_priced))
        text = repr([(r.time.ps, [q.token_times_ps for q in r.requests]) for r, _, _ in ends])
        runs.append(hashlib.sha256(text.encode()).hexdigest())
    assert runs[0] == runs[1]
