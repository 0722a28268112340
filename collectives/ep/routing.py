"""Routings to try expert parallelism with: pure, seeded, alike on every machine.

Each draws `topk` different experts a token without replacement, in proportion to what its kind says, by the
Gumbel method: the largest of log p + noise. The draw of a rank depends on (seed, rank, step) only.

    uniform   all experts alike
    k-hot     a share of all draws goes to a few hot experts (DeepEP issue 427: heavy imbalance)
    zipf      p ~ 1 / place**alpha, places shuffled by the seed
    grouped   experts of few groups only, groups drawn first: DeepEP's test of its normal kernels
    gate      DeepSeek-V3's gate over logits: sigmoid, best groups by their two best, then the best experts

Experts of a token are ascending, which is the order its terms are added up in.
Source: DeepEP `tests/test_internode.py`, `tests/test_low_latency.py`; DeepSeek-V3 `inference/model.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from emulator.errors import UsageError

KINDS = ("uniform", "k-hot", "zipf", "grouped")
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def popularity(
    kind: str, experts: int, *, hot: int = 4, share: float = 0.5, alpha: float = 1.0, seed: int = 0
) -> Float64:
    """Return float64 [experts], how likely each expert is to be drawn first.

    Args:
        kind: "uniform", "k-hot" or "zipf" ("grouped" is uniform inside its groups).
        hot, share: k-hot: how many experts get this share of the draws between them, evenly.
        alpha: zipf: exponent, 0 is uniform.
        seed: which experts are the hot ones; equal on all ranks.

    Raises:
        UsageError: no such kind; sizes that cannot be.
    """
    if kind not in KINDS:
        raise UsageError(f"routing: {kind!r} is not one of {', '.join(KINDS)}")
    if kind in ("uniform", "grouped"):
        return np.full(experts, 1 / experts)
    places = np.random.default_rng([seed, 77]).permutation(experts)
    if kind == "zipf":
        p = 1 / np.arange(1, experts + 1) ** alpha
    else:
        if not 0 < hot < experts or not 0 < share < 1:
            raise UsageError(
                f"routing: k-hot needs 0 < hot < {experts} and 0 < share < 1, got {hot} and {share}"
            )
        p = np.full(experts, (1 - share) / (experts - hot))
        p[:hot] = share / hot
    out = np.empty(experts)
    out[places] = p / p.sum()
    return out


def draw(p: Float64, tokens: int, topk: int, rng: np.random.Generator) -> Int64:
    """Return int64 [tokens, topk], different experts a token, ascending, in proportion to p [experts].

    Raises:
        UsageError: fewer experts than `topk`, or none asked for.
    """
    if not 1 <= topk <= p.size:
        raise UsageError(f"routing: topk {topk} of {p.size} experts; choose 1 to {p.size}")
    scores = np.log(p) + rng.gumbel(size=(tokens, p.size))
    return np.sort(np.argpartition(-scores, topk - 1, axis=1)[:, :topk], axis=1).astype(np.int64)


def routing(
    kind: str, tokens: int, experts: int, topk: int, *, rank: int = 0, seed: int = 0, step: int = 0,
    groups: int = 1, limit: int = 1, hot: int = 4, share: float = 0.5, alpha: float = 1.0,
) -> tuple[Int64, Float32]:  # fmt: skip
    """Draw the experts of one rank's tokens.

    Args:
        kind: see the module. groups, limit: "grouped": experts lie in so many equal groups, a token uses
            those of `limit`. The rest: see `popularity`.
        tokens, experts, topk: sizes. rank, seed, step: what the draw depends on.

    Returns:
        int64 [tokens, topk], ascending in a row; float32 [tokens, topk] weights that add up to about 1.

    Raises:
        UsageError: sizes that cannot be.
    """
    p = popularity(kind, experts, hot=hot, share=share, alpha=alpha, seed=seed)
    rng = np.random.default_rng([seed, rank, step, 1])
    if kind == "grouped":
        ids = _grouped(tokens, experts, topk, groups, limit, rng)
    else:
        ids = draw(p, tokens, topk, rng)
    weights = rng.random((tokens, topk), np.float32) + np.float32(0.25)
    return ids, weights / weights.sum(axis=1, keepdims=True)


def _grouped(
    tokens: int, experts: int, topk: int, groups: int, limit: int, rng: np.random.Generator
) -> Int64:
    """`topk` experts of `limit` groups, groups and experts uniform."""
    if groups < 1 or experts % groups or not 1 <= limit <= groups or limit * (experts // groups) < topk:
        raise UsageError(
            f"routing: {experts} experts in {groups} groups of which {limit} cannot give {topk}; "
            f"groups must divide experts and limit * experts / groups be at least topk"
        )
    scores = rng.random((tokens, groups, experts // groups))
    chosen = np.argsort(rng.random((tokens, groups)), axis=1)[:, :limit]
    open_ = np.zeros((tokens, groups), bool)
    np.put_along_axis(open_, chosen, True, axis=1)
    scores[~open_] = -1.0
    flat = scores.reshape(tokens, experts)
    return np.sort(np.argpartition(-flat, topk - 1, axis=1)[:, :topk], axis=1).astype(np.int64)


def from_gate(
    logits: Float32, topk: int, *, groups: int = 1, limit: int = 1, bias: Float32 | None = None,
    route_scale: float = 1.0,
) -> tuple[Int64, Float32]:  # fmt: skip
    """Route by DeepSeek-V3's gate.

    Args:
        logits: float32 [tokens, experts]. bias: float32 [experts], only selects.
        groups, limit: experts lie in so many groups; the `limit` best by the sum of their two best count.
        route_scale: weights are multiplied by it.

    Returns:
        int64 [tokens, topk] ascending; float32 [tokens, topk], scores over their sum.

    Raises:
        UsageError: the groups do not divide the experts, or those kept hold fewer than `topk`.
    """
    tokens, experts = logits.shape
    if groups < 1 or experts % groups or not 1 <= limit <= groups or limit * (experts // groups) < topk:
        raise UsageError(f"gate: {experts} experts in {groups} groups of which {limit} cannot give {topk}")
    scores = (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
    choice = (scores if bias is None else scores + bias).reshape(tokens, groups, -1)
    best = np.sort(choice, axis=2)[:, :, -2:].sum(axis=2)
    closed = np.argsort(-best, axis=1, kind="stable")[:, limit:]
    choice = choice.copy()
    np.put_along_axis(choice, closed[:, :, None], np.float32(-np.inf), axis=1)
    order = np.argsort(-choice.reshape(tokens, experts), axis=1, kind="stable")[:, :topk]
    ids = np.sort(order, axis=1).astype(np.int64)
    weights = np.take_along_axis(scores, ids, axis=1)
    weights = weights / weights.sum(axis=1, keepdims=True) * np.float32(route_scale)
    return ids, weights.astype(np.float32)


def imbalance(topk_idx: Int64, experts: int) -> float:
    """Largest load of an expert over the mean one; 0 without any."""
    load = np.bincount(topk_idx[topk_idx >= 0].ravel(), minlength=experts)
    return float(load.max() / load.mean()) if load.sum() else 0.0
