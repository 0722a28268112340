"""Exact times against closed forms written out here, in picoseconds: the definition of the fabric's cost."""

import numpy as np
import pytest
from harness import KINDS, Shared, fork_ranks

from emulator.engine import ADD, GE, EngineConfig

PUT = (70, 1_000, 2_000, 4_000)
REQUEST = (11, 300, 700, 1_500)
RESPONSE = (13, 400, 800, 1_600)
ACK = (17, 150, 350, 750)
WRITE = (4 * 10**12, 3 * 10**11, 2 * 10**11, 7 * 10**11)
READ = (2 * 10**12, 10**11, 3 * 10**11, 9 * 10**11)
PEER = {"self": 0, "chip": 1, "node": 2, "pod": 5}

pytestmark = [pytest.mark.multirank, pytest.mark.parametrize("kind", KINDS)]


def ps(nbytes, bandwidth):
    return -(-nbytes * 10**12 // bandwidth)


def machine(n, **extra):
    return EngineConfig(
        num_ranks=n,
        dies_per_chip=2,
        dies_per_node=4,
        put_latency_ps=PUT,
        request_latency_ps=REQUEST,
        response_latency_ps=RESPONSE,
        ack_latency_ps=ACK,
        write_bytes_per_s=WRITE,
        read_bytes_per_s=READ,
        wall_deadline_s=20,
        **extra,
    )


def times(n, kind, body, **extra):
    """body(engine) returns one time per rank."""
    shared = Shared(machine(n, **extra), kind)

    def noted(engine, row):
        row[0] = body(engine)

    assert fork_ranks(shared, noted) == [0] * n
    return shared.table[:, 0].tolist()


@pytest.mark.parametrize("where", PEER)
@pytest.mark.parametrize("nbytes", [0, 1, 4096, 1 << 24, 1 << 45])
def test_one_put(kind, where, nbytes):
    """Delivered at start + latency + bytes/bandwidth, acknowledged an ack latency later."""
    k, dst = list(PEER).index(where), PEER[where]

    def body(engine):
        if engine.rank == 0:
            engine.put(dst, nbytes, word=0, op=ADD, value=1)
            engine.quiet()
            quiet = engine.now_ps
            if dst == 0:
                engine.wait([(0, GE, 1)])
            return quiet
        if engine.rank == dst:
            engine.wait([(0, GE, 1)])
        return engine.now_ps

    got = times(6, kind, body)
    delivered = 1 + PUT[k] + ps(nbytes, WRITE[k])  # a call costs 1 ps
    assert got[0] == max(2, delivered + ACK[k])
    if dst:
        assert got[dst] == delivered


@pytest.mark.parametrize("where", PEER)
@pytest.mark.parametrize("nbytes", [0, 1, 4096, 1 << 45])
def test_one_get(kind, where, nbytes):
    """In after the request latency, the response latency and bytes/bandwidth; the target takes no part."""
    k, src = list(PEER).index(where), PEER[where]

    def body(engine):
        if engine.rank == 0:
            engine.wait_get(engine.get(src, nbytes))
        return engine.now_ps

    assert times(6, kind, body)[0] == 1 + REQUEST[k] + RESPONSE[k] + ps(nbytes, READ[k])


def test_one_atomic(kind):
    def body(engine):
        return 0 if engine.rank else engine.atomic(5, 3, 0, 4) + engine.now_ps

    assert times(6, kind, body)[0] == 1 + REQUEST[3] + RESPONSE[3]


def test_incast(kind):
    """k puts to one target: all arrive at once, the ingress serves them one after the other."""

    def body(engine):
        if engine.rank >= 4:
            engine.put(0, 4096, word=0, op=ADD, value=1)
            return 0
        if engine.rank == 0:
            engine.wait([(0, GE, 4)])
        return engine.now_ps

    assert times(8, kind, body)[0] == 1 + PUT[3] + 4 * ps(4096, WRITE[3])


def test_incast_of_unequal_sizes_in_key_order(kind):
    """Of messages that arrive at one instant the lower rank's is served first."""
    sizes = {4: 5000, 5: 100, 6: 7, 7: 4096}

    def body(engine):
        if engine.rank >= 4:
            engine.put(0, sizes[engine.rank], word=engine.rank, op=ADD, value=1)
            engine.quiet()
        return engine.now_ps

    got = times(8, kind, body)
    end = 1 + PUT[3]
    for rank in range(4, 8):
        end += ps(sizes[rank], WRITE[3])
        assert got[rank] == end + ACK[3]


def test_fan_out(kind):
    """k puts of one rank share its egress; each is cut through to its own target."""

    def body(engine):
        if engine.rank == 0:
            for dst in (4, 5, 6, 7):
                engine.put(dst, 4096, word=0, op=ADD, value=1)
        elif engine.rank >= 4:
            engine.wait([(0, GE, 1)])
        return engine.now_ps

    got = times(8, kind, body)
    ser = ps(4096, WRITE[3])
    for i, dst in enumerate((4, 5, 6, 7)):
        assert (
            got[dst] == 1 + i * ser + PUT[3] + ser
        )  # the egress is the bottleneck, the posts cost 1 ps each


def test_put_with_an_opposing_get_on_one_egress(kind):
    """Rank 0's put and the response to rank 4's get share rank 0's egress, in order of arrival."""

    def body(engine):
        if engine.rank == 0:
            engine.compute(REQUEST[3])  # the request arrives 1 ps before the put is posted
            engine.compute(0)
            engine.put(5, 9000, word=0, op=ADD, value=1)
        elif engine.rank == 4:
            engine.wait_get(engine.get(0, 4096))
        elif engine.rank == 5:
            engine.wait([(0, GE, 1)])
        return engine.now_ps

    got = times(6, kind, body)
    request_in = 1 + REQUEST[3]
    response_out = request_in + ps(4096, READ[3])
    assert got[4] == response_out + RESPONSE[3]
    assert got[5] == response_out + PUT[3] + ps(9000, WRITE[3])


def test_a_put_keeps_egress_and_ingress_apart(kind):
    """Two ranks put to each other: nothing is shared, both take as long as alone."""

    def body(engine):
        if engine.rank in (0, 4):
            engine.put(4 - engine.rank, 4096, word=0, op=ADD, value=1)
            engine.wait([(0, GE, 1)])
        return engine.now_ps

    got = times(6, kind, body)
    assert got[0] == got[4] == 1 + PUT[3] + ps(4096, WRITE[3])


def test_barrier(kind):
    """An exchange without rows: the last rank to come decides, plus its row's way to me."""

    def body(engine):
        engine.compute(1_000_000 * (engine.rank + 1))
        result = engine.exchange(0, None, 0, 32, pull_start_ps=5)
        return result.records_ps

    got = times(3, kind, body)
    # rank 2 comes last, at 3 us; it sends to 0, then to 1 (both another chip of its node), then to itself
    start, ser = 3_000_000 + 2, ps(32, WRITE[2])
    assert got[0] == start + PUT[2] + ser
    assert got[1] == start + ser + PUT[2] + ser
    assert got[2] == start + ps(32, WRITE[0]) + PUT[0]


def test_uniform_exchange(kind):
    """Two ranks of a chip, one row each way: records, then both pulls at once."""

    def body(engine):
        counts = np.zeros(2, dtype=np.int32)
        counts[1 - engine.rank] = 3
        result = engine.exchange(0, counts, 7680, 32, pull_start_ps=2_000, record_ps=10)
        assert result.counts.tolist() == [3 * (engine.rank == 1), 3 * (engine.rank == 0)]
        assert result.time_ps == engine.now_ps
        return result.time_ps - result.records_ps

    records = 2_000 + REQUEST[1] + RESPONSE[1] + ps(3 * 7680, READ[1])
    assert times(2, kind, body) == [records, records]


def test_one_hot_exchange(kind):
    """Every rank holds rows for rank 0 only: its ingress serves them all, the others end with the records."""

    def body(engine):
        counts = np.array([4, 0, 0, 0, 0, 0, 0, 0], dtype=np.int32)
        result = engine.exchange(0, counts, 100_000, 0, pull_start_ps=50, record_ps=0)
        if engine.rank:
            assert result.time_ps == result.records_ps + 50 and not result.counts.any()
            return 0
        return result.time_ps - result.records_ps

    got = times(8, kind, body)[0]
    # requests leave together; chip response first (700 ps away), then node (1500), then pod (3100)
    first = 50 + REQUEST[1] + RESPONSE[1]
    assert got == first + ps(400_000, READ[1]) + 2 * ps(400_000, READ[2]) + 4 * ps(400_000, READ[3])


def test_chain_sleeps_through(kind):
    """An idle rank's chain ends exactly where single exchanges would."""
    steps = 5

    def by_hand(engine):
        engine.exchange(0, None, 0, 32, 10)
        for _ in range(steps):
            engine.compute(999, publish=False)  # chain: call price + compute; here: two call prices
            engine.exchange(0, None, 0, 32, 10)
        return engine.now_ps

    def asleep(engine):
        if engine.rank < 2:
            return by_hand(engine)
        from emulator.engine import ChainStep

        result = engine.exchange(0, None, 0, 32, 10, chain=[ChainStep(0, 1000, 32, 10)] * steps)
        assert result.index == steps
        assert engine.statistics().wake_ups[engine.rank] == 1
        return engine.now_ps

    assert times(4, kind, by_hand) == times(4, kind, asleep)


def test_chain_wakes_for_rows(kind):
    """The exchange of a chain that brings rows wakes its rank, with those rows."""
    from emulator.engine import ChainStep

    def body(engine):
        if engine.rank == 3:
            result = engine.exchange(0, None, 0, 32, 10, chain=[ChainStep(0, 0, 32, 10)] * 4)
            assert result.index == 2 and result.counts.tolist() == [0, 7, 0, 0]
            assert result.offsets.tolist() == [0, 40, 0, 0] and result.tags.tolist() == [0, 9, 0, 0]
            for _ in range(2):
                engine.exchange(0, None, 0, 32, 10)
            return result.time_ps
        for i in range(5):
            rows = i == 2 and engine.rank == 1
            counts = np.array([0, 0, 0, 7], dtype=np.int32) if rows else None
            where = np.array([10, 20, 30, 40], dtype=np.int32) if rows else None
            engine.exchange(0, counts, 64, 32, 10, offsets=where, tag=9 if rows else 0)
        return 0

    assert times(4, kind, body)[3] > 0
