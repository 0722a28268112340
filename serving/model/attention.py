"""Multi-head latent attention, absorbed: queries go into the latent space, so keys are the cached rows.

    q′ = [rope(q_rope) | q_nope · W_uk] · scale            per head
    row = [rope(k_rope) | norm(c) | 1]                     per token, shared by all heads
    out = Σ exp(q′·row[:-1] − max) · [norm(c) | 1]         numerators and, in the last column, the denominator

The same arithmetic serves prefill, decode and recomputation (`blocks.py`).

Source: DeepSeek-V2 (2024), section 2.1, for the architecture and the absorption.
"""

from functools import lru_cache

import torch

from serving.model import fused
from serving.model.blocks import BlockAttention
from serving.model.config import DeepseekV3Config
from serving.model.int8 import LatentRows, Product, product_of
from serving.model.kv_cache import PagedKV
from serving.model.norm import RMSNorm
from serving.model.part import WHOLE, Part
from serving.model.plan import StepPlan, make_plan
from serving.model.rope import RotaryTables, rotate, softmax_scale
from serving.model.rows import Proofs, RowFunction, Rows, bits_equal
from serving.model.weights import CheckpointFiles

__all__ = ["LatentAttention"]

_PROVEN = ((5, 1), (63, 1), (64, 1), (130, 1), (200, 1), (1, 37), (30, 70))
"""Steps on which one call is proven: tokens there, and new ones, of each sequence."""
_LATENT_NORM_EPS = (
    1e-6  # the reference implementation's default for its two inner norms, whatever rms_norm_eps says
)


class LatentAttention:
    """Attention of one layer: input norm, projections, cache, output projection, residual.

    Args:
        part: whose heads, and columns of the output projection, this is.
    """

    def __init__(
        self,
        config: DeepseekV3Config,
        files: CheckpointFiles,
        layer: int,
        proofs: Proofs,
        part: Part = WHOLE,
    ) -> None:
        self._config, self._part = config, part
        self._layer, self._proofs = layer, proofs
        rope, rank, heads = config.qk_rope_head_dim, config.kv_lora_rank, config.num_attention_heads
        self._mine = part.share(heads)
        self._heads = self._mine.stop - self._mine.start
        self._columns = part.share(config.hidden_size)
        self._rows = LatentRows(rope, rank) if config.quantization else None
        unpack, within = self._rows.unpack if self._rows else None, (self._mine.start, heads)
        self._core = BlockAttention(self._heads, rope + rank, rank, 1, proofs, unpack=unpack, within=within)
        self._fused: fused.Attention | None = None
        self._trusted: bool | None = None
        self._load(files, f"model.layers.{layer}")
        if part.size == 1:
            self._project = RowFunction("attention.project", self._project_rows, proofs)
            self._output = RowFunction("attention.output", self._output_rows, proofs)
            return
        whole = lru_cache(1)(lambda: LatentAttention(config, files, layer, proofs))
        self._project = RowFunction(
            part.named("attention.project"),
            self._project_rows,
            proofs,
            lambda *rows: whole()._project_some(self._mine, *rows),
        )
        self._values = RowFunction(
            part.named("attention.values"),
            lambda attended: (self._value_rows(attended),),
            proofs,
            lambda attended: (whole()._some_values(self._mine, attended),),
        )
        self._output = RowFunction(
            part.named("attention.output"),
            lambda x, values: (self._o(values).add_(x),),
            proofs,
            lambda x, values: (whole()._o(values)[:, self._columns] + x,),
        )

    def _load(self, files: CheckpointFiles, prefix: str) -> None:
        config, attention = self._config, f"{prefix}.self_attn"
        hidden, rank = config.hidden_size, config.kv_lora_rank
        mine, all_heads = self._mine, config.num_attention_heads
        nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        self._norm = RMSNorm(files.tensor(f"{prefix}.input_layernorm.weight", hidden), config.rms_norm_eps)
        self._q_a: Product | None = None
        self._q_norm, q_in = None, hidden
        q_name = f"{attention}.q_proj.weight"
        if config.q_lora_rank is not None:
            q_in = config.q_lora_rank
            self._q_a = self._product(files, f"{attention}.q_a_proj.weight", q_in, hidden)
            q_norm = files.tensor(f"{attention}.q_a_layernorm.weight", q_in)
            self._q_norm = RMSNorm(q_norm, _LATENT_NORM_EPS)
            q_name = f"{attention}.q_b_proj.weight"
        q = files.tensor(q_name, all_heads * (nope + rope), q_in).view(all_heads, -1, q_in)
        self._q = self._of(q[mine].view(-1, q_in))
        self._kv_a = self._product(files, f"{attention}.kv_a_proj_with_mqa.weight", rank + rope, hidden)
        kv_norm = files.tensor(f"{attention}.kv_a_layernorm.weight", rank)
        self._kv_norm = RMSNorm(kv_norm, _LATENT_NORM_EPS)
        kv_b = files.tensor(f"{attention}.kv_b_proj.weight", all_heads * (nope + value), rank)
        kv_b = kv_b.view(all_heads, nope + value, rank)[mine]
        self._absorb_key = kv_b[:, :nope]
        self._expand_value = kv_b[:, nope:].transpose(1, 2)
        o = files.tensor(f"{attention}.o_proj.weight", hidden, all_heads * value)
        self._o = self._of(o[self._columns])
        self._scale = softmax_scale(config)
        if not config.quantization and self._part.size == 1:
            self._fused = self._compiled(files, prefix)

    def _compiled(self, files: CheckpointFiles, prefix: str) -> fused.Attention | None:
        """All of it as one call, where that can be."""
        config, attention = self._config, f"{prefix}.self_attn"
        hidden, heads, rank = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
        nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        weights: list[torch.Tensor | None] = [files.tensor(f"{prefix}.input_layernorm.weight", hidden)]
        q_in = hidden
        if config.q_lora_rank is not None:
            q_in = config.q_lora_rank
            weights.append(files.tensor(f"{attention}.q_a_proj.weight", q_in, hidden))
            weights.append(files.tensor(f"{attention}.q_a_layernorm.weight", q_in))
            weights.append(files.tensor(f"{attention}.q_b_proj.weight", heads * (nope + rope), q_in))
        else:
            weights += [None, None, files.tensor(f"{attention}.q_proj.weight", heads * (nope + rope), hidden)]
        weights += [
            files.tensor(f"{attention}.kv_a_proj_with_mqa.weight", rank + rope, hidden),
            files.tensor(f"{attention}.kv_a_layernorm.weight", rank),
            files.tensor(f"{attention}.kv_b_proj.weight", heads * (nope + value), rank),
            files.tensor(f"{attention}.o_proj.weight", hidden, heads * value),
        ]
        sizes = hidden, heads, nope, rope, rank, value, q_in
        eps = config.rms_norm_eps, _LATENT_NORM_EPS
        return fused.Attention.made(sizes, config.rope_interleave, weights, eps, self._scale)

    def _product(self, files: CheckpointFiles, name: str, *shape: int) -> Product:
        return self._of(files.tensor(name, *shape))

    def _of(self, weight: torch.Tensor) -> Product:
        return product_of(weight, self._config.quantization == "int8")

    def __call__(self, x: torch.Tensor, plan: StepPlan) -> torch.Tensor:
        """x + attention(norm(x)), float32 [rows of the plan, hidden]; writes their cache rows first."""
        if self._fused is not None and self._is_fused_proven():
            return self._fused(x, plan.kv.pages[self._layer], plan.address)
        return self._in_pieces(x, plan)

    def _is_fused_proven(self) -> bool:
        if self._trusted is None:
            self._trusted = self._ask_proof()
        return self._trusted

    def _ask_proof(self) -> bool:
        config = self._config
        sizes = config.hidden_size, config.num_attention_heads, config.kv_lora_rank, config.q_lora_rank
        rest = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim, config.rope_interleave
        return self._proofs.holds(("attention.fused", *sizes, *rest), self._prove_fused)

    def _prove_fused(self) -> bool:
        """Whether one call gives the bits of the pieces, rows and pages, in a step of decodes and chunks."""
        generator = torch.Generator().manual_seed(0)
        kv = PagedKV(self._config, 64, 16)
        for number, (length, _) in enumerate(_PROVEN):
            kv.append(number, length)
        pages = kv.pages[self._layer]
        pages[1:, :, :-1] = torch.randn(pages[1:, :, :-1].shape, generator=generator)
        segments = [kv.append(number, count) for number, (_, count) in enumerate(_PROVEN)]
        plan = make_plan(segments, kv, RotaryTables(self._config), max(map(sum, _PROVEN)))
        x = torch.randn(plan.num_rows, self._config.hidden_size, generator=generator)
        before, wanted = pages.clone(), self._in_pieces(x, plan)
        written = pages.clone()
        pages.copy_(before)
        assert self._fused is not None
        given = self._fused(x, pages, plan.address)
        return bits_equal(given, wanted) and bits_equal(pages, written)

    def _in_pieces(self, x: torch.Tensor, plan: StepPlan) -> torch.Tensor:
        queries, latents = self._project(x, plan.cos, plan.sin)
        pages = plan.kv.pages[self._layer]
        pages.view(-1, pages.shape[-1])[:, :-1].index_copy_(0, plan.slots, latents)
        return self._join(x, self._core(queries, pages, plan.jobs))

    def _join(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """x plus the projection of the attended latents of my heads; of all, where others have the rest."""
        if self._part.size == 1:
            return self._output(x, attended)[0]
        values = self._part.whole("values", self._values(attended)[0])
        return self._part.whole("hidden", self._output(x[:, self._columns], values)[0])

    def prove(self, x: torch.Tensor) -> None:
        """Prove the functions of rows at the size of x, float32 [n, hidden]."""
        config = self._config
        if self._fused is not None and self._is_fused_proven():
            return
        angles = torch.zeros(x.shape[0], 1, config.qk_rope_head_dim)
        self._project(x, angles, angles)
        self._join(x, torch.zeros(x.shape[0], self._heads, config.kv_lora_rank))

    def prove_blocks(self, batch: int, num_queries: int, num_blocks: int) -> None:
        """Prove batched attention of `batch` sequences of these extents."""
        if self._fused is not None and self._is_fused_proven():
            return
        self._core.prove(batch, num_queries, num_blocks)

    def _project_rows(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Rows:
        """x [s, hidden] to scaled queries [s, heads, row width − 1] and cache rows [s, row width − 1]."""
        config, size = self._config, x.shape[0]
        rank, nope = config.kv_lora_rank, config.qk_nope_head_dim
        x = self._norm(x)
        latent = self._kv_a(x)
        if self._q_a is not None and self._q_norm is not None:
            x = self._q_norm(self._q_a(x))
        query = self._q(x).view(size, self._heads, -1)
        rotary = torch.cat((query[:, :, nope:], latent[:, None, rank:]), 1)
        rotary = rotate(rotary, cos, sin, config.rope_interleave)
        absorbed = torch.bmm(query[:, :, :nope].transpose(0, 1), self._absorb_key).transpose(0, 1)
        queries = torch.cat((rotary[:, :-1], absorbed), -1)
        compressed = self._kv_norm(latent[:, :rank])
        queries.mul_(self._scale)
        if self._rows:
            return queries, self._rows.pack(rotary[:, -1], compressed)
        return queries, torch.cat((rotary[:, -1], compressed), -1)

    def _output_rows(self, x: torch.Tensor, attended: torch.Tensor) -> Rows:
        """x [s, hidden] plus the projection of the attended latents [s, heads, kv_lora_rank]."""
        return (self._o(self._value_rows(attended)).add_(x),)

    def _value_rows(self, attended: torch.Tensor) -> torch.Tensor:
        """Attended latents [s, heads, kv_lora_rank] to their values [s, heads · v_head_dim]."""
        values = torch.bmm(attended.transpose(0, 1), self._expand_value).transpose(0, 1)
        return values.reshape(attended.shape[0], -1)

    def _project_some(self, mine: slice, *rows: torch.Tensor) -> Rows:
        """Of `_project_rows`, the queries of some heads, and the cache rows."""
        queries, latents = self._project_rows(*rows)
        return queries[:, mine].contiguous(), latents

    def _some_values(self, mine: slice, attended: torch.Tensor) -> torch.Tensor:
        """`_value_rows` of some heads, computed beside zeros for the others."""
        size = attended.shape[0]
        everyone = attended.new_zeros((size, self._heads, attended.shape[2]))
        everyone[:, mine] = attended
        return self._value_rows(everyone).view(size, self._heads, -1)[:, mine].reshape(size, -1)
