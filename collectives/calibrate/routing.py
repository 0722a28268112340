"""Routing of the published benchmarks: random scores, the best 8; pure, from a seed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collectives.calibrate.cases import EXPERTS, TOPK, Case

Int32 = npt.NDArray[np.int32]
_SEED = 20250224


def experts_of(case: Case, rank: int) -> Int32:
    """Return the experts of each token of `rank`, int32 [tokens, 8], distinct within a token.

    The order of the scores is all that matters, and that of |normal| + 1 is the order of a uniform draw.
    """
    rng = np.random.default_rng([_SEED, case.ranks, case.tokens, rank])
    scores = rng.random((case.tokens, EXPERTS), dtype=np.float32)
    if case.best_nodes:
        best = scores.reshape(case.tokens, case.nodes, -1).max(2)
        kept = np.argpartition(-best, case.best_nodes, axis=1)[:, : case.best_nodes]
        allowed = np.zeros((case.tokens, case.nodes), bool)
        np.put_along_axis(allowed, kept, True, axis=1)
        scores *= np.repeat(allowed, EXPERTS // case.nodes, axis=1)
    chosen: Int32 = np.argpartition(-scores, TOPK, axis=1)[:, :TOPK].astype(np.int32)
    return chosen


def rows_to(experts: Int32, parts: int, distinct: bool) -> Int32:
    """Return how many rows go to each of `parts` equal parts of the experts (ranks or nodes), int32 [parts].

    Args:
        experts: int32 [tokens, k].
        distinct: a token counts once for each part it goes to, not once for each expert.
    """
    part = experts // (EXPERTS // parts)
    if not distinct:
        every: Int32 = np.bincount(part.ravel(), minlength=parts).astype(np.int32)
        return every
    seen = np.zeros((experts.shape[0], parts), bool)
    np.put_along_axis(seen, part.astype(np.int64), True, axis=1)
    once: Int32 = seen.sum(0).astype(np.int32)
    return once
