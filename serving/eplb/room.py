"""What live balancing needs of a machine and a job; checked before a rank starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError
from emulator.profile import Profile
from serving.charges import LayerPlan
from serving.job import ReplayJob
from serving.model.config import ModelConfig
from serving.placement import EMPTY, Placement, PlacementOptions, place_experts
from serving.pricing import PricedModel

_PAGE = 4096
_GB = 1e9


@dataclass(frozen=True)
class MovePrices:
    """storage_bytes_per_s: what all ranks together read. memory_bytes_per_s: what one rank gives or takes.
    layer_bytes: charged for an expert of each layer."""

    storage_bytes_per_s: float
    memory_bytes_per_s: float
    layer_bytes: tuple[int, ...]

    def prefetch_ps(self, loads: Sequence[tuple[int, int]]) -> int:
        """Time to read these weights from storage, each once."""
        return round(sum(self.layer_bytes[layer] for layer, _ in loads) / self.storage_bytes_per_s * 1e12)

    def load_ps(self, transfers: Sequence[tuple[int, int, int]]) -> int:
        """The least time for transfers (layer, source, target): what the busiest rank gives or takes."""
        given: Counter[int] = Counter()
        taken: Counter[int] = Counter()
        for layer, source, target in transfers:
            given[source] += self.layer_bytes[layer]
            taken[target] += self.layer_bytes[layer]
        most = max((*given.values(), *taken.values()), default=0)
        return round(most / self.memory_bytes_per_s * 1e12)


def check_eplb(job: ReplayJob, priced: PricedModel) -> None:
    """Refuse what cannot be balanced while serving. Raises UsageError."""
    if job.eplb is None:
        return
    if not job.redundant_experts:
        raise UsageError("--eplb: there is nothing to move; give --redundant-experts as well")
    if job.num_ranks < 2:
        raise UsageError("--eplb: one rank holds every expert already; start at least 2")
    if job.recovery is not None:
        raise UsageError("--eplb and --recovery in-place: choose one; restart goes with both")
    move_prices(priced, ())


def move_prices(priced: PricedModel, plans: tuple[LayerPlan, ...], draft_layers: int = 0) -> MovePrices:
    """What moving experts costs on this machine; draft layers come after the model's, each stands for one.
    Raises UsageError: a number the profile lacks."""
    profile: Profile = priced.profile
    repeats = [plan.repeat for plan in plans if plan.is_moe] + [1] * draft_layers
    return MovePrices(
        storage_bytes_per_s=float(profile.value("vpc.storage_gb_per_s")) * _GB,
        memory_bytes_per_s=float(profile.value("ub.read_intra_gb_per_s")) * _GB,
        layer_bytes=tuple(repeat * priced.expert_bytes for repeat in repeats),
    )


def weights_bytes(config: ModelConfig) -> int:
    """Bytes of one routed expert of one layer as they are: float32."""
    return 3 * 4 * config.hidden_size * config.moe_intermediate_size


def home_table(job: ReplayJob, config: ModelConfig, placement: Placement) -> NDArray[np.int64]:
    """One replica of each expert, in the slots it has in `placement`, the others EMPTY: [ranks, slots]."""
    options = PlacementOptions(job.shared_experts)
    alone = place_experts(job.num_ranks, config.n_routed_experts, config.num_experts_per_tok, options)
    table = np.full(placement.slot_expert.shape, EMPTY, np.int64)
    for rank in range(job.num_ranks):
        held = alone.experts_on(rank)
        table[rank, : len(held)] = held
    return table


def eplb_bytes(
    job: ReplayJob, config: ModelConfig, placement: Placement, machine: Mapping[str, int]
) -> dict[str, int]:
    """Heap and staging of a rank with room for reports, plans and weights: whole pages."""
    assert job.eplb is not None
    layers = config.num_moe_layers + config.mtp_layers
    counts = 8 * layers * config.n_routed_experts * job.eplb.slices
    plan = 8 * layers * placement.slot_expert.size
    memory = -(-job.redundant_experts * layers // job.num_ranks) * weights_bytes(config)
    heap = job.num_ranks * counts + plan + memory + 4 * _PAGE
    staging = job.num_ranks * counts + plan
    return {
        "heap_bytes": machine["heap_bytes"] + -(-heap // _PAGE) * _PAGE,
        "staging_bytes": machine["staging_bytes"] + -(-staging // _PAGE) * _PAGE,
    }
