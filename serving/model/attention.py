"""Multi-head latent attention, absorbed: queries go into the latent space, so keys are the cached rows.

    q′ = [rope(q_rope) | q_nope · W_uk] · scale            per head
    row = [rope(k_rope) | norm(c) | 1]                     per token, shared by all heads
    out = Σ exp(q′·row[:-1] − max) · [norm(c) | 1]         numerators and, in the last column, the denominator

The same arithmetic serves prefill, decode and recomputation. Its ground truth, in the sense of `rows.py`, is
a tile of `QUERY_TILE` queries of one sequence against one block of `KEY_BLOCK` keys, blocks added in order;
the maximum is taken over all keys first (exact, in any order). Batched products are used once proven equal to
that.

Source: DeepSeek-V2 (2024), section 2.1, for the architecture and the absorption.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from serving.model.config import ModelConfig
from serving.model.kv_cache import row_width
from serving.model.norm import RMSNorm
from serving.model.plan import KEY_BLOCK, QUERY_TILE, AttentionJob, StepPlan
from serving.model.rope import rotate, softmax_scale
from serving.model.rows import Proofs, RowFunction, Rows, bits_equal
from serving.model.weights import CheckpointFiles

__all__ = ["LatentAttention"]

_LATENT_NORM_EPS = (
    1e-6  # the reference implementation's default for its two inner norms, whatever rms_norm_eps says
)


class LatentAttention:
    """Attention of one layer: input norm, projections, cache, output projection, residual."""

    def __init__(self, config: ModelConfig, files: CheckpointFiles, layer: int, proofs: Proofs) -> None:
        self._config = config
        self._layer = layer
        self._core = _BlockAttention(config, proofs)
        self._load(files, f"model.layers.{layer}")
        self._project = RowFunction("attention.project", self._project_rows, proofs)
        self._output = RowFunction("attention.output", self._output_rows, proofs)

    def _load(self, files: CheckpointFiles, prefix: str) -> None:
        config, attention = self._config, f"{prefix}.self_attn"
        hidden, heads, rank = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
        nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        self._norm = RMSNorm(files.tensor(f"{prefix}.input_layernorm.weight", hidden), config.rms_norm_eps)
        self._q_a, self._q_norm, q_in = None, None, hidden
        q_name = f"{attention}.q_proj.weight"
        if config.q_lora_rank is not None:
            q_in = config.q_lora_rank
            self._q_a = files.tensor(f"{attention}.q_a_proj.weight", q_in, hidden).t()
            q_norm = files.tensor(f"{attention}.q_a_layernorm.weight", q_in)
            self._q_norm = RMSNorm(q_norm, _LATENT_NORM_EPS)
            q_name = f"{attention}.q_b_proj.weight"
        self._q = files.tensor(q_name, heads * (nope + rope), q_in).t()
        self._kv_a = files.tensor(f"{attention}.kv_a_proj_with_mqa.weight", rank + rope, hidden).t()
        kv_norm = files.tensor(f"{attention}.kv_a_layernorm.weight", rank)
        self._kv_norm = RMSNorm(kv_norm, _LATENT_NORM_EPS)
        kv_b = files.tensor(f"{attention}.kv_b_proj.weight", heads * (nope + value), rank)
        kv_b = kv_b.view(heads, nope + value, rank)
        self._absorb_key = kv_b[:, :nope]
        self._expand_value = kv_b[:, nope:].transpose(1, 2)
        self._o = files.tensor(f"{attention}.o_proj.weight", hidden, heads * value).t()
        self._scale = softmax_scale(config)

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
        latent = torch.mm(x, self._kv_a)
        if self._q_a is not None and self._q_norm is not None:
            x = self._q_norm(torch.mm(x, self._q_a))
        query = torch.mm(x, self._q).view(size, config.num_attention_heads, -1)
        rotary = torch.cat((query[:, :, nope:], latent[:, None, rank:]), 1)
        rotary = rotate(rotary, cos, sin, config.rope_interleave)
        absorbed = torch.bmm(query[:, :, :nope].transpose(0, 1), self._absorb_key).transpose(0, 1)
        queries = torch.cat((rotary[:, :-1], absorbed), -1)
        compressed = self._kv_norm(latent[:, :rank])
        return queries.mul_(self._scale), torch.cat((rotary[:, -1], compressed), -1)

    def _output_rows(self, x: torch.Tensor, attended: torch.Tensor) -> Rows:
        """x [s, hidden] plus the projection of the attended latents [s, heads, kv_lora_rank]."""
        values = torch.bmm(attended.transpose(0, 1), self._expand_value).transpose(0, 1)
        return (torch.mm(values.reshape(x.shape[0], -1), self._o).add_(x),)


class _BlockAttention:
    """Queries against the paged cache, block by block."""

    def __init__(self, config: ModelConfig, proofs: Proofs) -> None:
        self._heads = config.num_attention_heads
        self._rank = config.kv_lora_rank
        self._width = row_width(config)
        self._proofs = proofs

    def __call__(
        self, queries: torch.Tensor, pages: torch.Tensor, jobs: Sequence[AttentionJob]
    ) -> torch.Tensor:
        """queries [n, heads, width − 1], one layer's pages [pages, size, width]; gives [n, heads, rank]."""
        if len(jobs) == 1 and jobs[0].num_rows == queries.shape[0] and isinstance(jobs[0].rows, slice):
            return self._run(queries, pages, jobs[0])
        out = queries.new_empty((queries.shape[0], self._heads, self._rank))
        for job in jobs:
            out[job.rows] = self._run(queries[job.rows], pages, job)
        return out

    def _run(self, queries: torch.Tensor, pages: torch.Tensor, job: AttentionJob) -> torch.Tensor:
        count = queries.shape[0]
        padded = job.num_sequences * job.num_queries
        if padded != count:
            queries = torch.cat((queries, queries.new_zeros((padded - count, *queries.shape[1:]))))
        queries = queries.view(job.num_sequences, job.num_queries * self._heads, self._width - 1)
        keys = pages.view(pages.shape[0], -1).index_select(0, job.table)
        keys = keys.view(job.num_sequences, -1, self._width)[:, : job.num_blocks * KEY_BLOCK]
        keys = keys.reshape(job.num_sequences * job.num_blocks, KEY_BLOCK, self._width)
        if self.prove(job.num_sequences, job.num_queries, job.num_blocks):
            out = self._batched(queries, keys, job.mask, job.first_masked)
        else:
            out = self._by_tiles(queries, keys, job.mask, job.first_masked)
        return out.reshape(padded, self._heads, self._rank)[:count]

    def prove(self, batch: int, num_queries: int, num_blocks: int) -> bool:
        """Whether `_batched` equals `_by_tiles` at these extents."""
        rows = num_queries * self._heads
        key = ("attention.blocks", self._heads, self._width, self._rank, batch, rows, num_blocks)
        return self._proofs.holds(key, lambda: self._prove(batch, rows, num_blocks))

    def _batched(
        self, queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, first_masked: int
    ) -> torch.Tensor:
        """queries [b, m, width − 1] against keys [b · blocks, KEY_BLOCK, width]; returns [b, m, kv rank]."""
        batch, rows, width = queries.shape
        blocks = keys.shape[0] // batch
        if blocks > 1:
            queries = (
                queries.unsqueeze(1).expand(batch, blocks, rows, width).reshape(batch * blocks, rows, width)
            )
        scores = torch.bmm(queries, keys[:, :, :-1].transpose(1, 2)).view(batch, blocks, rows, KEY_BLOCK)
        _hide(scores, mask, first_masked, self._heads)
        weights = scores.sub_(scores.amax((1, 3), keepdim=True)).exp_()
        sums = torch.bmm(weights.view(batch * blocks, rows, KEY_BLOCK), keys[:, :, width - self._rank :])
        return self._normalised(sums.view(batch, blocks, rows, -1))

    def _by_tiles(
        self, queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, first_masked: int, step: int = 0
    ) -> torch.Tensor:
        """The ground truth of `_batched`: products of one tile of `step` queries and one block."""
        if not step:
            blind = self._proofs.holds(
                ("attention.place", self._heads, self._width, self._rank), self._prove_blind
            )
            step = QUERY_TILE if blind else 1
        batch, rows, _ = queries.shape
        blocks = keys.shape[0] // batch
        by_sequence = keys.view(batch, blocks, KEY_BLOCK, self._width)
        scores = torch.stack(
            [self._tiled(queries[b], key[:, :-1].t(), step) for b in range(batch) for key in by_sequence[b]]
        ).view(batch, blocks, rows, KEY_BLOCK)
        _hide(scores, mask, first_masked, self._heads)
        weights = scores.sub_(scores.amax((1, 3), keepdim=True)).exp_()
        sums = [
            self._tiled(weights[b, k], by_sequence[b, k, :, self._width - self._rank - 1 :], step)
            for b in range(batch)
            for k in range(blocks)
        ]
        return self._normalised(torch.stack(sums).view(batch, blocks, rows, -1))

    def _tiled(self, rows: torch.Tensor, matrix: torch.Tensor, step: int) -> torch.Tensor:
        """rows [m, k] times matrix [k, n]: `step` queries at a time, padded to `QUERY_TILE` of them."""
        size = QUERY_TILE * self._heads
        parts = torch.split(rows, step * self._heads)
        return torch.cat(
            [torch.mm(F.pad(part, (0, 0, 0, size - len(part))), matrix)[: len(part)] for part in parts]
        )

    def _normalised(self, sums: torch.Tensor) -> torch.Tensor:
        """Add the blocks' sums [b, blocks, m, rank + 1] in order, in place, and divide by the last column."""
        total, *others = sums.unbind(1)
        for block in others:
            total.add_(block)
        return total[..., : self._rank] / total[..., self._rank :]

    def _prove_blind(self) -> bool:
        """Whether a query's place in the tile is without effect: tiles equal queries taken one by one."""
        arguments = self._sample(4, QUERY_TILE * self._heads, 1)
        return bits_equal(self._by_tiles(*arguments, step=QUERY_TILE), self._by_tiles(*arguments, step=1))

    def _prove(self, batch: int, rows: int, blocks: int) -> bool:
        arguments = self._sample(batch, rows, blocks)
        return bits_equal(self._batched(*arguments), self._by_tiles(*arguments))

    def _sample(
        self, batch: int, rows: int, blocks: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        """Random queries and keys of these numbers, and a mask that hides nothing."""
        generator = torch.Generator().manual_seed(blocks)
        queries = torch.randn((batch, rows, self._width - 1), generator=generator)
        keys = torch.randn((batch * blocks, KEY_BLOCK, self._width), generator=generator)
        keys[:, :, -1] = 1.0
        mask = torch.zeros(batch, 1, rows // self._heads, 1, KEY_BLOCK)
        return queries, keys, mask, blocks - 1


def _hide(scores: torch.Tensor, mask: torch.Tensor, first_masked: int, heads: int) -> None:
    """Add the mask to scores [b, blocks, queries · heads, KEY_BLOCK] from `first_masked` on, in place."""
    torch.unflatten(scores[:, first_masked:], 2, (-1, heads)).add_(mask)
