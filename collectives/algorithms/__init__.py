"""Algorithms of collectives as pure functions: a `Shape` gives the flows of one rank.

What `Shape.sizes` is: of one rank's block for all_gather, reduce_scatter, gather, scatter (and v); of the
block for one peer for all_to_all (v: of mine for each); of the buffer for broadcast, reduce and all_reduce by
"one-shot" or "recursive-doubling"; of one of `size` equal blocks of it for the other all_reduces, which have
two flows: after the first each rank adds up the block it owns, in the second it gives it to all.

What holds of every algorithm, and is tested on each: a rank ends a flow only after every rank has begun it.
"""

from __future__ import annotations

from collections.abc import Callable

from collectives.algorithms import doubling, levels, mesh, ring, trees
from collectives.algorithms.steps import Exchange, Flow, Schedule, Shape

__all__ = ["ALGORITHMS", "ONE_EXCHANGE", "WHOLE", "Exchange", "Flow", "Schedule", "Shape", "applicable"]

Algorithm = Callable[[Shape], list[Flow]]
_TREES = {"direct": trees.direct, "binomial": trees.binomial, "two-level": trees.two_level}
ONE_EXCHANGE = "one-exchange"
"""Name of the algorithms that asynchronous calls take where another needs a rank between start and end."""


def _rooted(kind: Callable[[trees.Tree], Algorithm]) -> dict[str, Algorithm]:
    return {name: kind(tree) for name, tree in _TREES.items()}


_GATHERS: dict[str, Algorithm] = {
    "full-mesh": mesh.own_block,
    "ring": ring.all_gather,
    "recursive-doubling": doubling.all_gather,
    "bruck": doubling.bruck_all_gather,
}
_SCATTERS: dict[str, Algorithm] = {
    "full-mesh": mesh.block_of_target,
    "ring": ring.reduce_scatter,
    "recursive-halving": doubling.reduce_scatter,
}
ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "barrier": {
        "full-mesh": mesh.barrier,
        "dissemination": doubling.dissemination,
        **{name: trees.barrier(tree) for name, tree in _TREES.items()},
    },
    "all_to_all": {
        "full-mesh": mesh.block_of_target,
        "pairwise": mesh.pairwise,
        "bruck": doubling.bruck_all_to_all,
        "two-level": levels.all_to_all,
    },
    "all_to_all_v": {"full-mesh": mesh.block_of_target, "pairwise": mesh.pairwise},
    "all_gather": {**_GATHERS, "two-level": levels.all_gather},
    "all_gather_v": _GATHERS,
    "reduce_scatter": {**_SCATTERS, "two-level": levels.reduce_scatter},
    "reduce_scatter_v": _SCATTERS,
    "all_reduce": {
        "full-mesh": mesh.two_shot,
        "one-shot": mesh.own_block,
        "ring": ring.all_reduce,
        "recursive-doubling": doubling.all_reduce,
        "recursive-halving": doubling.halving_doubling,
        "two-level": levels.all_reduce,
        ONE_EXCHANGE: mesh.fused,
    },
    "broadcast": {**_rooted(trees.broadcast), ONE_EXCHANGE: mesh.fused_broadcast},
    "reduce": {**_rooted(trees.reduce), ONE_EXCHANGE: mesh.fused_reduce},
    "scatter": {**_rooted(trees.scatter), ONE_EXCHANGE: mesh.from_root},
    "scatter_v": {**_rooted(trees.scatter), ONE_EXCHANGE: mesh.from_root},
    "gather": {**_rooted(trees.gather), ONE_EXCHANGE: mesh.to_root},
    "gather_v": {**_rooted(trees.gather), ONE_EXCHANGE: mesh.to_root},
}
"""Operation -> name -> algorithm."""
_LEVELLED = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce")
WHOLE = ("one-shot", "recursive-doubling")
"""Algorithms of all_reduce that move whole vectors, in one flow."""


def applicable(kind: str, name: str, nodes: tuple[int, ...]) -> bool:
    """Whether an algorithm can be used: "two-level" needs nodes with equally many ranks, except for trees."""
    return name != "two-level" or kind not in _LEVELLED or levels.applies(nodes)
