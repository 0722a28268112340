"""What ranks inherit instead of making it themselves: proofs, model, workload; and what they then hold."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from emulator.profile import load_profile
from launch.osproc import descendants
from serving import ahead
from serving.job import ReplayJob, write_requests
from serving.model.checkpoint import make_checkpoint
from serving.model.config import ModelConfig
from serving.model.rows import SIZES, Proofs
from serving.workload import WorkloadOptions, builtin_trace, make_requests

MOST_PRIVATE_MB = 12.6
"""Anonymous memory a rank of the replay below may have for itself; measured: 12.2 MB; more where
nothing is given back, or where each makes its parts itself."""


@pytest.fixture(scope="module")
def job_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("job")
    make_checkpoint(directory / "model", "mini", seed=1)
    job = ReplayJob(
        str(directory / "model"), 4, "deepseek-r1", "cloudmatrix384", token_scale=64, check_memory=False
    )
    job.write(directory)
    vocab = ModelConfig.from_hf(job.model_dir).vocab_size
    options = WorkloadOptions(vocab=vocab, token_scale=64, max_output=3)
    write_requests(directory, make_requests(builtin_trace(3, 0), options))
    yield str(directory)
    ahead.forget()


def test_what_was_made_ahead_is_what_a_rank_gets(job_directory: str) -> None:
    ahead.make_ahead(job_directory)
    job, specs = ReplayJob.read(job_directory), ahead.job_requests(job_directory)
    parts = ahead.common_parts(job, specs, load_profile())
    assert parts is ahead.common_parts(job, specs, load_profile())
    other = load_profile(overrides={"ub.latency_inter_us": 40})
    assert ahead.common_parts(job, specs, other) is not parts
    assert ahead.common_parts(job, specs, other).priced.profile.hash() == other.hash()


def test_a_rank_proves_nothing_again(job_directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function of rows at every size, and attention of one sequence, are settled ahead."""
    ahead.make_ahead(job_directory)
    job, specs = ReplayJob.read(job_directory), ahead.job_requests(job_directory)
    model = ahead.common_parts(job, specs, load_profile()).model
    before = model.proofs.verdicts()
    assert before

    def refuse(self: Proofs, key: tuple[object, ...], prove: object) -> bool:
        assert key in before, f"proven again: {key}"
        return before[key]

    monkeypatch.setattr(Proofs, "holds", refuse)
    model.open_experts([3])
    for size in SIZES:
        rows = torch.randn(size, model.config.hidden_size, generator=torch.Generator().manual_seed(size))
        moe = model.layer(model.config.num_hidden_layers - 1)
        for function in (model.logits, moe.norm, moe.route, moe.shared, model.layer(0).dense):
            function(rows)
        moe.expert(3, rows)


@pytest.mark.multirank
@pytest.mark.timeout(240)
def test_a_rank_of_a_replay_holds_little_memory_of_its_own(job_directory: str) -> None:
    """16 ranks: the largest median, over the run, of the anonymous memory each rank has for itself."""
    root = Path(__file__).parents[2]
    with tempfile.TemporaryDirectory(prefix="sp", dir="/tmp") as base:
        options = ["-n", "16", "--model", f"{job_directory}/model", "--requests", "24", "--token-scale", "64"]
        command = [sys.executable, "-m", "launch.cli", "replay", *options, "--no-memory-check"]
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(root),
            "TMPDIR": base,
            "SUPERPOD_WARM": "0",  # ranks are found below the command
        }
        run = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        medians = [0.0]
        try:
            while run.poll() is None:
                held = [anonymous_mb(pid) for pid in descendants(run.pid) if serves(pid, base)]
                if len(held) >= 16:  # and the one they are forked from, which the median leaves out
                    medians.append(statistics.median(held))
                time.sleep(0.02)
        finally:
            run.kill()
        assert run.wait() == 0
    assert len(medians) > 3, "the run was never seen"
    print(f"anonymous memory of a rank: {max(medians):.1f} MB")
    assert 4 < max(medians) < MOST_PRIVATE_MB


def serves(pid: int, base: str) -> bool:
    """Whether a process has a workload below `base` open."""
    try:
        names = (line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
        return any(name.startswith(base) and name.endswith("/tokens.npy") for name in names)
    except OSError:
        return False


def anonymous_mb(pid: int) -> float:
    """Memory of a process that is neither a file's nor shared with another, MB; 0 when it is gone."""
    found, anonymous = 0, 0
    try:
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == "Private_Dirty":
                found = int(value.split()[0])
            elif key == "Anonymous":
                anonymous += min(found, int(value.split()[0]))
    except OSError:
        return 0.0
    return anonymous / 1024
