"""What of a layer is a function of rows: norm, router, gated MLPs (dense, shared and routed experts).

Each piece is separate, so that serving can put communication between them, and each is batch invariant
(`rows.py`).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
import torch

from emulator.errors import InternalError, UsageError
from serving.model import fused
from serving.model.attention import LatentAttention
from serving.model.checkpoint import expert_shapes, mlp_shapes
from serving.model.config import DeepseekV3Config, ModelConfig, Qwen3MoeConfig
from serving.model.elementwise import sigmoid_, silu_
from serving.model.gqa import GroupedQueryAttention
from serving.model.int8 import Product, product_of
from serving.model.norm import RMSNorm
from serving.model.part import WHOLE, Part
from serving.model.plan import StepPlan
from serving.model.routing import choose_experts
from serving.model.rows import SIZES, Proofs, RowFunction, Rows
from serving.model.weights import CheckpointFiles

__all__ = ["Layer", "combine_in_order", "gated_mlp"]


def gated_mlp(
    config: ModelConfig, files: CheckpointFiles, prefix: str, width: int, proofs: Proofs
) -> RowFunction:
    """down(silu(gate(x)) · up(x)) with the weights under `prefix`, as a function of rows [n, hidden]."""
    weights = [files.tensor(name, *shape) for name, shape in mlp_shapes(config, prefix, width).items()]
    return mlp_of(weights, proofs, config.quantization == "int8")


def mlp_of(weights: Sequence[torch.Tensor], proofs: Proofs, int8: bool = False) -> RowFunction:
    """The same of given weights: gate and up float32 [width, hidden], down float32 [hidden, width]."""
    width = len(weights[0])
    gate, up, down = (product_of(weight, int8) for weight in weights)

    def function(x: torch.Tensor) -> Rows:
        return (down(_gated(gate, up, x)),)

    compiled = None if int8 else fused.mlp(weights[0], weights[1], weights[2])
    return RowFunction(f"mlp.{width}", function, proofs, fused=compiled)


class SplitMlp:
    """A gated MLP whose width, and then whose outputs, are split over the ranks of a part; called like the
    whole one. `what` names the columns of the inner product: "dense" or "shared"."""

    def __init__(
        self,
        what: str,
        config: ModelConfig,
        files: CheckpointFiles,
        prefix: str,
        width: int,
        proofs: Proofs,
        part: Part,
    ) -> None:
        self._what = what
        self._part, int8 = part, config.quantization == "int8"

        def products(inner: slice, outer: slice) -> tuple[Product, Product, Product]:
            gate, up, down = (
                files.tensor(name, *shape) for name, shape in mlp_shapes(config, prefix, width).items()
            )
            return tuple(product_of(w, int8) for w in (gate[inner], up[inner], down[outer]))  # type: ignore[return-value]

        inner, outer = part.share(width), part.share(config.hidden_size)
        whole = lru_cache(1)(lambda: products(slice(None), slice(None)))
        gate, up, down = products(inner, outer)
        self._inner = RowFunction(
            part.named(f"mlp.{width}.inner"),
            lambda x: (_gated(gate, up, x),),
            proofs,
            lambda x: (_gated(*whole()[:2], x)[:, inner].contiguous(),),
        )
        self._outer = RowFunction(
            part.named(f"mlp.{width}.outer"),
            lambda x: (down(x),),
            proofs,
            lambda x: (whole()[2](x)[:, outer].contiguous(),),
        )

    def __call__(self, x: torch.Tensor) -> Rows:
        """Rows [n, hidden] to the same, on every rank."""
        inner = self._part.whole(self._what, self._inner(x)[0])
        return (self._part.whole("hidden", self._outer(inner)[0]),)


def _gated(gate: Product, up: Product, x: torch.Tensor) -> torch.Tensor:
    return silu_(gate(x)).mul_(up(x))


def combine_in_order(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sum weights[:, k] · rows[:, k] one by one in the order of k; rows [n, k, hidden], weights [n, k].

    This is the arithmetic that any combine must reproduce bit for bit: each product rounded to float32, then
    added.
    """
    total = rows[:, 0] * weights[:, :1]
    for k in range(1, weights.shape[1]):
        total = total + rows[:, k] * weights[:, k : k + 1]
    return total


def _attention_of(
    config: ModelConfig, files: CheckpointFiles, index: int, proofs: Proofs, part: Part
) -> LatentAttention | GroupedQueryAttention:
    if isinstance(config, Qwen3MoeConfig):
        return GroupedQueryAttention(config, files, index, proofs, part)
    if isinstance(config, DeepseekV3Config):
        return LatentAttention(config, files, index, proofs, part)
    raise InternalError(f"no attention for {type(config).__name__}")


class Layer:
    """One decoder layer, in the pieces that serving calls in turn.

    A dense layer: x = attention(x, plan); x = x + dense(norm(x)).
    A MoE layer: x = attention(x, plan); h = norm(x); route(h); expert(e, rows of h) wherever the experts
    live; routed = weighted sum by expert index (`combine_in_order`); x = x + joined(routed, h).

    Args:
        part: of attention, dense MLP and shared experts, whose share this rank computes.
    """

    def __init__(
        self,
        config: ModelConfig,
        files: CheckpointFiles,
        index: int,
        experts: Iterable[int],
        proofs: Proofs,
        part: Part = WHOLE,
    ) -> None:
        self.part = part
        self.index = index
        self.is_moe = config.is_moe(index)
        self.has_shared = False
        self._config, self._files, self._proofs = config, files, proofs
        self._attention = _attention_of(config, files, index, proofs, part)
        prefix = f"model.layers.{index}"
        norm_weight = files.tensor(f"{prefix}.post_attention_layernorm.weight", config.hidden_size)
        norm = RMSNorm(norm_weight, config.rms_norm_eps)
        compiled = fused.norm(norm_weight, config.rms_norm_eps)
        self._norm = RowFunction("norm", lambda x: (norm(x),), proofs, fused=compiled)
        self._experts: dict[int, RowFunction] = {}
        self._loadable: frozenset[int] = frozenset()
        if self.is_moe:
            self._load_moe(f"{prefix}.mlp", experts)
        else:
            self._dense = self._mlp("dense", f"{prefix}.mlp", config.intermediate_size)

    def _load_moe(self, prefix: str, experts: Iterable[int]) -> None:
        config = self._config
        self._gate = self._files.tensor(
            f"{prefix}.gate.weight", config.n_routed_experts, config.hidden_size
        ).t()
        self._bias = torch.zeros(config.n_routed_experts)
        if config.router_has_bias:
            bias = f"{prefix}.gate.e_score_correction_bias"
            self._bias = self._files.tensor(bias, config.n_routed_experts)
        self.has_shared = config.n_shared_experts > 0
        if self.has_shared:
            width = config.moe_intermediate_size * config.n_shared_experts
            self._shared = self._mlp("shared", f"{prefix}.shared_experts", width)
            self._one_shared = lru_cache(1)(lambda: self._whole_shared(f"{prefix}.shared_experts", width))
        self._make_route()
        self.open_experts(experts)

    def _mlp(self, what: str, prefix: str, width: int) -> Callable[[torch.Tensor], Rows]:
        """An MLP that every rank's tokens need."""
        if self.part.size == 1:
            return gated_mlp(self._config, self._files, prefix, width, self._proofs)
        return SplitMlp(what, self._config, self._files, prefix, width, self._proofs, self.part)

    def _whole_shared(self, prefix: str, width: int) -> Callable[[torch.Tensor], Rows]:
        if self.part.size == 1:
            return self._shared
        return gated_mlp(self._config, self._files, prefix, width, self._proofs)

    def open_experts(self, experts: Iterable[int]) -> None:
        """Check the weights of these experts and of no others from now on; nothing to do in a dense layer.

        Raises:
            UsageError: a tensor is missing, misshapen or cut short.
        """
        if not self.is_moe:
            return
        self._loadable = frozenset(experts)
        for expert in sorted(self._loadable):
            for name, shape in expert_shapes(self._config, self.index, expert).items():
                self._files.check(name, shape)

    def prove(self) -> None:
        """Prove every size of every function of rows of this layer, by using it on zeros (`rows.py`)."""
        config = self._config
        for size in SIZES:
            x = torch.zeros(size, config.hidden_size)
            self._attention.prove(x)
            self.norm(x)
            if self.is_moe:
                self._expert_function(0)(x)  # experts of one width share their proofs
                self.route(x)
                if self.has_shared:
                    self.shared(x)
            else:
                self.dense(x)

    def prove_blocks(self, batch: int, num_queries: int, num_blocks: int) -> None:
        """Prove attention of `batch` sequences with so many queries over so many key blocks, if needed."""
        self._attention.prove_blocks(batch, num_queries, num_blocks)

    def attention(self, x: torch.Tensor, plan: StepPlan) -> torch.Tensor:
        """x + attention(norm(x)), float32 [n, hidden]; writes the cache rows of the plan's tokens."""
        return self._attention(x, plan)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        """The norm before the MLP: float32 [n, hidden] to the same."""
        return self._norm(x)[0]

    def dense(self, h: torch.Tensor) -> torch.Tensor:
        """The MLP of a dense layer, of normed rows; without the residual."""
        return self._dense(h)[0]

    def joined(self, routed: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """The routed part of a MoE layer plus, if there are any, its shared experts of normed rows h."""
        return routed + self.shared(h) if self.has_shared else routed

    def shared(self, h: torch.Tensor) -> torch.Tensor:
        """The shared expert(s) of a MoE layer that has some, of normed rows."""
        return self._shared(h)[0]

    def shared_here(self, rows: torch.Tensor) -> torch.Tensor:
        """The same computed by this rank alone, where a shared expert is placed like routed ones."""
        return self._one_shared()(rows)[0]

    def route(self, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose experts for normed rows [n, hidden].

        Returns:
            idx int64 [n, k], logical experts in ascending order; weights float32 [n, k], scaled.
        """
        idx, weights = self._route(h)
        return idx, weights

    def router_scores(self, h: torch.Tensor) -> torch.Tensor:
        """Scores of normed rows before the correction bias, float32 [n, experts]; for calibration, not batch
        invariant."""
        return self._scores(h)

    def weights_of(self, h: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
        """Weights float32 [n, k] of experts idx int64 [n, k], however they were chosen, for normed rows."""
        return self._weights(self._scores(h), idx)

    @property
    def router_bias(self) -> torch.Tensor:
        """The correction bias, float32 [experts]; a MoE layer's only. Zeros where the router has none."""
        return self._bias

    @property
    def router_weight(self) -> torch.Tensor:
        """The gate, float32 [experts, hidden]; a MoE layer's only."""
        return self._gate.t()

    def set_router_weight(self, weight: torch.Tensor) -> None:
        """Choose with this gate, float32 [experts, hidden], from now on."""
        self._gate = weight.t()
        self._make_route()

    def set_router_bias(self, bias: torch.Tensor) -> None:
        """Choose with this correction bias, float32 [experts], from now on."""
        self._bias = bias
        self._make_route()

    def expert(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        """Routed expert `expert` (logical index) of rows [n, hidden]; unweighted.

        Raises:
            UsageError: this model was loaded without that expert.
        """
        function = self._experts.get(expert)
        if function is None:
            function = self._experts[expert] = self._open_expert(expert)
        return function(rows)[0]

    def expert_bytes(self, expert: int) -> np.ndarray:
        """An expert's weights as they are in the checkpoint, uint8: gate, up, down, row by row."""
        shapes = expert_shapes(self._config, self.index, expert)
        parts = [self._files.tensor(name, *shape).numpy().ravel() for name, shape in shapes.items()]
        return np.concatenate(parts).view(np.uint8)

    def install_expert(self, expert: int, weights: np.ndarray) -> None:
        """Compute an expert with these weights from now on: bytes as `expert_bytes` gives them."""
        shapes = list(expert_shapes(self._config, self.index, expert).values())
        flat = torch.empty(weights.size // 4)  # aligned as the checkpoint's are
        flat.numpy()[:] = weights.view(np.float32)
        parts = torch.split(flat, [a * b for a, b in shapes])
        chosen = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        self._experts[expert] = mlp_of(chosen, self._proofs, self._config.quantization == "int8")
        self._loadable |= {expert}

    def drop_expert(self, expert: int) -> None:
        """Do without an expert from now on."""
        self._experts.pop(expert, None)
        self._loadable -= {expert}

    def _open_expert(self, expert: int) -> RowFunction:
        if expert not in self._loadable:
            raise UsageError(f"layer {self.index}: expert {expert} is not loaded here")
        return self._expert_function(expert)

    def _expert_function(self, expert: int) -> RowFunction:
        prefix = f"model.layers.{self.index}.mlp.experts.{expert}"
        return gated_mlp(self._config, self._files, prefix, self._config.moe_intermediate_size, self._proofs)

    def _make_route(self) -> None:
        config, compiled = self._config, None
        if config.router_score == "sigmoid":
            groups, factor = (config.n_group, config.topk_group), config.routed_scaling_factor
            rest = groups, config.num_experts_per_tok, config.norm_topk_prob, factor
            compiled = fused.router(self._gate.t(), self._bias, *rest)
        self._route = RowFunction("route", self._route_rows, self._proofs, fused=compiled)

    def _route_rows(self, h: torch.Tensor) -> Rows:
        """The bias steers the choice only: the groups with the best two experts, then the best experts."""
        config = self._config
        scores = self._scores(h)
        idx = choose_experts(
            (scores + self._bias).numpy(), config.n_group, config.topk_group, config.num_experts_per_tok
        )
        return idx, self._weights(scores, idx)

    def _weights(self, scores: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
        weights = scores.gather(1, idx)
        if self._config.norm_topk_prob:
            weights.div_(weights.sum(-1, True).add_(1e-20))  # which vanishes beside a softmax's share
        return weights.mul_(self._config.routed_scaling_factor)

    def _scores(self, h: torch.Tensor) -> torch.Tensor:
        """Sigmoid or softmax of the gate's products, float32 [n, experts]."""
        products = torch.mm(h, self._gate)
        return sigmoid_(products) if self._config.router_score == "sigmoid" else torch.softmax(products, -1)
