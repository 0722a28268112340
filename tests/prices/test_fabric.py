"""Shapes of operations: which numbers of the profile go where, and what is refused."""

import pytest

from emulator.engine.api import SELF
from emulator.errors import UsageError
from emulator.fabric import Fabric, Plane, Shape, Unit
from emulator.planes import latencies_ps, plane_configs
from emulator.profile import load_profile
from emulator.topology import LinkClass, Topology, engine_config

CHIP, NODE, POD = LinkClass.CHIP, LinkClass.NODE, LinkClass.POD


def fabric(**overrides: float) -> Fabric:
    profile = load_profile(overrides={key.replace("__", "."): value for key, value in overrides.items()})
    return Fabric(profile, Topology.from_profile(profile, 32))


def test_a_put_by_cores_is_a_plain_put() -> None:
    assert fabric().put(NODE, 1 << 20) == Shape()
    assert fabric().get(POD, 8, "mte", 24) == Shape()


def test_few_cores_leave_a_tail() -> None:
    shape = fabric().put(NODE, 66_000, "mte", 1)
    assert shape == Shape(tail_ps=-(-66_000 * 1000 // 36) - -(-66_000 * 1000 // 138))


def test_dma() -> None:
    small, large = (fabric().put(NODE, n, "dma") for n in (0, 138 * 10**5))
    assert small == Shape(start_ps=10_200_000 + 2 * 1_200_000, unit=Unit.DMA, unit_ps=3_050_000)
    assert large == small._replace(unit_ps=1_200_000 + 100_000_000)
    chip = fabric().put(CHIP, 188 * 210 * 1000, "dma")
    assert chip.unit_ps == 200_000 + 210 * 10**6 and chip.tail_ps == (210 - 188) * 10**6


@pytest.mark.parametrize(
    ("nbytes", "block", "sizes"), [(0, 8, []), (16, 8, [8, 8]), (17, 8, [8, 8, 1]), (3, 8, [3])]
)
def test_blocks(nbytes: int, block: int, sizes: list[int]) -> None:
    pieces = fabric().blocks(NODE, nbytes, block)
    assert [size for size, _ in pieces] == sizes
    assert all(shape == fabric().put(NODE, size, "dma") for size, shape in pieces)


def test_work_requests() -> None:
    f = fabric()
    write, send, read, atomic = (f.verbs(op, 2, True) for op in ("write", "send", "read", "atomic"))
    assert write == Shape(0, Unit.NIC, 100_000, 330_000, 20_000, Plane.RDMA)
    assert send == write._replace(tail_ps=350_000) and read == write
    assert atomic == write._replace(tail_ps=430_000)
    assert f.verbs("write", 2, False).start_ps == 350_000 + 330_000
    assert f.verbs("read", 2, False).start_ps == 0
    assert f.verbs("write", 1 << 20, False).unit_ps == (1 << 20) * 1000 // 20 == 52_428_800


def test_urma_uses_the_ub_plane() -> None:
    shape = fabric().urma("send", 2, NODE)
    assert (shape.plane, shape.unit) == (Plane.UB, Unit.URMA)
    assert (shape.start_ps, shape.tail_ps, shape.done_ps) == (950_000, 620_000, 20_000)


@pytest.mark.parametrize("over", ["ub", "rdma", "vpc"])
@pytest.mark.parametrize("nbytes", [0, 8192, 8193])
def test_messages_change_their_way_at_the_eager_limit(over: str, nbytes: int) -> None:
    message = fabric().message(NODE, nbytes, over)
    eager = nbytes <= 8192
    assert message.eager is eager
    assert message.envelope_bytes == 64 + (nbytes if eager else 0)
    assert message.pull_bytes == (0 if eager else nbytes)
    assert message.copy_ps == (-(-nbytes * 1000 // 672) if eager else 0)
    assert message.envelope.tail_ps >= 50_000
    assert message.envelope.plane == Plane[over.upper()]
    assert not fabric().message(NODE, 1, over, synchronous=True).eager


def test_planes_beside_ub() -> None:
    rdma, vpc = plane_configs(load_profile())
    assert rdma.put_latency_ps == (800_000, 1_040_000, 1_040_000, 1_520_000)
    assert rdma.request_latency_ps == tuple(ps + 330_000 for ps in rdma.put_latency_ps)
    assert rdma.write_bytes_per_s == (20 * 10**9,) * 4
    assert vpc.put_latency_ps == (15_000_000,) * 4
    config = engine_config(load_profile(), 2)
    assert config.planes == (rdma, vpc)
    assert latencies_ps(config, Topology.from_profile(load_profile(), 2).classes(0)).tolist() == [
        [100_000, 200_000], [800_000, 1_040_000], [15_000_000, 15_000_000],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f.put(NODE, 8, "dms"), "choose mte or dma; did you mean 'dma'"),
        (lambda f: f.put(NODE, 8, "dma", 3), "the dma engine takes none"),
        (lambda f: f.put(NODE, 8, "mte", 0), "1 to 48 AIV cores"),
        (lambda f: f.get(NODE, 8, "mte", 49), "1 to 48 AIV cores"),
        (lambda f: f.verbs("wirte", 8, True), "did you mean 'write'"),
        (lambda f: f.urma("put", 8, NODE), "work request 'put'"),
        (lambda f: f.message(NODE, 8, "ubx"), "choose ub, rdma or vpc"),
        (lambda f: f.blocks(NODE, 8, 0), "at least 1 byte"),
    ],
)
def test_refusals(call, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(fabric())


def test_the_own_die_has_no_link_but_its_memory() -> None:
    assert fabric().put(SELF, 672, "dma").tail_ps == -(-672 * 1000 // 188) - 1000
