"""Full mesh: everybody sends to everybody at once. The fabric of the pod has no hot spot for it.

    exchange    all operations in which every rank has something for every rank; one operation of the engine
    one-shot    all-reduce of little: everybody sends its whole vector
    pairwise    all-to-all in size - 1 steps, to me + 1, me + 2, …, each after as many arrivals
    one-exchange  all-reduce and rooted operations in one exchange: all that others need of me leaves at once

Everybody waits for everybody's record, also where it is empty.
"""

from __future__ import annotations

import numpy as np

from collectives.algorithms.steps import RECORD_BYTES, SIGNAL_BYTES, Exchange, Flow, Schedule, Shape
from emulator.engine.api import ADD, GE
from emulator.engine.schedules import SEND_DTYPE, STEP_DTYPE


def barrier(shape: Shape) -> list[Flow]:
    """A record to everyone."""
    return [Exchange(RECORD_BYTES)]


def own_block(shape: Shape) -> list[Flow]:
    """all_gather(_v), one-shot all_reduce: my block to everyone."""
    return [Exchange(shape.sizes if isinstance(shape.sizes, int) else int(shape.sizes[shape.rank]))]


def block_of_target(shape: Shape) -> list[Flow]:
    """all_to_all(_v), reduce_scatter(_v): to each its block."""
    return [Exchange(shape.sizes)]


def two_shot(shape: Shape) -> list[Flow]:
    """all_reduce: blocks to their owners, then the owners' sums to everyone."""
    return [Exchange(shape.one_size()), Exchange(shape.one_size())]


def fused(shape: Shape) -> list[Flow]:
    """all_reduce: as much as `two_shot`, the sums right behind the blocks; the time of its second hop is
    spent by each rank alone."""
    return [Exchange(2 * shape.one_size(), shape.hop_ps if shape.size > 1 else 0)]


def fused_broadcast(shape: Shape) -> list[Flow]:
    """broadcast: blocks of the root to all, and of them to the others, right behind."""
    block, sizes = -(-shape.one_size() // shape.size), np.zeros(shape.size, np.int64)
    sizes[:] = 2 * block if shape.rank == shape.root else block
    if shape.rank != shape.root:
        sizes[shape.root] = SIGNAL_BYTES
    sizes[shape.rank] = 0
    return [Exchange(sizes, shape.hop_ps if shape.size > 1 else 0)]


def fused_reduce(shape: Shape) -> list[Flow]:
    """reduce: blocks to their owners, the owners' sums right behind them to the root."""
    block, sizes = -(-shape.one_size() // shape.size), np.zeros(shape.size, np.int64)
    sizes[:] = block
    sizes[shape.root] = 2 * block
    sizes[shape.rank] = 0
    return [Exchange(sizes, shape.hop_ps if shape.size > 1 else 0)]


def from_root(shape: Shape) -> list[Flow]:
    """scatter(_v): the root's blocks; a signal of each to the root, nothing among the others."""
    sizes = np.zeros(shape.size, np.int64)
    if shape.rank == shape.root:
        sizes[:] = shape.all_sizes()
        sizes[shape.root] = 0
    else:
        sizes[shape.root] = SIGNAL_BYTES
    return [Exchange(sizes)]


def to_root(shape: Shape) -> list[Flow]:
    """gather(_v): my block to the root; a signal of the root to each."""
    sizes = np.zeros(shape.size, np.int64)
    if shape.rank == shape.root:
        sizes[:] = SIGNAL_BYTES
        sizes[shape.root] = 0
    else:
        sizes[shape.root] = shape.all_sizes()[shape.rank]
    return [Exchange(sizes)]


def pairwise(shape: Shape) -> list[Flow]:
    """all_to_all(_v): one peer a step; the own block moves first."""
    size, me = shape.size, shape.rank
    order = (me + np.arange(size)) % size
    sends, steps = np.zeros(size, SEND_DTYPE), np.zeros(size, STEP_DTYPE)
    sends["peer"], sends["nbytes"], sends["value"], sends["op"] = order, shape.all_sizes()[order], 1, ADD
    steps["first"], steps["count"], steps["cmp"], steps["value"] = (
        np.arange(size),
        1,
        GE,
        np.arange(1, size + 1),
    )
    return [Schedule(steps, sends, {0: size})]
