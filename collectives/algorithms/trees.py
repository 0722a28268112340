"""Rooted operations along a tree. Down: broadcast, scatter. Up: gather, reduce. Both: barrier.

    down   each rank tells its parent that its subtree is here; then the data comes from the root
    up     the data goes to the root; then the root's release comes down

Ready flags and releases are signals of 8 B. They are the price of one-sided writes: nobody writes where the
owner is not ready, and nobody ends before all have entered.

    direct     every rank is a child of the root
    binomial   a child at each power of two; its subtree as large as that
    two-level  the root, one rank of each other node under it, the rest of a node under its one
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from collectives.algorithms.steps import SIGNAL_BYTES, Builder, Flow, Int64, Shape


class Place(NamedTuple):
    """A rank's place in a tree: parent (-1 at the root), children in the order they are served, and for each
    child the ranks of its subtree."""

    parent: int
    children: tuple[int, ...]
    subtrees: tuple[tuple[int, ...], ...]
    own: tuple[int, ...]


Tree = Callable[[Shape], Place]


def direct(shape: Shape) -> Place:
    """Everybody under the root."""
    size, root = shape.size, shape.root
    others = tuple((root + i) % size for i in range(1, size))
    if shape.rank != root:
        return Place(root, (), (), (shape.rank,))
    return Place(-1, others, tuple((other,) for other in others), (root, *others))


def binomial(shape: Shape) -> Place:
    """Children at 1, 2, 4, … below the lowest bit of my distance to the root; the largest subtree first."""
    size, root = shape.size, shape.root
    v = (shape.rank - root) % size
    low = v & -v if v else 1 << max(size - 1, 1).bit_length()
    steps = [1 << j for j in reversed(range(low.bit_length() - 1)) if v + (1 << j) < size]

    def ranks(first: int, count: int) -> tuple[int, ...]:
        return tuple((root + w) % size for w in range(first, min(first + count, size)))

    children = tuple((root + v + step) % size for step in steps)
    parent = (root + v - low) % size if v else -1
    return Place(parent, children, tuple(ranks(v + step, step) for step in steps), ranks(v, low))


def two_level(shape: Shape) -> Place:
    """One rank of each node under the root, the others of its node under each."""
    nodes, me, root = shape.nodes, shape.rank, shape.root
    leaders: dict[int, int] = {nodes[root]: root}
    for rank, node in enumerate(nodes):
        leaders.setdefault(node, rank)
    mates = {
        node: tuple(r for r, of in enumerate(nodes) if of == node and r != leaders[node]) for node in leaders
    }
    leader = leaders[nodes[me]]
    if me != leader:
        return Place(leader, (), (), (me,))
    mine = mates[nodes[me]]
    others = tuple(other for other in leaders.values() if other != root) if me == root else ()
    subtrees = [(other, *mates[nodes[other]]) for other in others] + [(mate,) for mate in mine]
    own = (me, *(rank for subtree in subtrees for rank in subtree))
    return Place(-1 if me == root else root, others + mine, tuple(subtrees), own)


def down(shape: Shape, tree: Tree, nbytes: Int64) -> list[Flow]:
    """Data from the root.

    Args:
        nbytes: int64 [children], what each of my children is sent.
    """
    place, build = tree(shape), Builder()
    if place.children:
        build.step(word=0, signals=len(place.children))
    if place.parent >= 0:
        build.step([(place.parent, SIGNAL_BYTES, 0)], word=1)
    build.step([(child, int(size), 1) for child, size in zip(place.children, nbytes, strict=True)])
    return [build.done()]


def up(shape: Shape, tree: Tree, nbytes: int) -> list[Flow]:
    """Data to the root; nbytes: what I send to my parent."""
    place, build = tree(shape), Builder()
    if place.children:
        build.step(word=0, signals=len(place.children))
    if place.parent >= 0:
        build.step([(place.parent, nbytes, 0)], word=1)
    build.step([(child, SIGNAL_BYTES, 1) for child in place.children])
    return [build.done()]


def broadcast(tree: Tree) -> Callable[[Shape], list[Flow]]:
    """The buffer, `sizes` bytes, to every child."""
    return lambda shape: down(shape, tree, np.full(len(tree(shape).children), shape.one_size(), np.int64))


def reduce(tree: Tree) -> Callable[[Shape], list[Flow]]:
    """The sum so far, `sizes` bytes, to the parent."""
    return lambda shape: up(shape, tree, shape.one_size())


def scatter(tree: Tree) -> Callable[[Shape], list[Flow]]:
    """To every child the blocks of its subtree."""

    def flows(shape: Shape) -> list[Flow]:
        sizes = shape.all_sizes()
        return down(
            shape, tree, np.array([sizes[list(part)].sum() for part in tree(shape).subtrees], np.int64)
        )

    return flows


def gather(tree: Tree) -> Callable[[Shape], list[Flow]]:
    """To the parent the blocks of my subtree."""
    return lambda shape: up(shape, tree, int(shape.all_sizes()[list(tree(shape).own)].sum()))


def barrier(tree: Tree) -> Callable[[Shape], list[Flow]]:
    """A signal up from all, then down to all."""
    return lambda shape: up(shape._replace(root=0), tree, SIGNAL_BYTES)
