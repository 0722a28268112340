"""One layer's placements side by side: native, balanced by a policy, ideal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError
from serving.eplb.assess import Load, assess, ideal_rows, spread_rows
from serving.eplb.greedy import choose_replicas, place_replicas
from serving.eplb.hierarchical import rebalance
from serving.eplb.options import POLICIES
from serving.placement import EMPTY, PlacementOptions, place_experts
from serving.pricing import PricedModel

__all__ = ["POLICIES", "EplbSetting", "balance", "compare", "native"]

Table = NDArray[np.int64]


@dataclass(frozen=True)
class EplbSetting:
    """What a comparison holds fixed.

    redundant: replicas beyond the first of each expert. batch: sequences on each die; kv_tokens: context of
    each. groups, top_k: of the router. nodes: nodes of the pod that the ranks fill.
    """

    ranks: int
    redundant: int
    batch: int
    kv_tokens: int
    policy: str
    groups: int
    top_k: int
    nodes: int

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(f"--policy {self.policy}: choose {' or '.join(POLICIES)}")
        if self.redundant < 0:
            raise UsageError(f"--redundant-experts {self.redundant} must be at least 0")


def native(setting: EplbSetting, experts: int) -> Table:
    """One replica of each routed expert, and a free slot on each die: int64 [ranks, slots]."""
    return place_experts(setting.ranks, experts, setting.top_k, PlacementOptions()).slot_expert


def balance(counts: Table, setting: EplbSetting) -> Table:
    """The placement a policy makes of what was counted.

    Args:
        counts: int64 [experts, slices].

    Returns:
        int64 [ranks, slots] logical experts, EMPTY where a slot is free.

    Raises:
        UsageError: replicas that do not fit, or do not divide as the policy needs.
    """
    if setting.policy == "deepseek":
        _check_shared(len(counts), setting)
        slots = rebalance(
            counts.sum(axis=1).astype(np.float64),
            len(counts) + setting.redundant,
            setting.groups,
            setting.nodes,
            setting.ranks,
        )
        return slots.reshape(setting.ranks, -1)
    chosen = choose_replicas(counts, setting.redundant, setting.ranks)
    home = _with_room(native(setting, len(counts)), setting.redundant)
    return place_replicas(home, chosen, counts.sum(axis=1).astype(np.float64))


def _check_shared(experts: int, setting: EplbSetting) -> None:
    """DeepSeek's algorithm fills every slot of equally many on each die."""
    left = (experts + setting.redundant) % setting.ranks
    if left:
        fewer, more = setting.redundant - left, setting.redundant - left + setting.ranks
        nearest = fewer if fewer >= 0 and left <= setting.ranks // 2 else more
        raise UsageError(
            f"--redundant-experts {setting.redundant}: --policy deepseek shares {experts} experts and the "
            f"redundant ones equally among {setting.ranks} dies; nearest: {nearest}"
        )


def _with_room(home: Table, redundant: int) -> Table:
    """`home` with as many more free slots on every rank as the replicas need."""
    missing = redundant - int((home == EMPTY).sum())
    more = max(0, -(-missing // len(home)))
    return np.pad(home, ((0, 0), (0, more)), constant_values=EMPTY)


def compare(balanced: Table, served: Table, setting: EplbSetting, priced: PricedModel) -> dict[str, Load]:
    """Price one layer under each placement.

    Args:
        balanced: int64 [ranks, slots], what `balance` made of other rows.
        served: int64 [experts], rows of each expert in proportion; scaled to the step's rows.

    Returns:
        "native", "balanced", "ideal" -> its load.
    """
    total = setting.ranks * setting.batch * setting.top_k
    rows = _scaled(served, total)
    tables = {
        "native": spread_rows(rows, native(setting, len(rows))),
        "balanced": spread_rows(rows, balanced),
        "ideal": ideal_rows(total, setting.ranks),
    }
    return {
        name: assess(priced, priced.profile, table, setting.batch, setting.kv_tokens)
        for name, table in tables.items()
    }


def _scaled(loads: Table, total: int) -> Table:
    """Whole rows in proportion to loads, exactly `total` in all (largest remainders first)."""
    exact = loads * total
    rows: Table = exact // loads.sum()
    rest = total - int(rows.sum())
    rows[np.argsort(-(exact % loads.sum()), kind="stable")[:rest]] += 1
    return rows
