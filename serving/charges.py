"""What one rank's step is charged: the priced model's kernels, spread over the layers that are executed.

A layer that is executed stands for `repeat` priced ones (`PricedModel.repeat`), and whatever it is charged is
charged so many times. Nothing here moves the clock; `serving.forward` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collectives.libraries import ready_ps
from emulator.errors import UsageError
from serving.exchange_price import ExchangeCosts
from serving.model.config import ModelConfig
from serving.placement import Placement
from serving.prefix_price import PrefillPrice
from serving.pricing import PricedModel
from serving.scheduler import Segment


@dataclass(frozen=True)
class LayerPlan:
    """One executed layer and how many priced layers it stands for."""

    index: int
    is_moe: bool
    repeat: int


def plan_layers(config: ModelConfig, priced: PricedModel) -> list[LayerPlan]:
    """Match the functional model's layers with the priced model's.

    Raises:
        UsageError: another routing shape than the priced model's, or layers that cannot stand for its own.
    """
    priced.check_routing(routing_shape(config))
    repeats = priced.repeat_dense(config.num_hidden_layers - config.num_moe_layers)
    repeats += priced.repeat(config.num_moe_layers)
    return [LayerPlan(i, config.is_moe(i), repeat) for i, repeat in enumerate(repeats)]


def routing_shape(config: ModelConfig) -> dict[str, int]:
    """The functional model's routing shape under the names of `ModelShape.routing`."""
    return {
        "routed experts": config.n_routed_experts,
        "shared experts": config.n_shared_experts,
        "top-k": config.num_experts_per_tok,
        "groups": config.n_group,
        "groups kept": config.topk_group,
    }


def kv_capacity(priced: PricedModel, placement: Placement, check: bool) -> int:
    """Priced KV tokens the fullest die has room for; with `check`, not even one is an error.

    Raises:
        UsageError: the weights at priced size do not fit a die.
    """
    shared_local = not placement.shared_placed
    if check:
        try:
            priced.check_memory(placement.slots_per_rank, 1, shared_local)
        except UsageError as error:
            raise UsageError(
                f"{error}; start more ranks, or take --no-memory-check (in Python memory_check=False)"
            ) from None
        return priced.max_kv_tokens(placement.slots_per_rank, shared_local)
    return 1 << 40


@dataclass(frozen=True)
class StepCharge:
    """Prices of one rank's step, ps; per priced layer where a layer is meant.

    rows: priced tokens. attention_ps: attention block and router of a MoE layer; dense_attention_ps: without
    router. head_ps: logits of the sampled positions.
    """

    rows: int
    attention_ps: int
    dense_attention_ps: int
    dense_ps: int
    shared_ps: int
    head_ps: int

    def layer_attention_ps(self, is_moe: bool) -> int:
        return self.attention_ps if is_moe else self.dense_attention_ps


class Charges:
    """Prices for one rank; holds what does not change from step to step."""

    def __init__(self, priced: PricedModel, num_ranks: int, shared_local: bool) -> None:
        self.priced = priced
        self.step_overhead_ps = priced.step_overhead_ps
        self._shared_local = shared_local
        self._dispatch = priced.dispatch_costs(0, num_ranks)
        self._combine = priced.combine_costs(0, num_ranks)
        self._repeated: dict[tuple[bool, int], ExchangeCosts] = {}
        self.prefill: PrefillPrice | None = None
        """Prices of whole prefills, where prefixes are reused."""

    def reuse_ps(self, found: Sequence[int]) -> int:
        """What prefixes of these priced tokens, found in the cache, do not save."""
        return 0 if self.prefill is None else sum(self.prefill.reuse_ps(tokens) for tokens in found)

    def step(self, segments: Sequence[Segment]) -> StepCharge:
        """Price everything of a step that does not depend on routing."""
        decode_kv = np.array([s.priced_start + 1 for s in segments if s.decode], dtype=np.int64)
        prefill = [(s.priced_start, s.priced_count) for s in segments if not s.decode]
        rows = sum(segment.priced_count for segment in segments)
        queries = max((s.count for s in segments if s.decode), default=1)  # more than 1 with drafts
        attention_ps = sum(self.priced.layer_kernels(decode_kv, prefill, queries).values())
        return StepCharge(
            rows=rows,
            attention_ps=attention_ps + self.priced.router_ps(rows),
            dense_attention_ps=attention_ps,
            dense_ps=self.priced.dense_mlp_ps(rows),
            shared_ps=self.priced.shared_ps(rows) if self._shared_local else 0,
            head_ps=self.priced.head_ps(sum(s.count if s.decode else s.samples for s in segments)),
        )

    def experts_ps(self, priced_rows_per_slot: NDArray[np.int64]) -> int:
        """Price of this rank's experts in one priced layer."""
        return self.priced.experts_ps(priced_rows_per_slot)

    def dispatch(self, rows_sent: int, repeat: int) -> ExchangeCosts:
        """Costs of a dispatch of so many priced rows that stands for `repeat` layers."""
        return self._with_rows(self._costs(True, repeat), "dispatch", rows_sent, repeat)

    def combine(self, rows_back: int, repeat: int) -> ExchangeCosts:
        """Costs of a combine that stands for `repeat` layers and gives so many priced rows back."""
        return self._with_rows(self._costs(False, repeat), "combine", rows_back, repeat)

    def _with_rows(self, costs: ExchangeCosts, operation: str, rows: int, repeat: int) -> ExchangeCosts:
        if not rows:
            return costs
        bf16_bytes = rows * self.priced.combine_row_bytes
        ready = ready_ps(self.priced.profile, operation, bf16_bytes) * repeat
        return replace(costs, start_ps=costs.start_ps + ready)

    def _costs(self, dispatch: bool, repeat: int) -> ExchangeCosts:
        key = (dispatch, repeat)
        if key not in self._repeated:
            self._repeated[key] = (self._dispatch if dispatch else self._combine).repeated(repeat)
        return self._repeated[key]


def check_batch(batched_tokens: int, max_seqs: int) -> None:
    """Raise UsageError unless a step has room for one token of every running request."""
    if max_seqs < 1:
        raise UsageError(f"--max-num-seqs {max_seqs} must be at least 1")
    if batched_tokens < max_seqs:
        raise UsageError(
            f"--max-num-batched-tokens {batched_tokens} must be at least the {max_seqs} requests that may "
            "run at once"
        )
