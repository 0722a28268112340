"""Grouped-query attention with normed queries and keys (Qwen3): several query heads share a KV head.

    q = rope(norm(x · W_q)) · scale, k = rope(norm(x · W_k)), v = x · W_v        norms over each head
    row = [k_0 | v_0 | k_1 | v_1 | … | 1]                                        per token, one pair a KV head

Multi-head attention is the case of as many KV heads as heads. Sums are those of `blocks.py`.

Source: Ainslie et al. 2023; Qwen3 technical report (2025), section 2, for the norms.
"""

import torch

from serving.model.blocks import BlockAttention
from serving.model.config import Qwen3MoeConfig
from serving.model.int8 import Product, product_of
from serving.model.norm import RMSNorm
from serving.model.plan import StepPlan
from serving.model.rope import rotate, softmax_scale
from serving.model.rows import Proofs, RowFunction, Rows
from serving.model.weights import CheckpointFiles

__all__ = ["GroupedQueryAttention"]


class GroupedQueryAttention:
    """Attention of one layer: input norm, projections, cache, output projection, residual."""

    def __init__(self, config: Qwen3MoeConfig, files: CheckpointFiles, layer: int, proofs: Proofs) -> None:
        self._config, self._layer = config, layer
        self._heads, self._groups, self._dim = (
            config.num_attention_heads, config.num_key_value_heads, config.head_dim,
        )  # fmt: skip
        share = self._heads // self._groups
        self._core = BlockAttention(share, self._dim, self._dim, self._groups, proofs, shared=False)
        self._load(files, f"model.layers.{layer}")
        self._project = RowFunction("gqa.project", self._project_rows, proofs)
        self._output = RowFunction("gqa.output", self._output_rows, proofs)

    def _load(self, files: CheckpointFiles, prefix: str) -> None:
        hidden, attention, dim = self._config.hidden_size, f"{prefix}.self_attn", self._dim
        eps = self._config.rms_norm_eps
        self._norm = RMSNorm(files.tensor(f"{prefix}.input_layernorm.weight", hidden), eps)
        self._q = self._product(files, f"{attention}.q_proj.weight", self._heads * dim, hidden)
        self._k = self._product(files, f"{attention}.k_proj.weight", self._groups * dim, hidden)
        self._v = self._product(files, f"{attention}.v_proj.weight", self._groups * dim, hidden)
        self._q_norm = RMSNorm(files.tensor(f"{attention}.q_norm.weight", dim), eps)
        self._k_norm = RMSNorm(files.tensor(f"{attention}.k_norm.weight", dim), eps)
        self._o = self._product(files, f"{attention}.o_proj.weight", hidden, self._heads * dim)
        self._scale = softmax_scale(self._config)

    def _product(self, files: CheckpointFiles, name: str, *shape: int) -> Product:
        return product_of(files.tensor(name, *shape), self._config.quantization == "int8")

    def __call__(self, x: torch.Tensor, plan: StepPlan) -> torch.Tensor:
        """x + attention(norm(x)), float32 [rows of the plan, hidden]; writes their cache rows first."""
        queries, rows = self._project(x, plan.cos, plan.sin)
        pages = plan.kv.pages[self._layer]
        pages.view(-1, pages.shape[-1])[:, :-1].index_copy_(0, plan.slots, rows)
        return self._output(x, self._core(queries, pages, plan.jobs))[0]

    def prove(self, x: torch.Tensor) -> None:
        """Prove the functions of rows at the size of x, float32 [n, hidden]."""
        angles = torch.zeros(x.shape[0], 1, self._dim)
        self._project(x, angles, angles)
        self._output(x, torch.zeros(x.shape[0], self._heads, self._dim))

    def prove_blocks(self, batch: int, num_queries: int, num_blocks: int) -> None:
        """Prove batched attention of `batch` sequences of these extents."""
        self._core.prove(batch, num_queries, num_blocks)

    def _project_rows(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Rows:
        """x [s, hidden] to scaled queries [s, heads, head_dim] and cache rows [s, kv_width]."""
        size = x.shape[0]
        x = self._norm(x)
        query = self._q_norm(self._q(x).view(size, self._heads, self._dim))
        key = self._k_norm(self._k(x).view(size, self._groups, self._dim))
        value = self._v(x).view(size, self._groups, self._dim)
        rotated = rotate(torch.cat((query, key), 1), cos, sin, self._config.rope_interleave)
        rows = torch.cat((rotated[:, self._heads :], value), -1).view(size, -1)
        return rotated[:, : self._heads].mul(self._scale), rows

    def _output_rows(self, x: torch.Tensor, attended: torch.Tensor) -> Rows:
        """x [s, hidden] plus the projection of the attended values [s, heads, head_dim]."""
        return (self._o(attended.reshape(x.shape[0], -1)).add_(x),)
