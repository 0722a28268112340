"""Ring: each step sends a block to the right neighbour and takes one from the left. Least traffic, most
steps.

    all_gather      size - 1 steps; step i passes on the block of rank me - i
    reduce_scatter  size - 1 steps; step i passes on the sum of block me - i - 1
    all_reduce      one after the other

The last block a rank gets has been through all others, so all have entered.
Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
"""

from __future__ import annotations

import numpy as np

from collectives.algorithms.steps import Flow, Schedule, Shape, chain


def all_gather(shape: Shape) -> list[Flow]:
    """Blocks of all ranks to all."""
    return [_round(shape, 0, 0)]


def reduce_scatter(shape: Shape) -> list[Flow]:
    """Block i, summed, to rank i."""
    return [_round(shape, 1, 0)]


def all_reduce(shape: Shape) -> list[Flow]:
    """Both; `sizes` are those of a block."""
    return [_round(shape, 1, 0), _round(shape, 0, shape.half)]


def _round(shape: Shape, ahead: int, word: int) -> Schedule:
    size, me = shape.size, shape.rank
    blocks = (me - ahead - np.arange(size - 1)) % size
    return chain((me + 1) % size, shape.all_sizes()[blocks], word)
