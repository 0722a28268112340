"""Link classes follow the fill order of the pod, and the engine gets the profile's numbers."""

import numpy as np
import pytest

from emulator.engine.api import CHIP, NODE, POD, SELF
from emulator.errors import UsageError
from emulator.profile import load_profile
from emulator.topology import LinkClass, Topology, engine_config


def test_link_classes_are_the_engines() -> None:
    assert (LinkClass.SELF, LinkClass.CHIP, LinkClass.NODE, LinkClass.POD) == (SELF, CHIP, NODE, POD)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (0, 0, LinkClass.SELF),
        (0, 1, LinkClass.CHIP),
        (1, 2, LinkClass.NODE),
        (0, 15, LinkClass.NODE),
        (15, 16, LinkClass.POD),
        (0, 767, LinkClass.POD),
        (766, 767, LinkClass.CHIP),
    ],
)
def test_class_of_a_pair(a: int, b: int, expected: LinkClass) -> None:
    topology = Topology.from_profile(load_profile(), 768)
    assert topology.link_class(a, b) is expected
    assert topology.link_class(b, a) is expected


@pytest.mark.parametrize("num_ranks", [1, 2, 7, 16, 40])
def test_vector_equals_pairs(num_ranks: int) -> None:
    topology = Topology.from_profile(load_profile(), num_ranks)
    for rank in range(num_ranks):
        classes = topology.classes(rank)
        assert classes.dtype == np.uint8
        assert classes.tolist() == [topology.link_class(rank, peer) for peer in range(num_ranks)]


def test_shape_follows_the_profile() -> None:
    small = load_profile(overrides={"pod.nodes": 2, "pod.chips_per_node": 2, "pod.dies_per_chip": 4})
    topology = Topology.from_profile(small, 16)
    assert topology.num_dies == 16
    assert topology.classes(0).tolist() == [0, 1, 1, 1, 2, 2, 2, 2, *[3] * 8]


@pytest.mark.parametrize(("num_ranks", "message"), [(769, "the pod has 768 dies"), (0, "at least 1 rank")])
def test_rank_counts(num_ranks: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Topology.from_profile(load_profile(), num_ranks)


def test_engine_configuration() -> None:
    config = engine_config(load_profile(), 32, channels=5, lookahead=False)
    assert (config.num_ranks, config.dies_per_chip, config.dies_per_node) == (32, 2, 16)
    assert config.put_latency_ps == (100_000, 200_000, 1_200_000, 2_000_000)
    assert config.ack_latency_ps == (50_000, 100_000, 600_000, 1_000_000)
    assert config.read_bytes_per_s[1:] == (210 * 10**9, 167 * 10**9, 164 * 10**9)
    assert config.write_bytes_per_s[1:] == (210 * 10**9, 138 * 10**9, 135 * 10**9)
    assert (config.call_price_ps, config.poll_price_ps) == (5_000, 100_000)
    assert (config.channels, config.lookahead) == (5, False)


@pytest.mark.parametrize("share", [0, 0.25, 0.3333, 1])
def test_request_and_response_make_up_the_published_latency(share: float) -> None:
    config = engine_config(load_profile(overrides={"ub.request_share": share}), 2)
    for put, request, response in zip(
        config.put_latency_ps, config.request_latency_ps, config.response_latency_ps, strict=True
    ):
        assert request + response == put
        assert request == round(put * share)


def test_a_call_always_costs_at_least_a_picosecond() -> None:
    config = engine_config(load_profile(overrides={"engine.call_price_ns": 0.001}), 2)
    assert config.call_price_ps == 1
