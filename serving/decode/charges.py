"""What a decode step is charged, kernel by kernel, each priced layer for itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.job import DecodeOptions
from serving.pricing import MATMUL, OTHERS, Kernels, PricedModel
from serving.scheduler import Segment


@dataclass(frozen=True)
class StepKernels:
    """Kernels of one die's step, by name, ps.

    rows: priced tokens. attention: attention block and router of a MoE layer. dense_layer: a whole dense one.
    head: logits of all rows, once for the main model and once for the MTP layer. join: what the MTP layer
    does before its own block.
    """

    rows: int
    attention: Kernels
    dense_layer: Kernels
    head: Kernels
    join: Kernels


def step_kernels(model: PricedModel, kv: NDArray[np.int64], options: DecodeOptions) -> StepKernels:
    """Price a step.

    Args:
        kv: int64 [sequences], tokens each attends to.
        options: rows a sequence has, and whether the MTP layer runs.
    """
    rows = len(kv) * options.queries
    block = model.layer_kernels(kv, queries=options.queries)
    return StepKernels(
        rows,
        joined(block, {OTHERS: model.router_ps(rows)}),
        joined(block, model.dense_mlp_kernels(rows)),
        {OTHERS: model.head_ps(rows)},
        {MATMUL: model.mtp_projection_ps(rows)} if options.mtp else {},
    )


def contexts(segments: Sequence[Segment]) -> NDArray[np.int64]:
    """Tokens each decoding sequence attends to, its new one included, int64 [sequences]."""
    return np.array([segment.priced_start + 1 for segment in segments], dtype=np.int64)


def joined(*parts: Kernels) -> Kernels:
    """The sum of prices by name."""
    total: Kernels = {}
    for part in parts:
        for name, ps in part.items():
            total[name] = total.get(name, 0) + ps
    return total


def moe_passes(model: PricedModel, options: DecodeOptions) -> int:
    """MoE layers of an iteration: the main model's and the MTP layer, each one dispatch and one combine."""
    return model.shape.moe_layers + (model.shape.mtp_layers if options.mtp else 0)
