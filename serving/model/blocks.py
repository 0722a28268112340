"""Attention over a paged cache with a fixed order of sums, whatever a key and a value are.

Its ground truth, in the sense of `rows.py`, is a tile of `QUERY_TILE` queries of one sequence against one
block of `KEY_BLOCK` keys, blocks added in order; the maximum is taken over all keys first (exact, in any
order). Batched products are used once proven equal to that.

    out = Σ exp(q · key − max) · [value | 1]      numerators and, in the last column, the denominator
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from serving.model.plan import KEY_BLOCK, QUERY_TILE, AttentionJob
from serving.model.rows import Proofs, bits_equal

__all__ = ["BlockAttention"]


class BlockAttention:
    """Queries against the paged cache, block by block.

    Args:
        heads: query heads that share a key (a KV head's group; all of them in latent attention).
        key_width: values of a key.
        value_width: values of a value.
        groups: KV heads. One: a page's row is [key | 1], and the value is the key's last columns, or [key |
            value | 1]. Several: [key | value] of each, then 1.
        proofs: where verdicts are kept.
        shared: whether the value is part of the key.
        unpack: makes such rows of what is in the pages, where that is something else; one group only.
        within: where these heads are only some of those that share a key: the first of them, and how many
            there are in all. Results are those of all heads together.
    """

    def __init__(
        self,
        heads: int,
        key_width: int,
        value_width: int,
        groups: int,
        proofs: Proofs,
        shared: bool = True,
        unpack: Callable[[torch.Tensor], torch.Tensor] | None = None,
        within: tuple[int, int] | None = None,
    ) -> None:
        self._unpack = unpack
        self._whole: BlockAttention | None = None
        self._first = 0
        if within is not None and within[1] > heads:
            self._first = within[0]
            self._whole = BlockAttention(within[1], key_width, value_width, groups, proofs, shared)
        self._heads, self._groups = heads, groups
        self._rank = value_width
        self._key = key_width
        self._width = (key_width if shared else key_width + value_width) + 1
        self._proofs = proofs

    def __call__(
        self, queries: torch.Tensor, pages: torch.Tensor, jobs: Sequence[AttentionJob]
    ) -> torch.Tensor:
        """queries [n, all heads, key width], one layer's pages [pages, size, row]; gives [n, all heads, value
        width]. Heads of a group stand together."""
        if len(jobs) == 1 and jobs[0].num_rows == queries.shape[0] and isinstance(jobs[0].rows, slice):
            return self._run(queries, pages, jobs[0])
        out = queries.new_empty((queries.shape[0], self._groups * self._heads, self._rank))
        for job in jobs:
            out[job.rows] = self._run(queries[job.rows], pages, job)
        return out

    def _run(self, queries: torch.Tensor, pages: torch.Tensor, job: AttentionJob) -> torch.Tensor:
        count = queries.shape[0]
        padded = job.num_sequences * job.num_queries
        if padded != count:
            queries = torch.cat((queries, queries.new_zeros((padded - count, *queries.shape[1:]))))
        keys = pages.view(pages.shape[0], -1).index_select(0, job.table)
        keys = keys.view(job.num_sequences, -1, pages.shape[-1])[:, : job.num_blocks * KEY_BLOCK]
        if self._unpack is not None:
            keys = self._unpack(keys)
        batch, mask = job.num_sequences * self._groups, job.mask
        if self._groups > 1:
            queries, keys = self._by_group(queries, keys, job.num_sequences)
            mask = mask.repeat_interleave(self._groups, 0)
        queries = queries.view(batch, job.num_queries * self._heads, self._key)
        keys = keys.reshape(batch * job.num_blocks, KEY_BLOCK, self._width)
        if self.prove(job.num_sequences, job.num_queries, job.num_blocks):
            out = self._batched(queries, keys, mask, job.first_masked)
        elif self._whole is None:
            out = self._by_tiles(queries, keys, mask, job.first_masked)
        else:
            out = self._among(self._whole, queries, keys, mask, job)
        if self._groups > 1:
            out = out.view(job.num_sequences, self._groups, job.num_queries, self._heads, self._rank)
            out = out.transpose(1, 2)
        return out.reshape(padded, self._groups * self._heads, self._rank)[:count]

    def _by_group(
        self, queries: torch.Tensor, keys: torch.Tensor, num_sequences: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each KV head of a sequence as a sequence of its own, its rows [key | value | 1]."""
        queries = queries.view(num_sequences, -1, self._groups, self._heads, self._key).transpose(1, 2)
        rows = torch.unflatten(keys[:, :, :-1], -1, (self._groups, self._width - 1)).transpose(1, 2)
        return queries.contiguous(), F.pad(rows, (0, 1), value=1.0)

    def _among(
        self,
        whole: BlockAttention,
        queries: torch.Tensor,
        keys: torch.Tensor,
        mask: torch.Tensor,
        job: AttentionJob,
    ) -> torch.Tensor:
        """Queries [b, m, key width] of my heads, computed with the others' heads beside them, which are
        zeros."""
        batch, first, heads = queries.shape[0], self._first, self._heads
        all_heads = queries.new_zeros((batch, job.num_queries, whole._heads, self._key))
        all_heads[:, :, first : first + heads] = queries.view(batch, job.num_queries, heads, self._key)
        together = whole.prove(job.num_sequences, job.num_queries, job.num_blocks)
        way = whole._batched if together else whole._by_tiles
        out = way(all_heads.view(batch, -1, self._key), keys, mask, job.first_masked)
        out = out.view(batch, job.num_queries, whole._heads, self._rank)
        return out[:, :, first : first + heads].reshape(batch, -1, self._rank)

    def prove(self, batch: int, num_queries: int, num_blocks: int) -> bool:
        """Whether `_batched` equals `_by_tiles` at these extents."""
        rows, batch = num_queries * self._heads, batch * self._groups
        key = ("attention.blocks", self._heads, self._width, self._rank, batch, rows, num_blocks)
        whole = self._whole
        if whole is None:
            return self._proofs.holds(key, lambda: self._prove(batch, rows, num_blocks))
        among = (*key, self._first, whole._heads)
        return self._proofs.holds(among, lambda: self._prove_among(whole, batch, num_queries, num_blocks))

    def _prove_among(self, whole: BlockAttention, batch: int, num_queries: int, num_blocks: int) -> bool:
        """Whether my heads alone, all at once, have the bits of `_by_tiles` over all heads."""
        queries, keys, mask, first = whole._sample(batch, num_queries * whole._heads, num_blocks)
        wanted = whole._by_tiles(queries, keys, mask, first).view(batch, num_queries, whole._heads, -1)
        mine = slice(self._first, self._first + self._heads)
        some = queries.view(batch, num_queries, whole._heads, -1)[:, :, mine].reshape(batch, -1, self._key)
        return bits_equal(
            self._batched(some, keys, mask, first), wanted[:, :, mine].reshape(batch, -1, self._rank)
        )

    def _batched(
        self, queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, first_masked: int
    ) -> torch.Tensor:
        """queries [b, m, key width] against keys [b · blocks, KEY_BLOCK, width]; returns [b, m, value
        width]."""
        batch, rows, width = queries.shape
        blocks = keys.shape[0] // batch
        if blocks > 1:
            queries = (
                queries.unsqueeze(1).expand(batch, blocks, rows, width).reshape(batch * blocks, rows, width)
            )
        scores = torch.bmm(queries, keys[:, :, : self._key].transpose(1, 2)).view(
            batch, blocks, rows, KEY_BLOCK
        )
        _hide(scores, mask, first_masked, self._heads)
        weights = scores.sub_(scores.amax((1, 3), keepdim=True)).exp_()
        sums = torch.bmm(
            weights.view(batch * blocks, rows, KEY_BLOCK), keys[:, :, self._width - self._rank - 1 :]
        )
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
            [
                self._tiled(queries[b], key[:, : self._key].t(), step)
                for b in range(batch)
                for key in by_sequence[b]
            ]
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
        queries = torch.randn((batch, rows, self._key), generator=generator)
        keys = torch.randn((batch * blocks, KEY_BLOCK, self._width), generator=generator)
        keys[:, :, -1] = 1.0
        mask = torch.zeros(batch, 1, rows // self._heads, 1, KEY_BLOCK)
        return queries, keys, mask, blocks - 1


def _hide(scores: torch.Tensor, mask: torch.Tensor, first_masked: int, heads: int) -> None:
    """Add the mask to scores [b, blocks, queries · heads, KEY_BLOCK] from `first_masked` on, in place."""
    torch.unflatten(scores[:, first_masked:], 2, (-1, heads)).add_(mask)
