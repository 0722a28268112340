"""Multi-head latent attention, absorbed: queries go into the latent space, so keys are the cached rows.

    q′ = [rope(q_rope) | q_nope · W_uk] · scale            per head
    row = [rope(k_rope) | norm(c) | 1]                     per token, shared by all heads
    out = Σ exp(q′·row[:-1] − max) · [norm(c) | 1]         numerators and, in the last column, the denominator

The same arithmetic serves prefill, decode and recomputation (`blocks.py`).

Source: DeepSeek-V2 (2024), section 2.1, for the architecture and the absorption.
"""

import torch

from serving.model.blocks import BlockAttention
from serving.model.config import DeepseekV3Config
from serving.model.int8 import LatentRows, Product, product_of
from serving.model.norm import RMSNorm
from serving.model.plan import StepPlan
from serving.model.rope import rotate, softmax_scale
from serving.model.rows import Proofs, RowFunction, Rows
from serving.model.weights import CheckpointFiles

__all__ = ["LatentAttention"]

_LATENT_NORM_EPS = (
    1e-6  # the reference implementation's default for its two inner norms, whatever rms_norm_eps says
)


class LatentAttention:
    """Attention of one layer: input norm, projections, cache, output projection, residual."""

    def __init__(self, config: DeepseekV3Config, files: CheckpointFiles, layer: int, proofs: Proofs) -> None:
        self._config = config
        self._layer = layer
        rope, rank = config.qk_rope_head_dim, config.kv_lora_rank
        self._rows = LatentRows(rope, rank) if config.quantization else None
        unpack = self._rows.unpack if self._rows else None
        self._core = BlockAttention(config.num_attention_heads, rope + rank, rank, 1, proofs, unpack=unpack)
        self._load(files, f"model.layers.{layer}")
        self._project = RowFunction("attention.project", self._project_rows, proofs)
        self._output = RowFunction("attention.output", self._output_rows, proofs)

    def _load(self, files: CheckpointFiles, prefix: str) -> None:
        config, attention = self._config, f"{prefix}.self_attn"
        hidden, heads, rank = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
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
        self._q = self._product(files, q_name, heads * (nope + rope), q_in)
        self._kv_a = self._product(files, f"{attention}.kv_a_proj_with_mqa.weight", rank + rope, hidden)
        kv_norm = files.tensor(f"{attention}.kv_a_layernorm.weight", rank)
        self._kv_norm = RMSNorm(kv_norm, _LATENT_NORM_EPS)
        kv_b = files.tensor(f"{attention}.kv_b_proj.weight", heads * (nope + value), rank)
        kv_b = kv_b.view(heads, nope + value, rank)
        self._absorb_key = kv_b[:, :nope]
        self._expand_value = kv_b[:, nope:].transpose(1, 2)
        self._o = self._product(files, f"{attention}.o_proj.weight", hidden, heads * value)
        self._scale = softmax_scale(config)

    def _product(self, files: CheckpointFiles, name: str, *shape: int) -> Product:
        return product_of(files.tensor(name, *shape), self._config.quantization == "int8")

    def __call__(self, x: torch.Tensor, plan: StepPlan) -> torch.Tensor:
        """x + attention(norm(x)), float32 [rows of the plan, hidden]; writes their cache rows first."""
        queries, latents = self._project(x, plan.cos, plan.sin)
        pages = plan.kv.pages[self._layer]
        pages.view(-1, pages.shape[-1])[:, :-1].index_copy_(0, plan.slots, latents)
        attended = self._core(queries, pages, plan.jobs)
        return self._output(x, attended)[0]

    def prove(self, x: torch.Tensor) -> None:
        """Prove the functions of rows at the size of x, float32 [n, hidden]."""
        config = self._config
        angles = torch.zeros(x.shape[0], 1, config.qk_rope_head_dim)
        self._project(x, angles, angles)
        self._output(x, torch.zeros(x.shape[0], config.num_attention_heads, config.kv_lora_rank))

    def prove_blocks(self, batch: int, num_queries: int, num_blocks: int) -> None:
        """Prove batched attention of `batch` sequences of these extents."""
        self._core.prove(batch, num_queries, num_blocks)

    def _project_rows(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Rows:
        """x [s, hidden] to scaled queries [s, heads, row width − 1] and cache rows [s, row width − 1]."""
        config, size = self._config, x.shape[0]
        rank, nope = config.kv_lora_rank, config.qk_nope_head_dim
        x = self._norm(x)
        latent = self._kv_a(x)
        if self._q_a is not None and self._q_norm is not None:
            x = self._q_norm(self._q_a(x))
        query = self._q(x).view(size, config.num_attention_heads, -1)
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
        values = torch.bmm(attended.transpose(0, 1), self._expand_value).transpose(0, 1)
        return (self._o(values.reshape(x.shape[0], -1)).add_(x),)
