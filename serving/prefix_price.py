"""What a prefill costs in closed form: for weighing where to put it, and for what reuse does not save.

Routing is taken as even, and every die as doing the same at once; a run shows its own routing and waiting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from serving.exchange_price import estimate_ps
from serving.pricing import PricedModel

__all__ = ["PrefillPrice"]

_MOST_KNOWN = 4096
"""Prices remembered."""


@dataclass
class PrefillPrice:
    """Prefills on one of `num_ranks` dies that hold `slots` experts of each layer.

    shared_local: the shared experts are computed where the tokens are. unsaved: share of a cached token's
    prefill that is spent all the same.
    """

    priced: PricedModel
    num_ranks: int
    slots: int
    shared_local: bool
    unsaved: Fraction = Fraction(0)
    _known: dict[tuple[int, int], int] = field(default_factory=dict)

    def prefill_ps(self, cached: int, new: int) -> int:
        """`new` priced tokens after `cached` ones, all layers."""
        if (cached, new) not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[cached, new] = self._prefill_ps(cached, new)
        return self._known[cached, new]

    def reuse_ps(self, found: int) -> int:
        """What finding a prefix of `found` priced tokens does not save."""
        return int(self.unsaved * self.prefill_ps(0, found)) if self.unsaved else 0

    def cost(self, cached: int, new: int) -> int:
        """A prefill with what its reuse does not save: the cost model of the prefill scheduler."""
        return self.prefill_ps(cached, new) + self.reuse_ps(cached)

    def _prefill_ps(self, cached: int, new: int) -> int:
        if new < 1:
            return 0
        priced, slots, shape = self.priced, self.slots, self.priced.shape
        routed = -(-new // priced.parts)  # a group shares them out
        rows = routed * (shape.top_k + (0 if self.shared_local else shape.shared_experts))
        attention = sum(priced.layer_kernels(np.zeros(0, np.int64), [(cached, new)]).values())
        per_slot = [rows // slots + (i < rows % slots) for i in range(slots)]
        moe = priced.router_ps(routed) + priced.experts_ps(per_slot)
        moe += priced.shared_ps(new) if self.shared_local else 0
        exchanges = priced.dispatch_costs(rows, self.num_ranks), priced.combine_costs(rows, self.num_ranks)
        for costs in exchanges:
            moe += estimate_ps(priced.profile, costs, self.num_ranks, rows)
        dense = shape.dense_layers * priced.dense_mlp_ps(new)
        return shape.layers * attention + dense + shape.moe_layers * moe
