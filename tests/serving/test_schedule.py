"""Schedules compared, and what a fixed scheduler refuses, without any rank."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import UsageError
from serving.fixed import FixedScheduler
from serving.request import Request, RequestSpec
from serving.schedule import Schedule, compare, describe, first_difference
from serving.scheduler import SchedulerLimits

ROWS = [[0, 0, 0, 2, 100], [0, 1, 1, 32, 2000], [1, 0, 0, 1, 1], [1, 0, 2, 3, 130]]
MACHINE = {
    "ub.read_intra_gb_per_s": (167, "GB/s"),
    "ub.latency_inter_us": (2.0, "us"),
    "a.share": (0.5, "ratio"),
}


def schedule(rows: list[list[int]] = ROWS, duration_ps: int = 10**12, **machine: float) -> Schedule:
    values = {
        key: (machine.get(key.partition(".")[2], value), unit) for key, (value, unit) in MACHINE.items()
    }
    return Schedule("s", {}, np.array([0, 1, 0], np.int32), np.array(rows, np.int32), values, "", duration_ps)


def changed(index: int, *row: int) -> Schedule:
    return schedule([*ROWS[:index], list(row), *ROWS[index + 1 :]])


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (schedule(), "none"),
        (
            changed(1, 0, 1, 1, 16, 1024),
            "step 0, rank 1: request 1: 32 tokens (2000 priced) here, "
            "request 1: 16 tokens (1024 priced) there",
        ),
        (
            changed(2, 1, 0, 2, 1, 1),
            "step 1, rank 0: request 0: 1 tokens (1 priced) here, request 2: 1 tokens (1 priced) there",
        ),
        (changed(3, 1, 1, 2, 3, 130), "step 1, rank 0: request 2: 3 tokens (130 priced) here, nothing there"),
        (schedule([]), "step 0, rank 0: request 0: 2 tokens (100 priced) here, nothing there"),
    ],
)
def test_first_difference(other: Schedule, text: str) -> None:
    assert describe(first_difference(schedule(), other)) == text


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (schedule(duration_ps=2 * 10**12, read_intra_gb_per_s=334), "a faster machine (ub.read_intra"),
        (schedule(duration_ps=2 * 10**12, read_intra_gb_per_s=80), None),
        (schedule(duration_ps=10**11, read_intra_gb_per_s=80, latency_inter_us=3), "a slower machine ("),
        (schedule(duration_ps=2 * 10**12, latency_inter_us=1), "a faster machine (ub.latency_inter_us)"),
        (schedule(duration_ps=2 * 10**12, latency_inter_us=3, read_intra_gb_per_s=334), None),
        (schedule(duration_ps=2 * 10**12, share=0.7), None),
        (schedule(duration_ps=2 * 10**12), None),
        (replace(schedule(duration_ps=2 * 10**12, latency_inter_us=1), arrivals="other"), None),
    ],
)
def test_anomalies_need_machines_that_can_be_ordered(here: Schedule, words: str | None) -> None:
    anomaly = compare(here, schedule())["anomaly"]
    assert anomaly is None if words is None else anomaly.startswith(words)


def test_a_schedule_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    schedule().write(path)
    again = Schedule.read(path)
    assert again.sha256 == schedule().sha256 != changed(1, 0, 1, 1, 16, 1024).sha256
    assert compare(schedule(), again) == {
        "with": str(path),
        "duration_s": 1.0,
        "first_difference": None,
        "anomaly": None,
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batched_tokens": 229}, "step 0 exceeds 229 batched tokens"),
        ({"max_seqs": 1}, "step 0: no room for request 1"),
        ({"kv_blocks": 1}, "step 0: no room for request 1"),
        ({"priced_kv_tokens": 230}, "step 0: no room for request 1"),
    ],
)
def test_a_fixed_scheduler_keeps_the_rank_s_limits(changes: dict[str, int], words: str) -> None:
    fits = {"batched_tokens": 230, "max_seqs": 2, "kv_blocks": 2, "priced_kv_tokens": 232}
    more = {"context": 1000, "priced_context": 1000, "block_tokens": 16}
    rows = np.array([[0, 0, 0, 2, 100], [0, 0, 1, 3, 130], [1, 0, 0, 1, 1]], np.int32)
    for given in ({}, changes):
        scheduler = FixedScheduler(SchedulerLimits(**(fits | given | more)), rows)
        for request_id, priced in enumerate((100, 130)):
            prompt = np.arange(-(-priced // 64), dtype=np.int64)
            assert scheduler.add(Request(RequestSpec(request_id, 0, prompt, priced, 64, 2, False, 0)))
        if given:
            with pytest.raises(UsageError, match=words):
                scheduler.schedule()
        else:
            assert [s.priced_count for s in scheduler.schedule()] == [100, 130]
