"""Logarithmic algorithms: partners at distances 1, 2, 4, …

    recursive doubling   all_reduce of the whole vector, all_gather; partner me ^ 2**j
    recursive halving    reduce_scatter; and before doubling, all_reduce (Rabenseifner)
    dissemination        barrier; to me + 2**j, for any size
    bruck                all_gather and all_to_all in ceil(log2 size) steps, for any size

Sizes that are no power of two: the ranks beyond the largest one, p, first give what they have to rank - p,
and take the result from it at the end. Each round has a word of its own.
Sources: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005;
Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988; Bruck et al., "Efficient
algorithms for all-to-all communications", 1997.
"""

from __future__ import annotations

import numpy as np

from collectives.algorithms.steps import SIGNAL_BYTES, Builder, Flow, Shape


def power_below(size: int) -> int:
    """The largest power of two that is not above `size`."""
    return 1 << (size.bit_length() - 1)


def all_reduce(shape: Shape) -> list[Flow]:
    """Recursive doubling of the whole vector; `sizes` is its bytes."""
    nbytes, me, build = shape.one_size(), shape.rank, Builder()
    p, rounds = power_below(shape.size), power_below(shape.size).bit_length() - 1
    if me >= p:
        return [build.step([(me - p, nbytes, rounds)]).step(word=rounds + 1).done()]
    if me + p < shape.size:
        build.step(word=rounds)
    for j in range(rounds):
        build.step([(me ^ 1 << j, nbytes, j)], word=j)
    if me + p < shape.size:
        build.step([(me + p, nbytes, rounds + 1)])
    return [build.done()]


def reduce_scatter(shape: Shape) -> list[Flow]:
    """Recursive halving; `sizes` are those of each rank's block."""
    return [_halving(shape)]


def halving_doubling(shape: Shape) -> list[Flow]:
    """all_reduce: halving, then doubling; `sizes` is the bytes of one of `size` blocks."""
    return [_halving(shape), _doubling(shape, shape.half)]


def all_gather(shape: Shape) -> list[Flow]:
    """Recursive doubling; `sizes` are those of each rank's block."""
    return [_doubling(shape, 0)]


def _owners(shape: Shape) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Bytes that each rank below the power of two looks after: its own block and that of the rank p on."""
    p, sizes = power_below(shape.size), shape.all_sizes()
    held = sizes[:p].copy()
    held[: shape.size - p] += sizes[p:]
    return held


def _halving(shape: Shape) -> Flow:
    """Step j: exchange half of what is still mine with the partner p / 2**(j + 1) away."""
    me, build, sizes = shape.rank, Builder(), shape.all_sizes()
    p, held = power_below(shape.size), _owners(shape)
    rounds, extra = p.bit_length() - 1, shape.size - p
    if me >= p:
        return build.step([(me - p, int(sizes.sum()), rounds)], word=rounds + 1).done()
    if me < extra:
        build.step(word=rounds)
    low, high = 0, p
    for j in range(rounds):
        middle = (low + high) // 2
        mine = (low, middle) if me < middle else (middle, high)
        theirs = (middle, high) if me < middle else (low, middle)
        build.step([(me ^ (p >> (j + 1)), int(held[theirs[0] : theirs[1]].sum()), j)], word=j)
        low, high = mine
    if me < extra:
        build.step([(me + p, int(sizes[me + p]), rounds + 1)])
    return build.done()


def _doubling(shape: Shape, base: int) -> Flow:
    """Step j: exchange all I know with the partner 2**j away."""
    me, build, sizes = shape.rank, Builder(base), shape.all_sizes()
    p, held = power_below(shape.size), _owners(shape)
    rounds, extra = p.bit_length() - 1, shape.size - p
    if me >= p:
        return build.step([(me - p, int(sizes[me]), rounds)], word=rounds + 1).done()
    if me < extra:
        build.step(word=rounds)
    for j in range(rounds):
        low = me >> j << j
        build.step([(me ^ 1 << j, int(held[low : low + (1 << j)].sum()), j)], word=j)
    if me < extra:
        build.step([(me + p, int(sizes.sum()), rounds + 1)])
    return build.done()


def dissemination(shape: Shape) -> list[Flow]:
    """barrier: a signal to me + 2**j, one from me - 2**j."""
    build = Builder()
    for j in range((shape.size - 1).bit_length()):
        build.step([((shape.rank + (1 << j)) % shape.size, SIGNAL_BYTES, j)], word=j)
    return [build.done()]


def bruck_all_gather(shape: Shape) -> list[Flow]:
    """Step j: my first 2**j blocks (of ranks me, me + 1, …) to me - 2**j."""
    size, me, build, sizes = shape.size, shape.rank, Builder(), shape.all_sizes()
    for j in range((size - 1).bit_length()):
        count = min(1 << j, size - (1 << j))
        nbytes = int(sizes[(me + np.arange(count)) % size].sum())
        build.step([((me - (1 << j)) % size, nbytes, j)], word=j)
    return [build.done()]


def bruck_all_to_all(shape: Shape) -> list[Flow]:
    """Step j: the blocks for ranks at a distance with bit j set to me + 2**j."""
    size, build = shape.size, Builder()
    for j in range((size - 1).bit_length()):
        count = int(np.count_nonzero(np.arange(size) >> j & 1))
        build.step([((shape.rank + (1 << j)) % size, count * shape.one_size(), j)], word=j)
    return [build.done()]
