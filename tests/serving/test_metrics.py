"""Latency metrics on hand-made timelines, after vLLM's definitions."""

import pytest

from serving.metrics import Summary, Timeline, latency_report, summarise_ms

MS = 1_000_000_000


def line(arrival: int, *times: int) -> Timeline:
    return Timeline(arrival * MS, [t * MS for t in times])


def test_one_request_by_hand() -> None:
    report = latency_report([line(10, 30, 35, 50)])
    assert report.ttft_ms == Summary(20.0, 20.0, 20.0)
    assert report.e2el_ms == Summary(40.0, 40.0, 40.0)
    assert report.tpot_ms == Summary(10.0, 10.0, 10.0)
    assert report.itl_ms.mean == 10.0
    assert report.itl_ms.p99 == pytest.approx(14.9)


def test_tpot_is_a_mean_of_requests_and_itl_a_mean_of_gaps() -> None:
    """One slow short answer and one fast long one: the two metrics must differ (vllm #6531)."""
    report = latency_report([line(0, 10, 110), line(0, 10, 20, 30, 40, 50)])
    assert report.tpot_ms.mean == 55.0
    assert report.itl_ms.mean == 28.0


def test_single_token_answers_count_for_ttft_only() -> None:
    report = latency_report([line(0, 7), line(0, 9, 11)])
    assert report.ttft_ms.mean == 8.0
    assert report.tpot_ms == Summary(2.0, 2.0, 2.0)
    assert report.itl_ms == Summary(2.0, 2.0, 2.0)


def test_nothing_to_count_is_not_zero() -> None:
    report = latency_report([line(0, 7)])
    assert report.tpot_ms == Summary(None, None, None)
    assert latency_report([]).ttft_ms.as_dict() == {"mean": None, "p50": None, "p99": None}


def test_percentiles_interpolate_linearly() -> None:
    summary = summarise_ms([i * MS for i in range(1, 101)])
    assert summary.p50 == 50.5
    assert summary.p99 == pytest.approx(99.01)
