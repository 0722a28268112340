"""A job's expert placement and scheduler bounds: worked out alike by the command and by every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.blocks import LARGEST_SEND, most_capacity
from emulator.errors import UsageError
from emulator.rows import RowFormat
from serving.job import PagingOptions, ReplayJob
from serving.model.config import ModelConfig
from serving.placement import EMPTY, Placement, PlacementOptions, place_experts, with_spares
from serving.request import RequestSpec
from serving.scheduler import SchedulerLimits

KV_BLOCK_TOKENS = 16
"""Functional tokens in a page of the cache; no result depends on it."""


_PAGE = 4096
_MANAGED_SPARE_BYTES = 1 << 16
_HEAP_BYTES = _STAGING_BYTES = 1 << 16
"""Serving moves everything by exchange; it puts nothing into a heap."""
_SURVIVORS = 4
"""Under recovery in place there is room for this many times the experts a rank starts with."""
_HOT_RANK = 4
_LEAST_ROWS = 8192
"""A rank may receive this many times its even share of a step's rows, and so many rows in any case. (Room
that is not used is never touched, so it takes no memory.)"""


def job_placement(job: ReplayJob, config: ModelConfig) -> Placement:
    """The placement a job asks for.

    Raises:
        UsageError: shared experts are to be placed and the model has none.
    """
    if job.shared_experts == "placed" and not config.n_shared_experts:
        raise UsageError(
            f"--shared-experts placed: a model of type {config.model_type} has none; take 'local'"
        )
    options = PlacementOptions(job.shared_experts, job.redundant_experts)
    top_k = config.num_experts_per_tok
    placed = place_experts(job.num_ranks - job.spares, config.n_routed_experts, top_k, options)
    return with_spares(placed, job.spares) if job.spares else placed


def job_limits(
    job: ReplayJob, config: ModelConfig, priced_kv_tokens: int, specs: Sequence[RequestSpec]
) -> SchedulerLimits:
    """Scheduler bounds, the same on every rank.

    The functional cache has room for the largest requests a rank can run at once: what binds admission is the
    priced cache, as on the target.
    """
    if job.paging is not None:
        return _paged_limits(job, job.paging, config, priced_kv_tokens, specs)
    blocks = sorted((-(-spec.total_tokens // KV_BLOCK_TOKENS) for spec in specs), reverse=True)
    return SchedulerLimits(
        batched_tokens=job.batched_tokens,
        max_seqs=job.max_seqs,
        context=config.max_position_embeddings,
        priced_context=job.priced_context,
        kv_blocks=max(1, sum(blocks[: job.max_seqs])),
        block_tokens=KV_BLOCK_TOKENS,
        priced_kv_tokens=priced_kv_tokens,
        drafts=job.mtp,
    )


def _paged_limits(
    job: ReplayJob,
    paging: PagingOptions,
    config: ModelConfig,
    priced_kv_tokens: int,
    specs: Sequence[RequestSpec],
) -> SchedulerLimits:
    """Bounds of a paged cache. A block is `block_size` priced tokens of a prompt; where a functional token
    stands for several of them, as many fewer functional ones, which charge less in an answer."""
    size, scale = paging.block_size, job.token_scale
    tokens = paging.num_blocks * size if paging.num_blocks else priced_kv_tokens // size * size
    block_tokens, context = size // scale, config.max_position_embeddings
    if job.is_open:
        tokens = min(tokens, -(-context // size) * size * job.max_seqs)
        pages = tokens // size
    else:
        wanted = sorted((-(-spec.total_tokens // block_tokens) for spec in specs), reverse=True)
        pages = sum(wanted if paging.reuse else wanted[: job.max_seqs])
        pages = min(pages, tokens // size * scale)
    return SchedulerLimits(
        batched_tokens=job.batched_tokens,
        max_seqs=job.max_seqs,
        context=context,
        priced_context=job.priced_context,
        kv_blocks=max(1, pages),
        block_tokens=block_tokens,
        priced_kv_tokens=max(1, tokens),
        drafts=job.mtp,
    )


@dataclass(frozen=True)
class ExchangeSizes:
    """Rows the exchange buffers of a rank take: sent by it in a dispatch, and received."""

    max_tokens: int
    max_rows: int
    expected_rows: int
    """Rows a rank sends and receives when routing is even, for the check of memory before a start."""


def exchange_sizes(
    job: ReplayJob, limits: SchedulerLimits, placement: Placement, top_k: int, specs: Sequence[RequestSpec]
) -> ExchangeSizes:
    """Size the dispatch and combine buffers by the token budget; more than fits is an error when it happens.

    No step has more tokens than all ranks' budgets, or than all requests can bring. Rows spread over the
    experts; the fullest rank may get `_HOT_RANK` times its share, as far as a record's field reaches.

    Raises:
        UsageError: a step has more tokens than an exchange can name.
    """
    max_tokens = limits.max_step_tokens(job.token_scale)
    if job.mtp > 1:  # draft layers after the first compute rows of the step before once more
        max_tokens += job.max_seqs * (job.mtp - 1)
    _check_sent(job, max_tokens, top_k)
    pod_tokens = job.num_ranks // job.tp_size * max_tokens
    if not job.is_open:
        pod_tokens = min(pod_tokens, sum(_most_at_once(job, spec) for spec in specs))
    held = int((placement.slot_expert != EMPTY).sum(axis=1).max())
    if job.eplb is not None:
        held = placement.slots_per_rank
    if job.recovery is not None:
        held = min(_SURVIVORS * held, len(placement.num_replicas))
    most = pod_tokens * min(top_k + placement.shared_placed, held)
    share = pod_tokens * top_k * held // placement.num_routed
    if placement.shared_placed:
        share += pod_tokens // int(placement.num_replicas[placement.num_routed])
    max_rows = max(1, min(most, max(_HOT_RANK * share, _LEAST_ROWS), most_capacity(max_tokens * top_k)))
    sent = -(-pod_tokens // job.num_ranks) * top_k
    return ExchangeSizes(max_tokens, max_rows, sent + share)


def _check_sent(job: ReplayJob, max_tokens: int, top_k: int) -> None:
    """Refuse a token budget whose rows an exchange could not tell apart. Raises UsageError."""
    if max_tokens * top_k > LARGEST_SEND:
        raise UsageError(
            f"--max-num-batched-tokens {job.batched_tokens}, --token-scale {job.token_scale}: {max_tokens} "
            f"computed tokens of a rank and step to {top_k} experts each, where an exchange takes "
            f"{LARGEST_SEND // top_k}: lower the one or raise the other"
        )


def _most_at_once(job: ReplayJob, spec: RequestSpec) -> int:
    """Functional tokens a request can bring to one step."""
    if job.paging is not None:  # given up, its answer is fed again besides its prompt
        return min(job.batched_tokens, spec.total_tokens) + max(0, job.mtp - 1)
    if job.mtp:
        return (
            max(1 + job.mtp, min(job.batched_tokens // job.token_scale + 1, spec.prompt_tokens)) + job.mtp - 1
        )
    return min(job.batched_tokens // job.token_scale + 1, spec.prompt_tokens)


def machine_bytes(sizes: ExchangeSizes, top_k: int, hidden: int, slots: int) -> dict[str, int]:
    """Sizes for `emulator.init` that hold those buffers, each doubled by parity: whole pages."""
    rows = sizes.max_tokens * top_k + sizes.max_rows
    managed = 2 * rows * RowFormat(hidden, slots).record_bytes + 4 * _PAGE + _MANAGED_SPARE_BYTES
    return {
        "heap_bytes": _HEAP_BYTES,
        "managed_bytes": -(-managed // _PAGE) * _PAGE,
        "staging_bytes": _STAGING_BYTES,
    }


def touched_bytes(sizes: ExchangeSizes, hidden: int, slots: int) -> int:
    """Shared memory a rank is expected to write."""
    buffers = 2 * sizes.expected_rows * RowFormat(hidden, slots).record_bytes
    return buffers + _MANAGED_SPARE_BYTES + _HEAP_BYTES + _STAGING_BYTES
