"""Algorithms as pure functions: who knows what at the end, words, bytes, against a small simulation."""

import numpy as np
import pytest

from collectives.algorithms import ALGORITHMS, Exchange, Shape, applicable

SIZES = [1, 2, 3, 4, 5, 7, 8, 12, 16, 33]
ROOTED = ("broadcast", "reduce", "scatter", "scatter_v", "gather", "gather_v")
TREES = ("direct", "binomial", "two-level")
CASES = [(kind, name) for kind, names in ALGORITHMS.items() for name in names]


def nodes_for(size):
    return tuple(rank // max(1, size // 4) for rank in range(size)) if size % 4 == 0 else tuple([0] * size)


def sizes_for(kind, size, rank):
    if kind == "all_to_all_v":
        return np.array([(3 * rank + 5 * peer) % 7 for peer in range(size)], np.int64)
    if kind.endswith("_v"):
        return np.array([5 * peer % 7 for peer in range(size)], np.int64)
    return 100


class Run:
    """All ranks' flows one after the other; a rank knows of those whose signals it has waited for, and of
    whom they knew when they sent them."""

    def __init__(self, kind, name, size, root):
        self.size = size
        self.plans = [
            ALGORITHMS[kind][name](Shape(size, r, sizes_for(kind, size, r), root, nodes_for(size)))
            for r in range(size)
        ]
        assert len({len(plan) for plan in self.plans}) == 1
        self.knows = [{rank} for rank in range(size)]
        self.words: dict[tuple[int, int], list[set[int]]] = {}

    def flow(self, number, rng=None):
        flows = [plan[number] for plan in self.plans]
        if isinstance(flows[0], Exchange):
            everyone = set.union(*self.knows)
            self.knows = [set(everyone) for _ in range(self.size)]
            return
        at, used = [0] * self.size, set()
        left = set(range(self.size))
        while left:
            order = sorted(left) if rng is None else rng.permutation(sorted(left)).tolist()
            moved = [rank for rank in order if self._advance(rank, flows[rank], at)]
            left = {rank for rank in left if at[rank] < 2 * len(flows[rank].steps)}
            assert moved or not left, "stuck"
            used |= set(moved)
        for rank, flow in enumerate(flows):
            for word, signals in flow.signals.items():
                assert len(self.words.get((rank, word), [])) == signals, "a signal nobody waits for"
        came = {key for key, signals in self.words.items() if signals}
        assert came == {(rank, word) for rank, flow in enumerate(flows) for word in flow.signals}
        self.words.clear()

    def _advance(self, rank, flow, at):
        """Steps have two halves: the sends, then the wait."""
        if at[rank] >= 2 * len(flow.steps):
            return False
        step = flow.steps[at[rank] // 2]
        if at[rank] % 2 == 0:
            for send in flow.sends[step["first"] : step["first"] + step["count"]]:
                self.words.setdefault((int(send["peer"]), int(send["word"])), []).append(
                    set(self.knows[rank])
                )
        elif step["word"] >= 0:
            signals = self.words.get((rank, int(step["word"])), [])
            if len(signals) < step["value"]:
                return False
            for known in signals[: int(step["value"])]:
                self.knows[rank] |= known
        at[rank] += 1
        return True


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_rank_ends_only_after_all_have_begun_and_every_signal_is_waited_for(kind, name):
    """Mutation: binomial broadcast without ready flags; a leaf then ends without knowing of its sisters."""
    rng = np.random.default_rng(7)
    for size in SIZES:
        if not applicable(kind, name, nodes_for(size)):
            continue
        for root in sorted({0, size // 2, size - 1}) if kind in ROOTED else [0]:
            run = Run(kind, name, size, root)
            for number in range(len(run.plans[0])):
                run.flow(number, rng)
                assert all(known == set(range(size)) for known in run.knows), (size, root, number)
                run.knows = [{rank} for rank in range(size)]


def moved(kind, name, size, nodes=()):
    """Bytes each rank sends to others, by flow, where every block has 100 bytes."""
    out = []
    for rank in range(size):
        total = []
        for flow in ALGORITHMS[kind][name](Shape(size, rank, 100, 0, nodes)):
            if isinstance(flow, Exchange):
                sizes = np.broadcast_to(flow.record_bytes, size)
                total.append(int(sizes.sum() - sizes[rank]))
            else:
                total.append(int(flow.sends["nbytes"][flow.sends["peer"] != rank].sum()))
        out.append(total)
    return out


@pytest.mark.parametrize("size", [4, 8, 16])
def test_bytes_are_the_textbook_ones(size):
    log, block = size.bit_length() - 1, -(-100 // size)
    assert moved("all_reduce", "ring", size) == [[(size - 1) * 100] * 2] * size
    assert moved("all_reduce", "full-mesh", size) == [[(size - 1) * 100] * 2] * size
    assert moved("all_reduce", "one-exchange", size) == [[(size - 1) * 200]] * size
    assert moved("broadcast", "one-exchange", size) == [[(size - 1) * 2 * block]] + [
        [(size - 2) * block + 8]
    ] * (size - 1)
    assert moved("reduce", "one-exchange", size) == [[(size - 1) * block]] + [[size * block]] * (size - 1)
    assert moved("scatter", "one-exchange", size) == [[(size - 1) * 100]] + [[8]] * (size - 1)
    assert moved("gather", "one-exchange", size) == [[(size - 1) * 8]] + [[100]] * (size - 1)
    assert moved("all_reduce", "recursive-halving", size) == [[(size - 1) * 100] * 2] * size
    assert moved("all_reduce", "recursive-doubling", size) == [[log * 100]] * size
    assert moved("all_gather", "bruck", size) == [[(size - 1) * 100]] * size
    assert moved("all_gather", "recursive-doubling", size) == [[(size - 1) * 100]] * size
    assert moved("all_to_all", "bruck", size) == [[log * size // 2 * 100]] * size
    assert moved("all_to_all", "pairwise", size) == [[(size - 1) * 100]] * size
    assert moved("barrier", "dissemination", size) == [[8 * log]] * size
    p, q = size // 2, 2
    nodes = tuple(rank // p for rank in range(size))
    assert moved("all_reduce", "two-level", size, nodes) == [[((p - 1) * q + q - 1) * 100] * 2] * size
    assert moved("all_to_all", "two-level", size, nodes) == [[((p - 1) * q + (q - 1) * p) * 100]] * size


@pytest.mark.parametrize("size", [1, 3, 5, 6, 8, 13])
def test_a_tree_has_everybody_once(size):
    for kind, down in (("broadcast", True), ("gather", False)):
        for name in TREES:
            data = [0] * size
            for rank in range(size):
                [flow] = ALGORITHMS[kind][name](Shape(size, rank, 100, 1 % size, nodes_for(size)))
                for send in flow.sends[flow.sends["nbytes"] >= 100]:
                    data[int(send["peer"])] += int(send["nbytes"])
            if down:
                assert data == [0 if rank == 1 % size else 100 for rank in range(size)]
            else:
                assert data[1 % size] == 100 * (size - 1)


@pytest.mark.parametrize("kind", ["scatter", "gather"])
def test_a_tree_moves_each_block_once_into_or_out_of_the_root(kind):
    for name in TREES:
        flows = [ALGORITHMS[kind][name](Shape(12, r, 100, 5, nodes_for(12)))[0] for r in range(12)]
        if kind == "scatter":
            assert flows[5].sends["nbytes"][flows[5].sends["nbytes"] >= 100].sum() == 1100
        else:
            to_root = [s["nbytes"] for f in flows for s in f.sends if s["peer"] == 5 and s["nbytes"] >= 100]
            assert sum(to_root) == 1100


def test_words_of_two_flows_are_apart_and_within_their_room():
    from collectives.engine_calls import words_of

    for kind, name in CASES:
        for size in SIZES:
            if not applicable(kind, name, nodes_for(size)):
                continue
            plan = ALGORITHMS[kind][name](Shape(size, 0, sizes_for(kind, size, 0), 0, nodes_for(size)))
            words = [set(flow.signals) for flow in plan if not isinstance(flow, Exchange)]
            assert sum(map(len, words)) == len(set().union(*words))
            assert max(set().union(*words), default=0) < words_of(size)
