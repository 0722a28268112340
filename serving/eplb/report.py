"""The figures of `superpod eplb`: every MoE layer under every batch, as JSON, and their means as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from emulator.profile import Profile
from serving.eplb.observe import count_rows
from serving.eplb.plan import EplbSetting, balance, compare
from serving.model.model import Model
from serving.pricing import PricedModel

__all__ = ["CASES", "figures", "table"]

CASES = ("native", "balanced", "ideal")


def figures(
    model: Model,
    priced: PricedModel,
    settings: Sequence[EplbSetting],
    tokens: int,
    slices: int,
    seed: int,
) -> dict[str, Any]:
    """Count on seeded prompts, balance, and judge on other seeded prompts.

    Returns:
        {"tokens": counted and judged by, "hottest_expert", "share_above_mean": by layer, "rows": one entry
        for every setting and layer}: times in ms.
    """
    counted = count_rows(model, tokens, slices, seed)
    served = count_rows(model, tokens, 1, seed + 1)
    placed = {layer: balance(rows, settings[0]) for layer, rows in counted.items()}  # the same for any batch
    rows = [
        {
            "batch": setting.batch,
            "layer": layer,
            **{case: _entry(load.as_dict()) for case, load in loads.items()},
        }
        for setting in settings
        for layer in counted
        for loads in [compare(placed[layer], served[layer][:, 0], setting, priced)]
    ]
    hottest = {layer: float(c.max() / c.mean()) for layer, c in served.items()}
    above = {layer: float((c > c.mean()).mean()) for layer, c in served.items()}
    return {
        "tokens": tokens,
        "hottest_expert": hottest,
        "share_above_mean": above,
        "rows": rows,
        "labels": _labels(priced.profile),
    }


def _entry(load: dict[str, Any]) -> dict[str, Any]:
    return {
        "imbalance": load["imbalance"],
        "most_rows": load["most_rows"],
        "experts_ms": load["experts_ps"] / 1e9,
        "layer_ms": load["layer_ps"] / 1e9,
    }


def _labels(profile: Profile) -> dict[str, str]:
    return {
        **profile.labels(),
        "replica loads": "assumed: an expert's rows are shared evenly by its replicas",
    }


def table(found: dict[str, Any], policy: str, redundant: int) -> Table:
    """Means over the MoE layers; a column for each case."""
    out = Table(title=f"One MoE layer, {redundant} redundant experts by {policy}: the busiest die")
    out.add_column("batch", justify="right")
    for case in CASES:
        out.add_column(f"{case}: rows / mean", justify="right")
        out.add_column("layer ms", justify="right")
    out.add_column("balanced / native", justify="right")
    out.add_column("balanced / ideal", justify="right")
    for batch in dict.fromkeys(row["batch"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["batch"] == batch]
        ms = {case: float(np.mean([row[case]["layer_ms"] for row in rows])) for case in CASES}
        cells = [
            cell
            for case in CASES
            for cell in (f"{np.mean([row[case]['imbalance'] for row in rows]):.2f}", f"{ms[case]:.3f}")
        ]
        ratios = [f"{ms['balanced'] / ms[case]:.2f}" for case in ("native", "ideal")]
        out.add_row(str(batch), *cells, *ratios)
    return out
