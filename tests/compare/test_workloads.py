"""Workloads are complete in themselves: what is sent is expected, and a run in one process is as known."""

from __future__ import annotations

import numpy as np
import pytest

from collectives.compare.workloads import WORKLOADS, Setting, Workload, make
from emulator.errors import UsageError


def run_alone(name: str, setting: Setting) -> list[Workload]:
    """All ranks in one process, messages handed over directly; checks every lane on the way."""
    ranks = [make(name, setting, rank) for rank in range(setting.num_ranks)]
    for step in range(ranks[0].rounds):
        mail = {}
        for source, rank in enumerate(ranks):
            for send in rank.sends(step):
                assert send.data.size <= rank.capacity and send.data.dtype == np.uint8
                assert (source, send.slot) in ranks[0].inbound(send.target)
                mail[send.target, source, send.slot] = send.data.copy()
        for me, rank in enumerate(ranks):
            lanes = rank.expected(step)
            assert set(lanes) <= set(rank.inbound(me)) and len(set(lanes)) == len(lanes)
            rank.take(step, [mail.pop((me, lane.source, lane.slot)) for lane in lanes])
        assert not mail, f"sent and not expected: {list(mail)}"
    return ranks


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("num_ranks", [2, 4, 6, 16])
def test_everything_sent_is_expected(name: str, num_ranks: int) -> None:
    ranks = run_alone(name, Setting(num_ranks, 64, 3, seed=5))
    again = run_alone(name, Setting(num_ranks, 64, 3, seed=5))
    other = run_alone(name, Setting(num_ranks, 64, 3, seed=6))
    assert [r.result() for r in ranks] == [r.result() for r in again] != [r.result() for r in other]


def test_pingpong_adds_one_a_throw() -> None:
    first = make("pingpong", Setting(3, 8, 4), 0)
    start = np.frombuffer(first.result(), np.uint8)
    ranks = run_alone("pingpong", Setting(3, 8, 4))
    assert np.array_equal(np.frombuffer(ranks[0].result(), np.uint8), start + np.uint8(8))
    assert ranks[1].result() == b""


def test_halo_keeps_the_mean() -> None:
    before = np.mean(
        [np.frombuffer(make("halo", Setting(6, 64, 0), r).result(), np.float32) for r in range(6)]
    )
    after = [np.frombuffer(r.result(), np.float32) for r in run_alone("halo", Setting(6, 64, 20))]
    assert np.mean(after) == pytest.approx(before, rel=1e-5) and np.std(after) < 0.1


def test_dispatch_sends_every_target_one_message_and_every_token_eight_rows() -> None:
    sends = make("dispatch", Setting(16, 32, 5), 3).sends(0)
    assert [s.target for s in sends] == list(range(16)) and sum(s.data.size for s in sends) == 5 * 8 * 32
    assert any(s.data.size == 0 for s in make("dispatch", Setting(64, 32, 1), 3).sends(0))


def test_settings_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="even number of ranks, got 3"):
        make("kv-transfer", Setting(3, 8, 1), 0)
    with pytest.raises(UsageError, match="multiple of 4"):
        make("halo", Setting(2, 6, 1), 0)
    with pytest.raises(UsageError, match="at least 2"):
        make("pingpong", Setting(1, 8, 1), 0)
