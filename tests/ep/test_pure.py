"""Layouts, byte counts, row kinds and routings against slow loops; seeds are in the parameters."""

from types import SimpleNamespace

import numpy as np
import pytest

from collectives.ep import Buffer, ExpertParallel, traffic, wire
from collectives.ep import layout as lay
from collectives.ep.faces import numbers
from collectives.ep.facts import Limit, check_rows
from collectives.ep.routing import from_gate, imbalance, routing
from collectives.moe import EpCosts
from emulator.errors import UsageError

COSTS = EpCosts(7680, 5, 6, 7, 32)
NO_MEMORY = SimpleNamespace(
    device=SimpleNamespace(
        rank=0,
        num_ranks=4,
        topology=SimpleNamespace(dies_per_node=16),
        renew=lambda: None,
        dead=np.zeros(4, np.int64),
        config=SimpleNamespace(keep_going=False),
    ),
    members=range(4),
)
"""A group whose device can only be asked who it is."""


def draw(seed, tokens=9, topk=4, experts=24):
    rng = np.random.default_rng(seed)
    ids = np.array([np.sort(rng.permutation(experts)[:topk]) for _ in range(tokens)]).reshape(tokens, topk)
    ids[rng.random(ids.shape) < 0.2] = -1
    return ids.astype(np.int64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ranks, per_node", [(1, 4), (4, 4), (6, 4), (12, 5)])
def test_layout_equals_loops(seed, ranks, per_node):
    ids, nodes = draw(seed), lay.nodes_of(np.arange(ranks), per_node)
    layout = lay.dispatch_layout(ids, 24, nodes)
    slots, distinct = 24 // ranks, [{e // (24 // ranks) for e in row if e >= 0} for row in ids]
    assert layout.tokens_per_rank.tolist() == [sum(r in d for d in distinct) for r in range(ranks)]
    assert layout.tokens_per_expert.tolist() == [(ids == e).sum() for e in range(24)]
    assert layout.is_token_in_rank.tolist() == [[r in d for r in range(ranks)] for d in distinct]
    on = [{r // per_node for r in d} for d in distinct]
    want = [sum(m in o for o in on) for m in range(nodes.count)]
    assert layout.tokens_per_node is None if nodes.count == 1 else layout.tokens_per_node.tolist() == want
    pairs = lay.by_pair(ids, slots, ranks)
    assert pairs.order.tolist() == sorted(np.flatnonzero(ids.ravel() >= 0), key=lambda p: (ids.ravel()[p], p))
    by_rank = lay.by_rank(layout.is_token_in_rank)
    assert by_rank.order.tolist() == [t for r in range(ranks) for t in range(9) if r in distinct[t]]


@pytest.mark.parametrize("seed", range(4))
def test_pairs_of_rank_records_lie_as_pair_records_do(seed):
    """Expert-major rows and the owners' order do not depend on the level of records.

    Fails when `expand` sorts by expert alone: the owner then gets other rows back."""
    ranks, slots = 4, 6
    ids = [draw(seed * 10 + r, tokens=3 + r) for r in range(ranks)]
    for me in range(ranks):
        sent = [[p for p, e in enumerate(i.ravel()) if e // slots == me and e >= 0] for i in ids]
        want = sorted(
            (int(ids[r].ravel()[p]) - me * slots, r, p) for r in range(ranks) for p in sent[r]
        )  # (slot, source, token * K + k)
        owner = [(r, s, p) for r in range(ranks) for s, p in
                 sorted((int(ids[r].ravel()[p]), p) for p in sent[r])]  # fmt: skip
        keep = [[t for t in range(len(i)) if (i[t] // slots == me).any() and (i[t] >= 0).any()] for i in ids]
        records = np.concatenate([ids[r][keep[r]] for r in range(ranks)])
        source = np.repeat(np.arange(ranks), [len(k) for k in keep])
        token = np.concatenate([np.array(k, np.int64) for k in keep])
        got = lay.expand(records, source, me * slots, slots, ranks)
        slot, pair = records[got.record, got.k] - me * slots, token[got.record] * 4 + got.k
        assert [tuple(row) for row in np.stack([slot, source[got.record], pair], 1).tolist()] == want
        assert got.received.tolist() == [len(s) for s in sent]
        assert [want[i] for i in got.place] == [(s - me * slots, r, p) for r, s, p in owner]


def test_nodes_that_are_not_full_have_a_forwarder_each():
    """EP 127, 128 and 129: the last node has fewer ranks; each rank's rows for it still pass through one."""
    for ranks in (127, 128, 129, 320, 384):
        nodes = lay.nodes_of(np.arange(ranks), 16)
        assert nodes.size.sum() == ranks and nodes.count == -(-ranks // 16)
        for m in range(nodes.count):
            assert (nodes.node[nodes.forwarder[:, m]] == m).all()
        assert (nodes.forwarder[np.arange(ranks), nodes.node] == np.arange(ranks)).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks, per_node", [(4, 4), (6, 4), (8, 2)])
def test_two_hops_carry_every_distinct_row_once(seed, ranks, per_node):
    """D2: rows between nodes are distinct (token, node) pairs, inside them distinct (token, rank) pairs; what
    is signalled is what is waited for. Fails when rows between nodes are counted by rank."""
    nodes, slots = lay.nodes_of(np.arange(ranks), per_node), 24 // ranks
    layouts = [
        lay.dispatch_layout(draw(seed * 10 + r)[:, :4] // (24 // (slots * ranks)), 24, nodes)
        for r in range(ranks)
    ]
    spreads = [traffic.spread_of(x, nodes, slots) for x in layouts]
    table = np.array([s.ranks for s in spreads])
    out = [traffic.dispatch_stages(r, nodes, table, spreads[r].nodes, 10) for r in range(ranks)]
    here = nodes.node
    far = sum(int(s.nodes[m]) for r, s in enumerate(spreads) for m in range(nodes.count) if m != here[r])
    assert sum(int(a.nbytes.sum()) for a, _ in out) == 10 * far
    assert sum(int(b.nbytes.sum()) for _, b in out) == 10 * int(table.sum())
    by_node = np.array([s.nodes for s in spreads])
    back = [traffic.combine_stages(r, nodes, table[:, r], by_node[:, here[r]], 10) for r in range(ranks)]
    assert sum(int(b.nbytes.sum()) for _, b in back) == 10 * far
    assert sum(int(a.nbytes.sum()) for a, _ in back) == 10 * int(table.sum())
    for stages in (out, back):
        for which in (0, 1):
            got = np.zeros(ranks, int)
            for both in stages:
                np.add.at(got, both[which].targets, 1)
            assert got.tolist() == [both[which].expected for both in stages]


def test_openings_are_the_closed_forms():
    """A2, D1, D2, D4: control records to every rank, pairs as they are, AGRS whatever the routing."""
    nodes = lay.nodes_of(np.arange(4), 4)
    mine = traffic.spread_of(lay.dispatch_layout(draw(1), 24, nodes), nodes, 6)
    sums = {s: traffic.open_dispatch(s, mine, COSTS, 6) for s in traffic.SCHEMES}
    pairs = mine.pairs.sum()
    assert sums["xccl"].pulls.sum() == pairs and sums["xccl"].meta_bytes == 32
    assert sums["cann"].sizes.sum() == 4 * 32 + pairs * 7680
    assert sums["deepep-ll"].sizes.sum() == 4 * 6 * 32 + pairs * 7680
    assert sums["agrs"].sizes.tolist() == [32 + 9 * 7680] * 4
    assert sums["all-to-all"].meta_bytes == sums["deepep"].meta_bytes == 32
    assert traffic.open_dispatch("deepep", mine, COSTS, 6, cached=True).meta_bytes == traffic.FLAG_BYTES
    assert (
        traffic.low_latency_row(7168) == 16 + 7168 + 4 * 56
        and traffic.low_latency_row(7168, False) == 16 + 14336
    )


def test_cut_keeps_the_sum():
    cut = traffic.cut(np.array([0, 1, 7, 1000]), 4)
    assert cut.shape == (4, 4) and cut.sum(axis=0).tolist() == [0, 1, 7, 1000] and cut.min() >= 0


@pytest.mark.parametrize("hidden", [1, 5, 128, 130])
@pytest.mark.parametrize("kind", wire.KINDS)
def test_rows_come_back_as_they_were_rounded(kind, hidden):
    x = np.random.default_rng(hidden).standard_normal((6, hidden)).astype(np.float32)
    x[2] = 0
    raw = wire.encode(x, kind)
    assert raw.shape == (6, wire.words(kind, hidden)) and raw.dtype == np.float32
    got = wire.decode(raw, kind, hidden)
    bound = {"float32": 0, "bfloat16": 2**-8, "int8": 1 / 127, "fp8": 2**-3}[kind]
    assert np.abs(got - x).max() <= bound * np.abs(x).max() and not got[2].any()
    assert wire.decode(wire.encode(x[:0], kind), kind, hidden).shape == (0, hidden)
    assert np.array_equal(wire.decode(wire.encode(got, "float32"), "float32", hidden), got)


def test_bfloat16_and_fp8_round_as_torch_does():
    torch = pytest.importorskip("torch")
    x = (np.random.default_rng(3).standard_normal(4096) * np.float32(40)).astype(np.float32)
    x[:6] = [0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, np.inf, np.nan]
    want = torch.from_numpy(x.copy()).to(torch.bfloat16).float().numpy()
    assert np.array_equal(wire.from_bfloat16(wire.to_bfloat16(x)), want, equal_nan=True)
    y = x[6:].reshape(-1, 10)
    scales, codes = wire.quantise_fp8(y)
    steps = torch.from_numpy(y / scales).to(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(wire.dequantise_fp8(codes, np.ones_like(scales)), steps)


@pytest.mark.parametrize("kind", ["uniform", "k-hot", "zipf", "grouped"])
def test_routings_are_reproducible_and_of_their_kind(kind):
    more = {"groups": 8, "limit": 3} if kind == "grouped" else {}
    ids, weights = routing(kind, 400, 64, 6, rank=3, seed=5, **more)
    again, _ = routing(kind, 400, 64, 6, rank=3, seed=5, **more)
    other, _ = routing(kind, 400, 64, 6, rank=4, seed=5, **more)
    assert np.array_equal(ids, again) and not np.array_equal(ids, other)
    assert all(len(set(row)) == 6 and row == sorted(row) for row in ids.tolist())
    assert np.allclose(weights.sum(axis=1), 1)
    low, high = {"uniform": (1, 2), "grouped": (1, 2), "zipf": (3, 11), "k-hot": (4, 11)}[kind]
    assert low <= imbalance(ids, 64) <= high
    if kind == "grouped":
        assert max(len({e // 8 for e in row}) for row in ids.tolist()) <= 3


def test_gate_picks_the_best_of_the_best_groups():
    logits = np.array([[9, 0, 5, 5, 1, 1, 8, -9], [0, 0, 0, 0, 0, 0, 0, 7]], np.float32)
    ids, weights = from_gate(logits, 2, groups=4, limit=2)
    assert ids.tolist() == [[0, 2], [0, 7]] and np.allclose(weights.sum(axis=1), 1)
    with pytest.raises(UsageError, match="cannot give 5"):
        from_gate(logits, 5, groups=4, limit=2)


def test_bad_sizes_say_what_would_do():
    with pytest.raises(UsageError, match="use 256"):
        lay.slots_of(255, 64)
    with pytest.raises(UsageError, match="names expert 24; there are 24"):
        lay.check_experts(np.array([[24]]), 24)
    with pytest.raises(UsageError, match="xccl, cann"):
        traffic.check_scheme("mpi")
    with pytest.raises(UsageError, match="uniform, k-hot"):
        routing("normal", 1, 4, 1)


@pytest.mark.parametrize(
    "value", [0, -3, 2.0, True, "4", None], ids=lambda value: f"{type(value).__name__} {value}"
)
def test_sizes_are_whole_numbers(value):
    with pytest.raises(UsageError, match="topk must be a whole number of at least 1, got"):
        traffic.whole("topk", value)
    assert traffic.whole("topk", np.int64(4)) == 4 and traffic.whole("rows", 0, 0) == 0


@pytest.mark.parametrize("name", ["num_experts", "hidden", "max_tokens", "topk", "micro_batches", "max_rows"])
@pytest.mark.parametrize("value", [0, -3, 1.5])
def test_bad_sizes_are_refused_before_the_device_is_asked_for_memory(name, value):
    """Fails when a size goes to the carving first: a device without memory has none to carve."""
    sizes = {"num_experts": 8, "hidden": 4, "max_tokens": 2, "topk": 2, name: value}
    with pytest.raises(UsageError, match=f"expert parallel: {name} must be a whole number of at least 1"):
        ExpertParallel(NO_MEMORY, **sizes)


@pytest.mark.parametrize("planes", [(0, 0, 0), (0, 0, 0, 3), (0, -1, 0, 0), (0, 0.5, 0, 0)])
def test_bad_planes_are_refused(planes):
    for make in (lambda: ExpertParallel(NO_MEMORY, 8, 4, 2, 2, planes=planes), lambda: Buffer(planes=planes)):
        with pytest.raises(UsageError, match="planes: 0, 1 or 2 for each of"):
            make()


def test_bad_kinds_are_refused():
    for which in ("kind", "back_kind"):
        with pytest.raises(UsageError, match="rows of kind 'int4'; choose one of"):
            ExpertParallel(NO_MEMORY, 8, 4, 2, 2, **{which: "int4"})
    with pytest.raises(UsageError, match="num_nvl_bytes must be a whole number of at least 0, got -1"):
        Buffer(num_nvl_bytes=-1)


def test_who_is_sent_too_much_is_named_by_its_machine_rank():
    counts = np.array([[1, 5, 0], [2, 5, 9], [1, 0, 1]], np.int32)
    members = np.array([4, 7, 2])
    check_rows(counts, members, Limit(10, True, "max_rows"))
    with pytest.raises(UsageError, match=r"^rank 7: dispatch: 10 rows .* max_rows=9 \(and 1 more") as caught:
        check_rows(counts, members, Limit(9, True, "max_rows"))
    assert caught.value.ranks == [7, 2]


@pytest.mark.parametrize("value", [np.ones((2, 2)), np.ones((2, 2), np.float32), np.ones((2, 2), np.uint64)])
def test_nothing_is_rounded_to_whole_numbers(value):
    with pytest.raises(UsageError, match=f"numbers of {value.dtype}; use int64"):
        numbers(value)
    assert numbers(np.ones(2, np.int32)).dtype == np.int64
