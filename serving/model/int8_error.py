"""How far INT8 logits are from float32's, along given tokens.

Two things differ: arithmetic, and experts chosen otherwise because a score moved. They are told apart by a
third pass: float32 with the experts that INT8 chose. Between that pass and INT8 only arithmetic differs;
that error is bounded (`BOUND`). How often another expert is chosen is a property of the router's margins,
narrow in a model with random weights, and is reported.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from serving.model.kv_cache import PagedKV
from serving.model.model import Model
from serving.model.reference import chosen_experts

__all__ = ["BOUND", "LogitError", "logit_error"]

BOUND = 0.1
"""Most the arithmetic may be off: root mean square of the error over the standard deviation of the logits.
A product carries relative errors of about 1/(127 · 2√3) · 3 from each side, 1 %; a model adds those of its
layers in quadrature (measured on made models: 0.01 to 0.05)."""

_PAGE = 64
Routes = list[torch.Tensor]


@dataclass(frozen=True)
class LogitError:
    """Errors of INT8 logits over `positions` positions, in units of the float32 logits' standard deviation.

    relative_rms: with the same experts; relative_max: the largest of one logit. own_relative_rms: when each
    chooses its experts itself; rows_rerouted: share of (position, layer) in which they then differ.
    """

    positions: int
    relative_rms: float
    relative_max: float
    own_relative_rms: float
    rows_rerouted: float

    @property
    def within(self) -> bool:
        """Whether the bound holds."""
        return self.relative_rms <= BOUND


def logit_error(int8: Model, full: Model, tokens: Sequence[int]) -> LogitError:
    """Compare two models of one checkpoint along tokens, at every position."""
    given = torch.tensor(tokens)
    ours, routes = _logits(int8, given, None)
    same, _ = _logits(full, given, routes)
    own, own_routes = _logits(full, given, None)
    spread = float(same.std())
    rerouted = [float((a != b).any(-1).double().mean()) for a, b in zip(routes, own_routes, strict=True)]
    return LogitError(
        len(given),
        float((ours - same).square().mean().sqrt()) / spread,
        float((ours - same).abs().max()) / spread,
        float((ours - own).square().mean().sqrt()) / float(own.std()),
        sum(rerouted) / max(1, len(rerouted)),
    )


def _logits(model: Model, tokens: torch.Tensor, routes: Routes | None) -> tuple[torch.Tensor, Routes]:
    """Logits [n, vocabulary] of one sequence, and the experts of each MoE layer, given or chosen."""
    kv = PagedKV(model.config, -(-len(tokens) // _PAGE), _PAGE)
    plan = model.plan([kv.append(0, len(tokens))], kv)
    x = model.embed(tokens)
    used: Routes = []
    for layer in model.layers:
        x = layer.attention(x, plan)
        h = layer.norm(x)
        if not layer.is_moe:
            x = x + layer.dense(h)
            continue
        idx = layer.route(h)[0] if routes is None else routes[len(used)]
        used.append(idx)
        x = x + layer.joined(chosen_experts(layer, h, idx, layer.weights_of(h, idx)), h)
    return model.logits(x), used
