"""A job's expert placement and scheduler bounds: worked out alike by the command and by every rank."""

from __future__ import annotations

from collections.abc import Sequence

from serving.job import ReplayJob
from serving.model.config import ModelConfig
from serving.placement import Placement, PlacementOptions, place_experts
from serving.request import RequestSpec
from serving.scheduler import SchedulerLimits

KV_BLOCK_TOKENS = 16
"""Functional tokens in a page of the cache; no result depends on it."""


def job_placement(job: ReplayJob, config: ModelConfig) -> Placement:
    """The placement a job asks for."""
    options = PlacementOptions(job.shared_experts, job.redundant_experts)
    return place_experts(job.num_ranks, config.n_routed_experts, config.num_experts_per_tok, options)


def job_limits(
    job: ReplayJob, config: ModelConfig, priced_kv_tokens: int, specs: Sequence[RequestSpec]
) -> SchedulerLimits:
    """Scheduler bounds, the same on every rank.

    The functional cache has room for the largest requests a rank can run at once: what binds admission is the
    priced cache, as on the target.
    """
    blocks = sorted((-(-spec.total_tokens // KV_BLOCK_TOKENS) for spec in specs), reverse=True)
    return SchedulerLimits(
        batched_tokens=job.batched_tokens,
        max_seqs=job.max_seqs,
        context=config.max_position_embeddings,
        priced_context=job.priced_context,
        kv_blocks=max(1, sum(blocks[: job.max_seqs])),
        block_tokens=KV_BLOCK_TOKENS,
        priced_kv_tokens=priced_kv_tokens,
    )
