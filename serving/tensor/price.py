"""What one rank of a tensor-parallel group is charged: the priced model's kernels at the sizes of its share.

Split are what `serving.model.part` splits: heads (and KV heads), the width of dense MLPs and shared experts,
the vocabulary. Each rank keeps the latent of MLA, the router and its routed experts whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from emulator.errors import UsageError
from serving.charges import Charges, StepCharge
from serving.pricing import PricedModel
from serving.scheduler import Segment

__all__ = ["TensorCharges", "gathered_bytes", "shard"]

_BF16, _FLOAT = 2, 4
"""Bytes of an activation, and of a logit, on the way between the ranks of a group."""


def shard(priced: PricedModel, parts: int) -> PricedModel:
    """One rank's share of a priced model; itself for one part.

    Raises:
        UsageError: a size that does not split.
    """
    if parts == 1:
        return priced
    s = priced.shape
    sizes = {
        "heads": s.heads,
        "dense_intermediate": s.dense_intermediate,
        "vocab": s.vocab,
        "hidden": s.hidden,
        "expert_intermediate": s.expert_intermediate if s.shared_experts else parts,
    }
    for name, size in sizes.items():
        if size % parts:
            raise UsageError(
                f"--tp-size {parts}: priced as {priced.name}, whose {name}={size} does not split into "
                f"{parts} parts"
            )
    kv_heads = s.kv_heads and max(1, s.kv_heads // parts)
    shape = replace(
        s,
        heads=s.heads // parts,
        kv_heads=kv_heads,
        dense_intermediate=s.dense_intermediate // parts,
        vocab=s.vocab // parts,
    )
    return replace(priced, shape=shape, parts=parts)


def gathered_bytes(priced: PricedModel, what: str, rows: int) -> int:
    """Bytes one rank gives to each other in a gather of `rows` priced rows.

    Args:
        priced: its share.
        what: see `serving.model.part`; "rows": whole rows of which each rank has its share.
    """
    s, parts = priced.shape, priced.parts
    if what == "rows":
        return -(-rows // parts) * s.hidden * _BF16
    widths = {
        "values": s.heads * s.v_head,
        "hidden": s.hidden // parts,
        "dense": s.dense_intermediate,
        "shared": s.shared_experts * s.expert_intermediate // parts,
    }
    return rows * s.vocab * _FLOAT if what == "logits" else rows * widths[what] * _BF16


class TensorCharges(Charges):
    """Prices of one rank of a group: every row of the group's, at the sizes of its share; of routing and
    dispatch its share of the rows."""

    def step(self, segments: Sequence[Segment]) -> StepCharge:
        """See `Charges.step`."""
        charge = super().step(segments)
        router_ps = self.priced.router_ps(-(-charge.rows // self.priced.parts))
        return replace(charge, attention_ps=charge.dense_attention_ps + router_ps)
