"""`superpod bench coll` and `superpod bench ep`: counts, factors, formats, checks, and both end to end."""

import json

import numpy as np
import pytest
from ranks import run_ranks

from collectives.bench import data, ep_shapes
from collectives.bench.ep_shapes import EpSpec
from collectives.bench.formats import render
from collectives.bench.shapes import (
    BLOCKWISE,
    COLLECTIVES,
    DTYPES,
    CollSample,
    CollSpec,
    bus_factor,
    check,
    count_of,
    counts_of,
    lifted,
    most_moved,
    operation,
    real_count,
    size_of,
)
from emulator.errors import UsageError
from launch.cli import main


# ---- nccl-tests' arithmetic
def test_bus_factors_are_nccl_tests():
    """doc/PERFORMANCE.md. (Mutation: alltoall with factor 1.)"""
    factors = {coll: bus_factor(coll, 8) for coll in COLLECTIVES}
    assert factors == {
        "all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "all_to_all": 0.875,
        "all_gather_v": 0.875, "all_to_all_v": 0.875,
        "gather": 0.875, "scatter": 0.875, "broadcast": 1.0, "reduce": 1.0, "barrier": 1.0,
    }  # fmt: skip


def test_counts_and_sizes():
    assert (count_of("all_reduce", 1024, 4, 8), size_of("all_reduce", 256, 4, 8)) == (256, 1024)
    assert (count_of("all_gather", 1000, 4, 3), size_of("all_gather", 83, 4, 3)) == (83, 996)
    assert count_of("all_to_all", 8, 4, 384) == 1 and count_of("barrier", 1, 4, 8) == 0
    spec = CollSpec("all_to_all", None, (0, 8, 16, 1536, 3072))
    assert counts_of(spec, 384) == [0, 1, 2] and lifted(spec, 384) == [(8, 1536), (16, 1536)]
    assert lifted(CollSpec("barrier", None, (1,)), 384) == []


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 11])
def test_unequal_blocks_are_in_all_as_much_as_equal_ones(ranks):
    """Every row and column of the table. (Mutation: `even` is always (0,).)"""
    table = np.array([data.around(9, r, ranks) for r in range(ranks)])
    assert (table.sum(axis=0) == 9 * ranks).all() and (table.sum(axis=1) == 9 * ranks).all()
    assert ranks < 3 or len(set(table[0].tolist())) == 3


def test_how_much_is_really_moved():
    """All up to --real of all ranks together, then scaled down. (Mutation: --real of each rank.)"""
    spec = CollSpec("all_reduce", None, (1 << 20, 1 << 24))
    assert [real_count(spec, n, 8) for n in (1 << 18, 1 << 22)] == [1 << 18, 1 << 22]
    assert real_count(spec, 1 << 22, 384) == 2**28 // 4 // 384 and most_moved(spec, 384) <= 1 << 28
    blocks = spec._replace(coll="all_to_all", dtype="int8", real_bytes=6400)
    assert (real_count(blocks, 10**6, 8), real_count(blocks, 7, 8), most_moved(blocks, 8)) == (100, 7, 6400)
    assert real_count(blocks._replace(real_bytes=1), 10**6, 8) == 1


def test_names_as_people_write_them():
    assert [operation(x) for x in ("AllReduce", "alltoall", "reduce-scatter")] == [
        "all_reduce",
        "all_to_all",
        "reduce_scatter",
    ]
    with pytest.raises(UsageError, match="did you mean 'all_gather'"):
        operation("all_gathe")


@pytest.mark.parametrize("change", [{"root": 8}, {"iterations": 0}, {"redop": "max"}, {"real_bytes": 0}])
def test_what_cannot_be_measured_is_refused(change):
    with pytest.raises(UsageError):
        check(CollSpec("broadcast", None, (1024,))._replace(**change), 8)


# ---- contents
def by_hand(coll, sends, count, r, root, fold):
    """What rank r receives, made of everybody's send buffers."""
    if coll in ("reduce", "gather") and r != root:
        return []
    if coll in ("all_reduce", "reduce"):
        return fold.reduce(sends)
    if coll in ("all_gather", "all_gather_v", "gather"):
        return np.concatenate(sends)
    if coll == "all_to_all_v":
        cuts = [np.cumsum(data.around(count, s, len(sends))) for s in range(len(sends))]
        return np.concatenate([np.split(sent, cut)[r] for sent, cut in zip(sends, cuts, strict=True)])
    if coll == "broadcast":
        return sends[root]
    mine = [s.reshape(-1, count)[r] for s in sends if s.size > count * r]
    return {"reduce_scatter": fold.reduce, "all_to_all": np.concatenate}.get(coll, lambda x: x[root])(mine)


@pytest.mark.parametrize("ranks", [1, 3, 8, 11])
@pytest.mark.parametrize("redop", ["sum", "prod", "max", "min"])
def test_expected_contents_against_adding_up(ranks, redop):
    """The closed forms are what numpy makes of all send buffers; every value fits in int8."""
    count, fold = 9, {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[redop]
    for coll in COLLECTIVES[:-1]:
        sends = [data.sent(coll, r, count, ranks, redop) for r in range(ranks)]
        root = ranks - 1
        for r in range(ranks):
            got = data.wanted(coll, r, count, ranks, redop, root)
            assert np.array_equal(got, by_hand(coll, sends, count, r, root, fold)), (coll, r)
            assert got.size == 0 or got.max() <= 127


@pytest.mark.parametrize("dtype", DTYPES)
def test_contents_of_a_type_are_those_numbers(dtype):
    """One period in its own type, repeated, is the formula at every index. (Mutation: a period of 7.)"""
    for redop, start in (("sum", 0), ("prod", 5), ("max", 1000)):
        i = np.arange(start, start + 500)
        by_formula = (
            np.where((2 + i) % 11 == 0, 2, 1) if redop == "prod" else ((2 + i) % 11 < 8) * (1 + i % 7)
        )
        got = data.values(2, start, 500, 11, redop, dtype)
        assert np.array_equal(got, data.encode(by_formula, dtype)) and got.dtype == data.numpy_dtype(dtype)


def test_buffers_in_place_lie_as_those_of_nccl_tests():
    """The block of rank 2 of 4 is in its place in the whole. (Mutation: block 0.)"""
    given = np.arange(6)
    for coll in ("all_gather", "gather"):
        send, recv = data.buffers(coll, 2, given, 24, 4)
        assert np.shares_memory(send, recv[12:18]) and (send.size, recv.size) == (6, 24)
    for coll in ("reduce_scatter", "scatter"):
        send, recv = data.buffers(coll, 2, np.arange(24), 6, 4)
        assert np.shares_memory(recv, send[12:18]) and (send.size, recv.size) == (24, 6)
    for coll in ("all_reduce", "reduce", "broadcast", "all_to_all"):
        send, recv = data.buffers(coll, 2, given, 6, 4)
        assert np.shares_memory(send, recv) and send.size == recv.size == 6


# ---- formats
SPEC = CollSpec("all_to_all", None, (1024, 1 << 20))
ROWS = [
    CollSample(1024, 32, 8, "full-mesh", 2.0, 1.0, 4.0, 0, 1024, 5.0, 2),
    CollSample(1 << 20, 32768, 8, "ring", 9, 8, 20000, 3, 4096, 400.0, 0),
]


def test_nccl_columns():
    """size count type redop root, then time algbw busbw #wrong out of place and in place, as parsers of
    nccl-tests split them. (Mutation: the bandwidth in place of the time out of place.)"""
    text = render(SPEC, ROWS, "nccl")
    rows = [line.split() for line in text.splitlines() if line[:1] == " "]
    head = ["1048576", "32768", "float", "none", "-1", "20000", "0.05", "0.05", "3"]
    assert rows == [
        ["1024", "32", "float", "none", "-1", "4.00", "0.26", "0.22", "0", "5.00", "0.20", "0.18", "2"],
        [*head, "400.0", "2.62", "2.29", "0"],
    ]
    titles = next(line for line in text.splitlines() if "count" in line).split()[1:]
    assert titles == ["size", "count", "type", "redop", "root"] + ["time", "algbw", "busbw", "#wrong"] * 2
    assert "# Out of bounds values : 5 FAILED" in text
    average = sum((0.224, 0.1792, 0.045875, 2.29376)) / 4
    assert float(text.split("Avg bus bandwidth    : ")[1].split()[0]) == pytest.approx(average, rel=1e-4)


def test_the_header_says_what_was_moved():
    assert "# moved and checked: all bytes of every size" in render(SPEC, ROWS[:1], "nccl")
    text = render(SPEC, ROWS, "nccl")
    assert "all bytes of sizes up to 1024; 4096 bytes of sizes from 1048576 on" in text
    barrier = render(CollSpec("barrier", None, (1,)), [CollSample(0, 0, 8, "x", 1, 1, 1, 0)], "nccl")
    assert barrier.count("N/A") == 4 and "# Out of bounds values : 0 OK" in barrier


def test_osu_and_json():
    lines = render(SPEC, ROWS, "osu").splitlines()
    assert lines[0] == "# OSU MPI Alltoall Latency Test" and lines[2].split() == [
        "128",
        "2.00",
        "1.00",
        "4.00",
        "5",
    ]
    first = json.loads(render(SPEC, ROWS, "json"))[0]
    assert (first["time_us"], first["algbw_GBps"], first["busbw_GBps"]) == (4.0, 0.256, 0.224)
    assert first["in_place"] == {"time_us": 5.0, "algbw_GBps": 0.2048, "busbw_GBps": 0.1792, "wrong": 2}
    assert first["moved_bytes"] == 1024


# ---- expert parallelism
EP = EpSpec("xccl", "xccl", 16, 8, 2, iterations=2)


def test_percentiles_and_tokens():
    """Against numbers worked out by hand: 1 to 1000 us, so p999 lies between the last two."""
    times = np.zeros((2, 500, 3), np.int64)
    times[:, :, 2] = (np.arange(1000) + 1).reshape(2, 500) * 10**6
    told = ep_shapes.result(EP._replace(iterations=500), "cloudmatrix384", times, 0, np.array([1, 3]))
    latency = told["metrics"]["end_to_end_latency_ms"]
    assert [round(latency[x], 6) for x in ("p50", "p90", "p99", "p999", "mean")] == [
        0.5005, 0.9001, 0.99001, 0.999001, 0.5005,
    ]  # fmt: skip
    assert told["metrics"]["tokens_per_second"] == pytest.approx(16 / 500.5e-6)
    assert told["metrics"]["expert_load"]["imbalance_ratio"] == 1.5


def test_routings_differ_in_load():
    imbalance = {}
    for kind in ("uniform", "k-hot", "zipf"):
        spec = EP._replace(routing=kind, tokens=256, hot=2, share=0.9)
        load = ep_shapes.loads(spec, 4)
        assert load.sum() == 4 * 256 * 2
        imbalance[kind] = ep_shapes.expert_load(load)["imbalance_ratio"]
    assert imbalance["uniform"] < 1.3 < imbalance["zipf"] < imbalance["k-hot"]


@pytest.mark.parametrize(
    "change",
    [{"scheme": "nope"}, {"routing": "hot"}, {"library": "x"}, {"experts": 9}, {"topk": 17}, {"tokens": 0}],
)
def test_what_ep_cannot_measure_is_refused(change):
    with pytest.raises(UsageError):
        ep_shapes.check(EP._replace(**change), 4, "cloudmatrix384")


# ---- the command
@pytest.mark.parametrize(
    "words, says",
    [
        ("bench foo", "bench foo: choose one of lat, bw, rate, coll, ep"),
        ("bench coll --coll all_reduce --algo rng", "nearest: ring"),
        ("bench coll --coll all_reduce --format xml", "choose one of nccl, osu, json"),
        ("bench coll --coll all_reduce -n 2 --root 2", "ranks are 0 to 1"),
        ("bench ep -n 8 --experts 100", "nearest: 96"),
        ("bench ep -n 8 --experts 0", "nearest: 8"),
        ("bench ep -n 8 --topk 0", "choose 1 to 256"),
        ("bench ep -n 1000", "-n 1000: pod cloudmatrix384 has 768 dies"),
        ("bench coll --coll all_reduce -n 1000", "-n 1000: pod cloudmatrix384 has 768 dies"),
        ("bench coll --coll all_reduce -n 17 --set pod.nodes=1", "-n 17: pod cloudmatrix384 has 16 dies"),
        ("bench ep -n 8 --library deepep", "choose one of xccl, cann, deepep-ascend"),
        ("bench lat --op put --sizes x", "no size"),
    ],
)
def test_bad_input_is_one_line(words, says, capsys):
    assert main(words.split()) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


EVERY = """
import numpy as np
import emulator
from collectives import coll
from collectives.bench.coll import Bench
from collectives.bench.shapes import COLLECTIVES, DTYPES, REDUCING, CollSpec

device = emulator.init()
found, broken = [], []
for i, name in enumerate(COLLECTIVES):
    for dtype in list(DTYPES)[i % 3 :: 3]:
        for redop in ("sum", "min") if name in REDUCING else ("sum",):
            spec = CollSpec(name, None, (0, 600, 5000), dtype, redop, 1, 1, 0, 4000)
            for s in Bench(spec, device).run():
                wrong = s.wrong + s.in_place_wrong
                found.append((name, dtype, redop, s.size, wrong, s.most_us, s.in_place_us))
good = coll.all_gather

def bad(group, send, recv, **how):
    work = good(group, send, recv, **how)
    if group.rank == 2 and np.shares_memory(send, recv) == in_place:
        recv[-1] += 1
    return work

def idle(group, send, recv, **how):
    return good(group, send, recv.copy(), **how)

for function, in_place in ((bad, False), (bad, True), (idle, None)):
    coll.all_gather = function
    told = Bench(CollSpec("all_gather", None, (600,)), device).run()
    broken += [(s.wrong, s.in_place_wrong) for s in told]
report(found=found, broken=broken)
"""


@pytest.mark.multirank
def test_every_collective_brings_the_right_elements():
    """Out of place and in place; buffers above 4000 bytes in all are charged in full. (Mutations, in the
    program: a wrong element of either half counts, and all of a receive buffer that nothing reached; in place
    the ranks' own 50 elements are there.)"""
    told = run_ranks(3, EVERY).reports[0]
    assert len(told["found"]) > 40 and not [row for row in told["found"] if row[4]]
    assert {row[0] for row in told["found"]} == set(COLLECTIVES)
    assert all(DTYPES[row[1]] <= 8 and (row[5] > 0) for row in told["found"])
    assert all((row[6] is None) == (row[0] == "barrier") for row in told["found"])
    assert told["broken"] == [[1, 0], [0, 1], [450, 300]] and set(BLOCKWISE) < set(COLLECTIVES)


@pytest.mark.multirank
def test_both_commands_end_to_end(tmp_path, capfd):
    """The same run of a ring, as nccl-tests prints it and as JSON; expert parallelism with its fields."""
    out = tmp_path / "rows.json"
    words = ["bench", "coll", "--coll", "all-reduce", "--algo", "ring", "-n", "4", "--iterations", "1"]
    words += ["--sizes", "3,4K,64K"]
    assert main([*words, "--json", str(out)]) == 0
    rows, (text, notes) = json.loads(out.read_text()), capfd.readouterr()
    assert [row["algorithm"] for row in rows] == ["ring"] * 3 and f"{rows[2]['time_us']:7.2f}" in text
    assert "--sizes 3: less than an element of each rank, measured as 4 bytes" in notes
    assert main(f"bench ep -n 4 --iterations 2 --tokens 16 --routing k-hot --json {out}".split()) == 0
    facts = json.loads(out.read_text())
    assert facts["wrong_tokens"] == 0 and facts["routing_mode"] == "k_hot" and facts["hot_experts"] == 32
    dispatch = facts["metrics"]["dispatch_latency_ms"]
    assert 0 < dispatch["p50"] <= dispatch["p99"] <= dispatch["p999"] < 1
    assert "wrong tokens 0" in capfd.readouterr().out
