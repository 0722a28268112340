"""What a decode measurement is asked for, and the job it becomes: pure, checked before a rank starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.errors import UsageError
from emulator.profile import Profile, load_profile
from emulator.topology import Topology
from serving.charges import kv_capacity, plan_layers
from serving.exchange_price import is_library_key
from serving.job import DecodeOptions, ReplayJob
from serving.limits import exchange_sizes, job_limits, job_placement, machine_bytes, touched_bytes
from serving.model.config import ModelConfig
from serving.placement import Placement
from serving.priced_shape import MODEL_KEYS
from serving.pricing import PricedModel
from serving.request import RequestSpec

MOST_SEQUENCES, MOST_CONTEXT = 1 << 16, 1 << 24
"""Beyond what any die holds; more would be drawn for minutes before it is refused."""
WARM_STEPS = 1
"""Decode steps before those that are measured: the first follows the prefill."""


@dataclass(frozen=True)
class DecodePlan:
    """A measurement that may start."""

    job: ReplayJob
    specs: list[RequestSpec]
    profile: Profile
    priced: PricedModel
    placement: Placement
    steps: int
    machine_bytes: dict[str, int]
    touched_bytes: int


def split_overrides(settings: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Settings of the machine's profile, and those of the priced model and its library (`xccl.KEY`)."""
    model = {key: value for key, value in settings.items() if key in MODEL_KEYS or is_library_key(key)}
    return {key: value for key, value in settings.items() if key not in model}, model


def parse_context(text: str) -> tuple[int, int]:
    """`LOW:HIGH` or one number, tokens. Raises UsageError."""
    low, colon, high = text.partition(":")
    try:
        bounds = int(low), int(high if colon else low)
    except ValueError:
        raise UsageError(f"--context {text}: write LOW:HIGH or one number of tokens, as 2048:4096") from None
    if not 1 <= bounds[0] <= bounds[1] <= MOST_CONTEXT:
        raise UsageError(f"--context {text}: 1 <= LOW <= HIGH <= {MOST_CONTEXT} is needed")
    return bounds


def decode_job(
    model_dir: str,
    num_ranks: int,
    batch: int,
    context: tuple[int, int],
    options: DecodeOptions,
    settings: dict[str, str],
    priced_as: str = "deepseek-r1",
    profile: str = "cloudmatrix384",
    token_scale: int = 1024,
    redundant_experts: int = 0,
    seed: int = 0,
    check_memory: bool = True,
) -> ReplayJob:
    """The job of one measurement: every prompt fits into the first step, and then all sequences decode.

    Raises:
        UsageError: a batch, a number of steps or a scale that cannot be.
    """
    if batch < 1:
        raise UsageError(f"--batch {batch}: at least one sequence a die is needed")
    if batch > MOST_SEQUENCES:
        raise UsageError(f"--batch {batch}: at most {MOST_SEQUENCES} sequences a die")
    if options.steps < 1:
        raise UsageError(f"--steps {options.steps}: at least one measured iteration is needed")
    if options.queries < 1:
        raise UsageError(f"--queries {options.queries}: a sequence has at least one row in a step")
    if token_scale < 1:
        raise UsageError(f"--token-scale {token_scale} must be at least 1")
    machine, model = split_overrides(settings)
    return ReplayJob(
        model_dir=model_dir,
        num_ranks=num_ranks,
        priced_as=priced_as,
        profile=profile,
        overrides=machine,
        priced_overrides=model,
        seed=seed,
        token_scale=token_scale,
        batched_tokens=max(batch * context[1], token_scale),
        max_seqs=batch,
        shared_experts="placed",
        redundant_experts=redundant_experts,
        check_memory=check_memory,
        decode=options,
    )


def spare_experts(num_ranks: int, num_routed: int) -> int:
    """Replicas when nobody says how many: one for each routed expert, where every die has a spare slot."""
    return num_routed if num_ranks >= num_routed else 0


def decode_requests(
    num_ranks: int, batch: int, context: tuple[int, int], scale: int, steps: int, vocab: int, seed: int
) -> list[RequestSpec]:
    """`batch` sequences for each rank, contexts drawn evenly from `context`; a computed prompt token stands
    for `scale`. Request i belongs to rank i // batch."""
    draw = np.random.default_rng((seed, 0xDEC0DE))
    priced = draw.integers(context[0], context[1] + 1, num_ranks * batch)
    specs = []
    for i, length in enumerate(priced.tolist()):
        prompt = draw.integers(0, vocab, -(-length // scale))
        specs.append(RequestSpec(i, 0, prompt, length, scale, WARM_STEPS + steps + 1, False, i))
    return specs


def plan_decode(job: ReplayJob, config: ModelConfig, context: tuple[int, int]) -> DecodePlan:
    """Check a job against its machine and models, and make its sequences.

    Raises:
        UsageError: unknown key, more ranks than the pod has, another routing shape than the priced model's,
            contexts the model or a die at priced size has no room for.
    """
    assert job.decode is not None
    profile = load_profile(job.profile, job.overrides)
    Topology.from_profile(profile, job.num_ranks)
    priced = PricedModel.load(job.priced_as, profile, job.priced_overrides)
    plan_layers(config, priced)
    placement = job_placement(job, config)
    specs = decode_requests(
        job.num_ranks, job.max_seqs, context, job.token_scale, job.decode.steps, config.vocab_size, job.seed
    )
    limits = job_limits(job, config, kv_capacity(priced, placement, job.check_memory), specs)
    _check_room(specs, job.max_seqs, limits.priced_kv_tokens)
    if (refused := next((r for r in map(limits.refusal, specs) if r), None)) is not None:
        raise UsageError(f"--context {context[0]}:{context[1]}: {refused}")
    top_k = config.num_experts_per_tok
    sizes = exchange_sizes(job, limits, placement, top_k, specs)
    rows, slots = top_k + placement.shared_placed, placement.slots_per_rank
    memory = machine_bytes(sizes, rows, config.hidden_size, slots)
    touched = touched_bytes(sizes, config.hidden_size, slots)
    return DecodePlan(job, specs, profile, priced, placement, job.decode.steps, memory, touched)


def _check_room(specs: Sequence[RequestSpec], batch: int, room: int) -> None:
    """Every sequence of every die must be in the cache at once."""
    totals = np.array([spec.priced_total for spec in specs]).reshape(-1, batch).sum(axis=1)
    if totals.max() > room:
        fit = batch * room // int(totals.max())
        raise UsageError(
            f"--batch {batch}: {totals.max()} tokens of KV exceed the {room} a die has room for; "
            f"about {fit} such sequences fit"
        )
