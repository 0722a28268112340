"""The engine over a paged cache, ranks as threads: the reference's bits, whatever is shared or given up.

Mutation seen to fail here: pages of a load not written.
"""

import numpy as np
import pytest
from local_pod import load_priced, run_pod

from serving.job import PagingOptions
from serving.model.reference import ReferenceRequest, generate
from serving.placement import PlacementOptions, place_experts
from serving.request import RequestSpec
from serving.scheduler import SchedulerLimits

BLOCK = 16


def workload(num_requests: int = 7) -> list[RequestSpec]:
    """Prompts of 30 to 100 tokens; all but two share 40 of them; some arrive later."""
    rng = np.random.default_rng(3)
    shared = rng.integers(0, 64, 40)
    specs = []
    for i in range(num_requests):
        own = rng.integers(0, 64, int(rng.integers(1, 50)) if i != 3 else 70)
        begin = rng.integers(0, 64, 30) if i in (0, 3) else shared
        prompt = np.concatenate([begin, own]).astype(np.int64)
        specs.append(RequestSpec(i, i // 3 * 10**10, prompt, len(prompt), 1, 6 + i, False, i))
    return specs


@pytest.fixture(scope="module")
def reference(tiny_model: str) -> dict[int, tuple[tuple[int, ...], str]]:
    requests = [ReferenceRequest(s.prompt.tolist(), s.max_output, seed=s.seed) for s in workload()]
    return {i: (r.tokens, r.logits_sha256) for i, r in enumerate(generate(tiny_model, requests))}


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize(
    ("paging", "blocks", "budget", "happens"),
    [
        (PagingOptions(BLOCK), 60, 256, ()),
        (PagingOptions(BLOCK, chunked=False), 60, 256, ()),
        (PagingOptions(BLOCK, reuse=True), 60, 24, ("hit",)),
        (PagingOptions(BLOCK), 8, 256, ("preemptions",)),
        (PagingOptions(BLOCK, reuse=True), 8, 40, ("preemptions", "hit", "dropped")),
        (PagingOptions(BLOCK, reuse=True, dram_blocks=30), 8, 40, ("preemptions", "hit", "loaded")),
    ],
)
def test_bits_do_not_depend_on_pages_shares_or_preemptions(
    tiny_model: str,
    tiny_priced: str,
    reference: dict,
    paging: PagingOptions,
    blocks: int,
    budget: int,
    happens: tuple[str, ...],
    num_ranks: int,
) -> None:
    bounds = SchedulerLimits(budget, 4, 4096, 163_840, blocks, BLOCK, blocks * BLOCK)
    placement = place_experts(num_ranks, 16, 2, PlacementOptions())
    ends = run_pod(tiny_model, workload(), placement, bounds, load_priced(tiny_priced), paging=paging)
    answers = {
        request.spec.request_id: (tuple(request.outputs), record.logits[request.spec.request_id].hexdigest())
        for record, _, _ in ends
        for request in record.requests
    }
    assert answers == reference
    total = {name: sum(record.cache[name] for record, _, _ in ends) for name in ends[0][0].cache}
    if num_ranks == 1:
        assert all(total[name] > 0 for name in happens), total
    charged = sum(record.work.priced_tokens for record, _, _ in ends)
    came_to = sum(spec.priced_total for spec in workload())
    assert charged + total["cached"] - total["dropped"] == came_to
