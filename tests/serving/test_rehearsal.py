"""A rehearsal is a real service in a pod of one without MPI, and leaves nothing behind."""

import os
import re
import tempfile
from pathlib import Path

import pytest

import emulator
from emulator.errors import UsageError
from emulator.solo import solo_device
from serving import ahead, rehearsal
from serving.job import ReplayJob, read_reference, read_results, write_requests
from serving.model.checkpoint import make_checkpoint
from serving.model.config import ModelConfig
from serving.reference import answer_requests
from serving.workload import WorkloadOptions, builtin_trace, make_requests


@pytest.fixture
def directory(tmp_path: Path) -> str:
    make_checkpoint(tmp_path / "model", "mini", seed=1)
    job = ReplayJob(
        str(tmp_path / "model"), 4, "deepseek-r1", "cloudmatrix384", token_scale=64, check_memory=False
    )
    job.write(tmp_path)
    options = WorkloadOptions(ModelConfig.from_hf(job.model_dir).vocab_size, token_scale=64, max_output=4)
    write_requests(tmp_path, make_requests(builtin_trace(3, 0), options))
    return str(tmp_path)


def test_a_pod_of_one_answers_like_the_reference(directory: str) -> None:
    parts = ahead.make_ahead(directory)
    rehearsal.serve_alone(parts, ahead.job_requests(directory), directory)
    ahead.forget()
    answer_requests(directory)
    (result,) = read_results(directory)
    served = [(r["id"], tuple(r["tokens"]), r["logits_sha256"]) for r in result["requests"]]
    truth = [(r["id"], tuple(r["tokens"]), r["logits_sha256"]) for r in read_reference(directory)]
    assert sorted(served) == truth
    assert len(truth) == 3


def test_a_rehearsal_leaves_nothing(directory: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    before, shm = sorted(os.listdir(directory)), _shared_files()
    rehearsal.make_ready(directory)
    assert sorted(os.listdir(directory)) == before
    assert _shared_files() <= shm
    assert os.listdir(tmp_path / "tmp") == []
    with pytest.raises(UsageError):
        emulator.device()  # the process is no rank
    ahead.forget()


def _shared_files() -> set[str]:
    """What is in /dev/shm but for directories and segments of jobs, which come and go beside this test."""
    jobs = re.compile(r"superpod-\d+-(run-\d+-|\w+-prterun-)|sm_segment\.|superpod-\d+-sweeptest")
    return {name for name in os.listdir("/dev/shm") if not jobs.match(name)}


def test_a_solo_device_keeps_time_and_memory_to_itself() -> None:
    one, other = (solo_device(heap_bytes=1 << 16) for _ in range(2))
    one.compute(ps=5)
    one.barrier()
    one.heap[:4] = 7
    assert one.num_ranks == 1
    assert one.now_ps > other.now_ps == 0
    assert not other.heap.any()
