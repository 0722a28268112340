"""Who gets what: pure arithmetic on the experts that tokens chose. No device, no time.

A *pair* is (token, k) with an expert chosen (topk_idx >= 0; -1 is unselected). Expert e lives at rank
e // slots of the group, slots = experts / ranks. Three levels of records, each grouped by target:

    pair    one for every pair                         XCCL, CANN, DeepEP low-latency, all-to-all
    rank    one for every distinct (token, rank)       DeepEP normal: a token goes once to a rank
    token   one for every token, to all ranks          AGRS

Received pairs are laid out alike at every level: by local expert, then source rank, then (token, k).
Source: DeepEP `get_dispatch_layout`; facts A2, D1, D2, D4 of the systems list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from emulator.errors import UsageError

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Layout(NamedTuple):
    """DeepEP's dispatch layout of one rank's tokens.

    tokens_per_rank: int32 [R], distinct tokens for each rank. tokens_per_node: int32 [N] or None with one
    node. tokens_per_expert: int32 [E]. is_token_in_rank: bool [T, R].
    """

    tokens_per_rank: Int32
    tokens_per_node: Int32 | None
    tokens_per_expert: Int32
    is_token_in_rank: Bool


@dataclass(frozen=True)
class Nodes:
    """Where the R ranks of a group sit.

    node: int64 [R], node of each rank, counted from 0. size: int64 [N], ranks on each.
    forwarder: int64 [R, N], which rank of node m passes on what rank s sends there: the one with the same
        index on its node (counted round where a node has fewer); s itself on its own node.
    """

    node: Int64
    size: Int64
    forwarder: Int64

    @property
    def count(self) -> int:
        """Number of nodes."""
        return int(self.size.size)


def nodes_of(members: Int64, dies_per_node: int) -> Nodes:
    """Return where `members` (machine ranks, int64 [R], in group order) sit."""
    _, node = np.unique(members // dies_per_node, return_inverse=True)
    node = node.astype(np.int64)
    count = int(node.max()) + 1
    size = np.bincount(node, minlength=count).astype(np.int64)
    by_node = np.argsort(node, kind="stable")
    start = np.cumsum(size) - size
    index = np.empty(node.size, np.int64)
    index[by_node] = np.arange(node.size) - start[node[by_node]]
    forwarder = by_node[start[None, :] + index[:, None] % size[None, :]].astype(np.int64)
    return Nodes(node, size, forwarder)


def dispatch_layout(topk_idx: Int64, num_experts: int, nodes: Nodes) -> Layout:
    """Count what a rank's tokens need.

    Args:
        topk_idx: int64 [T, K], -1 for unselected.

    Raises:
        UsageError: experts that do not exist, or do not divide among the ranks.
    """
    ranks = nodes.node.size
    slots = slots_of(num_experts, ranks)
    check_experts(topk_idx, num_experts)
    token, k = np.nonzero(topk_idx >= 0)
    expert = topk_idx[token, k]
    in_rank = np.zeros((topk_idx.shape[0], ranks), bool)
    in_rank[token, expert // slots] = True
    in_node = np.zeros((topk_idx.shape[0], nodes.count), bool)
    in_node[token, nodes.node[expert // slots]] = True
    return Layout(
        in_rank.sum(axis=0).astype(np.int32),
        in_node.sum(axis=0).astype(np.int32) if nodes.count > 1 else None,
        np.bincount(expert, minlength=num_experts).astype(np.int32),
        in_rank,
    )


def slots_of(num_experts: int, ranks: int) -> int:
    """Experts of each rank. Raises: UsageError, they do not divide."""
    if num_experts < 1 or num_experts % ranks:
        near = max(1, round(num_experts / ranks)) * ranks
        raise UsageError(f"{num_experts} experts do not divide among {ranks} ranks; use {near}")
    return num_experts // ranks


def check_experts(topk_idx: Int64, num_experts: int) -> None:
    """Raises: UsageError, an expert outside -1 to num_experts - 1."""
    if topk_idx.size and (topk_idx.min() < -1 or topk_idx.max() >= num_experts):
        bad = topk_idx[(topk_idx < -1) | (topk_idx >= num_experts)][0]
        raise UsageError(f"topk_idx names expert {bad}; there are {num_experts}, and -1 for none")


class Grouped(NamedTuple):
    """Records grouped by target rank, and what each target is told.

    counts, first: int32 [R], records for each rank and where they begin. order: int32 [records], what each
    record holds: a pair (token * K + k) at level "pair", else a token.
    """

    counts: Int32
    first: Int32
    order: Int32


def by_pair(topk_idx: Int64, slots: int, ranks: int) -> Grouped:
    """One record a pair, by (expert, token, k)."""
    flat = topk_idx.ravel()
    chosen = np.flatnonzero(flat >= 0)
    order = chosen[np.argsort(flat[chosen], kind="stable")].astype(np.int32)
    return grouped(np.bincount(flat[chosen] // slots, minlength=ranks), order)


def by_rank(in_rank: Bool) -> Grouped:
    """One record a distinct (token, rank), by (rank, token)."""
    _, order = np.nonzero(in_rank.T)
    return grouped(in_rank.sum(axis=0), order.astype(np.int32))


def by_token(tokens: int, ranks: int) -> Grouped:
    """One record a token, for all ranks."""
    counts = np.full(ranks, tokens, np.int32)
    return Grouped(counts, np.zeros(ranks, np.int32), np.arange(tokens, dtype=np.int32))


def grouped(counts: npt.NDArray[np.integer], order: Int32) -> Grouped:
    """Records in `order`, `counts` for each target, one target after the other."""
    whole: Int32 = counts.astype(np.int32)
    return Grouped(whole, (np.cumsum(whole) - whole).astype(np.int32), order)


class Pairs(NamedTuple):
    """The pairs a rank received, of records that carry their tokens' experts.

    record: int64 [P], which record each row of the expert-major layout comes from.
    k: int64 [P], which of the record's choices. per_slot: int64 [slots]. received: int32 [R], pairs from each
    rank. place: int32 [P], row of the i-th pair by (source, expert, token, k), the owner's own order.
    """

    record: Int64
    k: Int64
    per_slot: Int64
    received: Int32
    place: Int32


def expand(ids: Int64, source: Int64, first_expert: int, slots: int, ranks: int) -> Pairs:
    """Find the pairs of my experts in records of level "rank" or "token".

    Args:
        ids: int64 [records, K], experts of each record's token, records by (source, token).
        source: int64 [records], whose record it is.
    """
    record, k = np.nonzero((ids >= first_expert) & (ids < first_expert + slots))
    slot = ids[record, k] - first_expert
    by_expert = np.argsort(slot, kind="stable")
    row = np.empty(record.size, np.int64)
    row[by_expert] = np.arange(record.size)
    by_owner = np.lexsort((np.arange(record.size), slot, source[record]))
    return Pairs(
        record[by_expert], k[by_expert], np.bincount(slot, minlength=slots).astype(np.int64),
        np.bincount(source[record], minlength=ranks).astype(np.int32), row[by_owner].astype(np.int32),
    )  # fmt: skip


def add_up(
    rows: npt.NDArray[np.float32], order: Int32, weights: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Weighted sum of the terms a token has, in the order of k; tokens may have fewer than K.

    Args:
        rows: float32 [P, hidden], row i is pair order[i] = token * K + k.
        weights: float32 [T, K].

    Returns:
        float32 [T, hidden]: 0 + w[t, k0] * y + w[t, k1] * y + …, float32 at every step; with all K selected
        bit for bit what `emulator.rows` gives (but for the sign of a zero).
    """
    tokens, topk = weights.shape
    terms = np.zeros((tokens * topk, rows.shape[1]), np.float32)
    terms[order] = rows
    used = np.zeros(tokens * topk, np.float32)
    used[order] = 1
    factor = np.where(used > 0, weights.reshape(-1), np.float32(0)).reshape(tokens, topk)
    terms = terms.reshape(tokens, topk, rows.shape[1])
    out: npt.NDArray[np.float32] = factor[:, 0, None] * terms[:, 0]
    for k in range(1, topk):
        out += factor[:, k, None] * terms[:, k]
    return out


def add_ranks(rows: npt.NDArray[np.float32], order: Int32, tokens: int) -> npt.NDArray[np.float32]:
    """Sum without weights of rows of level "rank": ranks ascending, float32; 0 where there are none.

    Args:
        rows: float32 [records, width], record i belongs to token order[i], by (rank, token).
    """
    out = np.zeros((tokens, rows.shape[1]), np.float32)
    by_token = np.argsort(order, kind="stable")
    token = order[by_token]
    start = np.searchsorted(token, token)
    nth = np.arange(token.size) - start
    for layer in range(int(nth.max(initial=-1)) + 1):
        now = by_token[nth == layer]
        out[order[now]] += rows[now]
    return out
