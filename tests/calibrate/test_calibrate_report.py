"""Every published row has one status; errors and statistics are what they say."""

from __future__ import annotations

import json

import numpy as np
import pytest

from collectives.calibrate.cases import CASES, parse_case
from collectives.calibrate.emulated import DECODE_ROWS, crossing, decode, exchanges, sweep
from collectives.calibrate.parameters import parameters
from collectives.calibrate.report import MEASURED, STATUSES, as_json, published, rows, rule_of, summaries
from collectives.calibrate.routing import experts_of, rows_to
from collectives.calibrate.text import as_text
from emulator.errors import InternalError, UsageError

NAMES = {entry["name"] for entry in published()}


def perfect() -> dict[str, float | list[float]]:
    """What a machine would give that equals everything published and measured."""
    return {e["name"]: e["value"] for e in published() if rule_of(e["name"])["status"] in MEASURED}


def test_every_row_has_one_status_and_a_reason() -> None:
    """Fails if a row is taken out of rows.toml."""
    found = rows({})
    assert len(found) == len(published()) == len(NAMES)
    for row in found:
        status, _, other = row.status.partition(" by ")
        assert status in STATUSES and row.why
        assert other in NAMES if status == "superseded" else not other
    with pytest.raises(InternalError, match="no rule"):
        rule_of("new.row")


def test_forty_predicted_rows_count_and_no_measurement_counts_twice() -> None:
    found = rows(perfect())
    counted = [row for row in found if row.counted]
    assert sum(row.status == "predicted" for row in counted) >= 40
    names = {row.name for row in counted}
    assert not names & {case.twin for case in CASES if case.twin}
    assert not any(row.label == "figure-read" for row in counted)
    assert all(row.error_pct == 0 for row in counted)


def test_no_library_is_fitted_by_more_than_the_smallest_and_largest_run() -> None:
    """What lies between is predicted wherever more than two sizes were published."""
    sizes: dict[str, set[int]] = {}
    for case in CASES:
        sizes.setdefault(case.row.rsplit(".ep", 1)[0], set()).add(case.ranks)
    for case in CASES:
        known = sizes[case.row.rsplit(".ep", 1)[0]]
        if case.ranks not in (min(known), max(known)):
            assert rule_of(case.row)["status"] == "predicted"


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("cm.cann_ep.dispatch_lat.ep8", 127.6, 10.0),
        ("xccl.ep.lat_max_axis", 139, 0.0),  # a largest value
        ("xccl.ep.lat_max_axis", 147, 5.0),
        ("xccl.p2p.speedup_9MB_48_vs_2_aiv_min", 3, 0.0),  # a least value
        ("xccl.p2p.speedup_9MB_48_vs_2_aiv_min", 2.25, -10.0),
        ("rdma.400g.bw_32KB", 28, 0.0),  # a range
        ("rdma.400g.bw_32KB", 24.3, -10.0),
        ("rdma.400g.bw_32KB", 33, 10.0),
        ("xccl.ep.dispatch_bs4_bs128", [24, 101], 20.0),  # two values
    ],
)
def test_errors(name: str, value: float | list[float], error: float) -> None:
    (row,) = (row for row in rows({name: value}) if row.name == name)
    assert row.error_pct == pytest.approx(error, abs=1e-9)


def test_statistics_are_of_the_counted_rows_and_say_when_a_bound_is_missed() -> None:
    """Fails if a summary takes uncounted rows, or the median for the worst."""
    values = perfect()
    values["deepep.v1.ll.dispatch_lat.ep16"] *= 1.13
    values["deepep.v1.ll.dispatch_bw.ep16"] *= 9
    values["xccl.p2p.lat_9216KB_2aiv"] *= 9
    found = {summary.name: summary for summary in summaries(rows(values))}
    for name in ("expert-parallel, predicted", "expert-parallel", "all"):
        assert found[name].worst == pytest.approx(13) and found[name].median == 0
        assert found[name].worst_row == "deepep.v1.ll.dispatch_lat.ep16"
    assert not found["expert-parallel"].is_met and found["all"].is_met and found["normal"].is_met
    assert "MISSED" in as_text(rows(values), True)


def test_json_has_the_fields_and_every_gb_s_says_its_bytes() -> None:
    report = json.loads(as_json(rows(perfect()), parameters()))
    assert {"name", "published", "emulated", "unit", "error_pct", "label", "status"} <= set(report["rows"][0])
    for row in report["rows"]:
        if row["unit"] == "GB/s" and row["status"] in MEASURED:
            assert "bytes moved" in row["counts"] or "own share included" in row["counts"], row["name"]
    assert report["parameters"]["cann"]["own.rank_us"]["unit"] == "us"


def test_the_crossing_is_found_between_batches() -> None:
    assert crossing([4, 8, 16], [3.0, 1.0, -1.0]) == 12
    assert np.isnan(crossing([4, 8], [1.0, 2.0]))
    times = {
        str(batch): {"dispatch": {"mean_ps": 10**6 * d}, "combine": {"mean_ps": 10**6 * c}}
        for batch, d, c in ((32, 6, 5), (64, 9, 11), (4, 3, 1))
    }
    found = sweep(times)
    assert found["xccl.ep.crossover_bs"] == pytest.approx(32 + 32 / 3)
    assert found["xccl.ep.lat_max_axis"] == 11 and found["xccl.ep.combine_bs4_bs128"] == [1, 11]


def test_rows_of_a_decode_iteration_come_from_its_result() -> None:
    figures = [{"name": name, "emulated": 10.0, "published": 9.0} for name in DECODE_ROWS]
    found = decode({"rows": figures, "case": {"ranks": 288}})
    assert set(found) <= NAMES and len(found) == len(DECODE_ROWS) + 2
    assert found["e2e.coloc.tput_total"] == 1440 and found["e2e.coloc.dispatch_combine_share"] == 20
    with pytest.raises(UsageError, match="not the published case"):
        decode({"rows": [{**row, "published": None} for row in figures], "case": {"ranks": 288}})
    for wrong in ({}, [], {"rows": figures[1:], "case": {"ranks": 288}}):
        with pytest.raises(UsageError, match="not what superpod decode"):
            decode(wrong)


def test_gb_per_s_are_the_counted_bytes_over_the_time() -> None:
    (case,) = (case for case in CASES if case.row == "deepep.v1.ll.combine_lat.ep8")
    found = exchanges({case.row: {"mean_ps": 318_000_000, "counted_bytes": 128 * 8 * 14336}})
    assert found == {case.row: 318.0, case.twin: pytest.approx(46.16, abs=0.01)}


def test_routing_is_as_the_benchmarks_do_it() -> None:
    """8 distinct experts; across more than 4 nodes only 4 of them; counts by expert, rank and node."""
    (case,) = (case for case in CASES if case.row == "deepep.legacy.normal.dispatch.ep64")
    experts = experts_of(case, 5)
    assert experts.shape == (4096, 8) and all(len(set(row)) == 8 for row in experts[:50].tolist())
    assert max(len(set(row)) for row in (experts // 32).tolist()) == 4
    assert rows_to(experts, 64, False).sum() == 4096 * 8
    assert rows_to(experts, 64, True).sum() == sum(len(set(row)) for row in (experts // 4).tolist())
    assert not np.array_equal(experts, experts_of(case, 6))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("cann:dispatch:normal", "write library:operation:mode:ranks"),
        ("xcl:dispatch:normal:8", "did you mean 'xccl'"),
        ("cann:dispatch:normal:12", "ranks must be 2, 4, 8"),
        ("cann:dispatch:normal:8:0", "no whole number from 1"),
        ("cann:dispatch:norml:8", "did you mean 'normal'"),
    ],
)
def test_bad_cases_are_one_line(text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part) as error:
        parse_case(text)
    assert "\n" not in str(error.value)
