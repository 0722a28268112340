"""Grouped-query attention with normed queries and keys (Qwen3): several query heads share a KV head.

    q = rope(norm(x · W_q)) · scale, k = rope(norm(x · W_k)), v = x · W_v        norms over each head
    row = [k_0 | v_0 | k_1 | v_1 | … | 1]                                        per token, one pair a KV head

Multi-head attention is the case of as many KV heads as heads. Sums are those of `blocks.py`.

Source: Ainslie et al. 2023; Qwen3 technical report (2025), section 2, for the norms.
"""

from functools import lru_cache

import torch

from serving.model.blocks import BlockAttention
from serving.model.config import Qwen3MoeConfig
from serving.model.int8 import Product, product_of
from serving.model.norm import RMSNorm
from serving.model.part import WHOLE, Part
from serving.model.plan import StepPlan
from serving.model.rope import rotate, softmax_scale
from serving.model.rows import Proofs, RowFunction, Rows
from serving.model.weights import CheckpointFiles

__all__ = ["GroupedQueryAttention"]


class GroupedQueryAttention:
    """Attention of one layer: input norm, projections, cache, output projection, residual.

    Args:
        part: whose heads and KV heads, and columns of the output projection, this is.
    """

    def __init__(
        self, config: Qwen3MoeConfig, files: CheckpointFiles, layer: int, proofs: Proofs, part: Part = WHOLE
    ) -> None:
        self._config, self._layer, self._part = config, layer, part
        self._mine, self._kept = (
            part.share(config.num_attention_heads),
            part.kv_heads(config.num_key_value_heads),
        )
        self._columns = part.share(config.hidden_size)
        self._heads, self._groups, self._dim = (
            self._mine.stop - self._mine.start, self._kept.stop - self._kept.start, config.head_dim,
        )  # fmt: skip
        of_all = config.num_attention_heads // config.num_key_value_heads
        within = (self._mine.start % of_all, of_all)
        share = self._heads // self._groups
        self._core = BlockAttention(
            share, self._dim, self._dim, self._groups, proofs, shared=False, within=within
        )
        self._load(files, f"model.layers.{layer}")
        if part.size == 1:
            self._project = RowFunction("gqa.project", self._project_rows, proofs)
            self._output = RowFunction("gqa.output", self._output_rows, proofs)
            return
        whole = lru_cache(1)(lambda: GroupedQueryAttention(config, files, layer, proofs))
        self._project = RowFunction(
            part.named("gqa.project"),
            self._project_rows,
            proofs,
            lambda *rows: whole()._project_some(self._mine, self._kept, *rows),
        )
        self._output = RowFunction(
            part.named("gqa.output"),
            self._output_rows,
            proofs,
            lambda x, values: (whole()._o(values)[:, self._columns] + x,),
        )

    def _load(self, files: CheckpointFiles, prefix: str) -> None:
        hidden, attention, dim = self._config.hidden_size, f"{prefix}.self_attn", self._dim
        eps = self._config.rms_norm_eps
        self._norm = RMSNorm(files.tensor(f"{prefix}.input_layernorm.weight", hidden), eps)
        heads, kv_heads = self._config.num_attention_heads, self._config.num_key_value_heads
        self._q = self._heads_of(files, f"{attention}.q_proj.weight", heads, self._mine)
        self._k = self._heads_of(files, f"{attention}.k_proj.weight", kv_heads, self._kept)
        self._v = self._heads_of(files, f"{attention}.v_proj.weight", kv_heads, self._kept)
        self._q_norm = RMSNorm(files.tensor(f"{attention}.q_norm.weight", dim), eps)
        self._k_norm = RMSNorm(files.tensor(f"{attention}.k_norm.weight", dim), eps)
        o = files.tensor(f"{attention}.o_proj.weight", hidden, heads * dim)
        self._o = self._of(o[self._columns])
        self._scale = softmax_scale(self._config)

    def _heads_of(self, files: CheckpointFiles, name: str, heads: int, mine: slice) -> Product:
        """The product with the rows of some of a weight's heads."""
        hidden = self._config.hidden_size
        weight = files.tensor(name, heads * self._dim, hidden).view(heads, self._dim, hidden)
        return self._of(weight[mine].view(-1, hidden))

    def _of(self, weight: torch.Tensor) -> Product:
        return product_of(weight, self._config.quantization == "int8")

    def __call__(self, x: torch.Tensor, plan: StepPlan) -> torch.Tensor:
        """x + attention(norm(x)), float32 [rows of the plan, hidden]; writes their cache rows first."""
        queries, rows = self._project(x, plan.cos, plan.sin)
        pages = plan.kv.pages[self._layer]
        pages.view(-1, pages.shape[-1])[:, :-1].index_copy_(0, plan.slots, rows)
        return self._join(x, self._core(queries, pages, plan.jobs))

    def _join(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """x plus the projection of the attended values of my heads; of all, where others have the rest."""
        values = attended.reshape(x.shape[0], -1)
        if self._part.size == 1:
            return self._output(x, values)[0]
        values = self._part.whole("values", values)
        return self._part.whole("hidden", self._output(x[:, self._columns], values)[0])

    def prove(self, x: torch.Tensor) -> None:
        """Prove the functions of rows at the size of x, float32 [n, hidden]."""
        angles = torch.zeros(x.shape[0], 1, self._dim)
        self._project(x, angles, angles)
        self._join(x, torch.zeros(x.shape[0], self._heads, self._dim))

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

    def _output_rows(self, x: torch.Tensor, values: torch.Tensor) -> Rows:
        """My columns of x [s, columns] plus the projection of the values [s, all heads · head_dim]."""
        return (self._o(values).add_(x),)

    def _project_some(self, mine: slice, kept: slice, *rows: torch.Tensor) -> Rows:
        """Of `_project_rows`, the queries of some heads and the cache rows of some KV heads."""
        queries, cached = self._project_rows(*rows)
        cached = cached.view(len(cached), self._groups, -1)[:, kept]
        return queries[:, mine].contiguous(), cached.reshape(len(cached), -1)
