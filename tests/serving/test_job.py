"""A job's files say on the other side exactly what was written."""

import json
from pathlib import Path

import numpy as np

from serving.job import (
    Progress,
    ReplayJob,
    append_result,
    read_requests,
    read_results,
    write_requests,
)
from serving.model.sampling import SamplingParams
from serving.workload import WorkloadOptions, builtin_trace, make_requests


def test_settings_round_trip(tmp_path: Path) -> None:
    job = ReplayJob(
        "m", 4, "deepseek-r1", "cloudmatrix384", {"a.b": "4"}, sampling=SamplingParams(0.5, top_p=0.9)
    )
    job.write(tmp_path)
    assert ReplayJob.read(tmp_path) == job


def test_requests_round_trip(tmp_path: Path) -> None:
    specs = make_requests(builtin_trace(9, 4), WorkloadOptions(vocab=97, token_scale=64, max_output=7))
    write_requests(tmp_path, specs)
    back = read_requests(tmp_path)
    assert len(back) == 9
    for a, b in zip(specs, back, strict=True):
        assert np.array_equal(a.prompt, b.prompt)
        assert a.__dict__ | {"prompt": None} == b.__dict__ | {"prompt": None}


def test_results_come_back_in_order_of_rank(tmp_path: Path) -> None:
    assert read_results(tmp_path) == []
    for rank in (2, 0, 1):
        append_result(tmp_path, {"rank": rank, "x": "y" * 70_000})
    assert [r["rank"] for r in read_results(tmp_path)] == [0, 1, 2]
    assert json.dumps(read_results(tmp_path)).count("y") == 210_000


def test_progress_is_shared(tmp_path: Path) -> None:
    reader = Progress(tmp_path, 3, create=True)
    assert reader.cells.sum() == 0
    Progress(tmp_path, 3).update(1, 4, 77)
    assert reader.cells.tolist() == [[0, 0, 0], [1, 4, 77], [0, 0, 0]]
