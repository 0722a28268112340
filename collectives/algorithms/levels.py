"""Two levels: inside each node first, then between ranks of equal place in their nodes, or the other way
round.

    reduce_scatter  to each mate the blocks it and its likes on other nodes own; then to each of my likes its
    own all_gather      my block to my likes; then to each mate what I have of mine and theirs
    all_reduce      one after the other
    all_to_all      to each mate what it and its likes are to get; then to each of my likes what its own node
                    sends

q nodes with p ranks each. A rank ends after all its mates or likes, each of which waited for all of its node
or likes: all have entered.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from collectives.algorithms.steps import Flow, Schedule, Shape, fan_out, joined

Ranks = np.ndarray[tuple[int], np.dtype[np.int64]]


def applies(nodes: tuple[int, ...]) -> bool:
    """Whether there are several nodes with equally many ranks, more than one, each."""
    counts = set(Counter(nodes).values())
    return len(set(nodes)) > 1 and len(counts) == 1 and counts != {1}


class Grid(NamedTuple):
    """My mates (my node) and likes (my place in the other nodes), those after me first; p and q."""

    mates: Ranks
    likes: Ranks
    p: int
    q: int


def grid(shape: Shape) -> Grid:
    """Where this rank is."""
    nodes = np.array(shape.nodes)
    order = np.argsort(nodes, kind="stable").reshape(len(set(shape.nodes)), -1)
    q, p = order.shape
    row, column = (int(at[0]) for at in np.nonzero(order == shape.rank))
    mates = np.roll(order[row], -column)[1:]
    likes = np.roll(order[:, column], -row)[1:]
    return Grid(mates, likes, p, q)


def reduce_scatter(shape: Shape) -> list[Flow]:
    """Inside, then between."""
    return [_in_out(shape, 0)]


def all_gather(shape: Shape) -> list[Flow]:
    """Between, then inside."""
    return [_out_in(shape, 0)]


def all_reduce(shape: Shape) -> list[Flow]:
    """Both; `sizes` is the bytes of one of `size` blocks."""
    return [_in_out(shape, 0), _out_in(shape, shape.half)]


def all_to_all(shape: Shape) -> list[Flow]:
    """Inside, then between."""
    at, unit = grid(shape), shape.one_size()
    inside = fan_out(at.mates, at.q * unit, 0, at.p - 1)
    return [joined(inside, fan_out(at.likes, at.p * unit, 1, at.q - 1))]


def _in_out(shape: Shape, word: int) -> Schedule:
    at, unit = grid(shape), shape.one_size()
    inside = fan_out(at.mates, at.q * unit, word, at.p - 1)
    return joined(inside, fan_out(at.likes, unit, word + 1, at.q - 1))


def _out_in(shape: Shape, word: int) -> Schedule:
    at, unit = grid(shape), shape.one_size()
    between = fan_out(at.likes, unit, word, at.q - 1)
    return joined(between, fan_out(at.mates, at.q * unit, word + 1, at.p - 1))
