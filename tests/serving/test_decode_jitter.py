"""Jitter: a pure function of seed, rank, step and layer, with the sizes its file gives."""

import math

import numpy as np
import pytest

from emulator.profile import load_profile
from serving.decode.jitter import ATTENTION, EXPERTS, Jitter
from serving.pricing import PricedModel

US = 10**6
FULL = Jitter(3, 120 * US, 0.01, 0.01, 0.001, 250 * US, 100 * US)


def delays(jitter: Jitter, block: int, price_ps: int, count: int = 20_000) -> np.ndarray:
    return np.array([jitter.block_delay_ps(price_ps, i % 288, i // 288, i % 59, block) for i in range(count)])


def test_the_same_place_has_the_same_jitter_on_every_machine() -> None:
    """Golden values: another value here changes every measured figure."""
    assert FULL.launch_delay_ps(0, 0) == GOLDEN[0]
    assert [FULL.block_delay_ps(680 * US, 17, 2, 40, block) for block in (ATTENTION, EXPERTS)] == GOLDEN[1]
    assert FULL.block_delay_ps(680 * US, 17, 2, 40, ATTENTION) == GOLDEN[1][0]  # asked again


GOLDEN = (176_396_437, [10_794_610, -4_158_627])


@pytest.mark.parametrize("changed", [(8, 2, 40, 1), (17, 3, 40, 1), (17, 2, 41, 1), (17, 2, 40, 2)])
def test_another_rank_step_layer_block_or_seed_has_another(changed: tuple[int, int, int, int]) -> None:
    here = FULL.block_delay_ps(680 * US, 17, 2, 40, 1)
    assert FULL.block_delay_ps(680 * US, *changed) != here
    assert Jitter(4, attention_noise=0.01).block_delay_ps(680 * US, 17, 2, 40, 1) != here


def test_none_is_nothing() -> None:
    assert Jitter().launch_delay_ps(5, 5) == 0
    assert not delays(Jitter(seed=9), ATTENTION, 680 * US, 500).any()


def test_launch_is_exponential() -> None:
    found = np.array([FULL.launch_delay_ps(rank, step) for step in range(70) for rank in range(288)])
    assert found.mean() == pytest.approx(120 * US, rel=0.03)
    assert found.std() == pytest.approx(120 * US, rel=0.05)
    slowest = found.reshape(70, 288).max(axis=1).mean()
    assert slowest == pytest.approx(120 * US * (math.log(288) + 0.577), rel=0.1)


def test_noise_is_relative_and_adds_nothing_on_average() -> None:
    noisy = Jitter(1, attention_noise=0.01)
    small, large = delays(noisy, ATTENTION, 100 * US), delays(noisy, ATTENTION, 1000 * US)
    assert np.abs(large - 10 * small).max() <= 10
    assert large.std() == pytest.approx(10 * US, rel=0.03)
    assert abs(large.mean()) < 4 * large.std() / math.sqrt(len(large))
    assert not delays(noisy, EXPERTS, 100 * US, 500).any()
    assert delays(Jitter(1, expert_noise=0.01), EXPERTS, 1000 * US).std() == pytest.approx(10 * US, rel=0.03)


def test_stalls_are_as_frequent_and_as_long_as_said() -> None:
    rare = Jitter(2, stall_probability=0.01, stall_floor_ps=250 * US, stall_mean_ps=100 * US)
    found = delays(rare, EXPERTS, 0, 100_000)
    stalls = found[found > 0]
    assert len(stalls) == pytest.approx(1000, rel=0.15)
    assert stalls.min() >= 250 * US
    assert stalls.mean() == pytest.approx(350 * US, rel=0.05)


def test_a_block_never_takes_less_than_no_time() -> None:
    wild = Jitter(1, attention_noise=0.25)
    assert (delays(wild, ATTENTION, 3, 5000) >= -3).all()


def test_the_file_gives_every_size() -> None:
    entries = PricedModel.load("deepseek-r1", load_profile(), {"jitter.expert_noise": "0.02"}).entries
    jitter = Jitter.from_entries(entries, 7)
    assert (jitter.seed, jitter.expert_noise) == (7, 0.02)
    assert jitter.launch_ps == entries.ps("jitter.launch_us") > 0
    assert 0 < jitter.stall_probability < 0.01
    assert jitter.stall_floor_ps > 0 < jitter.stall_mean_ps
