"""DP groups of several ranks over real processes: the answers of one process, bit for bit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from replays import Model, lines, make_model, serve

from serving.job import ReplayJob, read_requests
from serving.model.checkpoint import make_checkpoint
from serving.model.config import PRESETS
from serving.model.model import load_model
from serving.model.reference import ReferenceRequest, generate

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("model")
    made, drafting = make_model(folder), PRESETS["tiny"].model_copy(update={"num_nextn_predict_layers": 2})
    make_checkpoint(folder / "drafting", drafting, seed=5)
    return Model(str(folder / "drafting"), made.priced_as)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts in bursts, several of which begin alike."""
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    rows = [
        json.loads(line)
        for line in lines([(i // 5 * 4000, 1600 + 64 * i, 12) for i in range(10)]).splitlines()
    ]
    for row in rows[:3] + rows[7:]:
        row["hash_ids"][:2] = [7000, 7001]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def wanted(folder: Path, model: Model) -> tuple[str, str]:
    """Digests of tokens and logits of one process, as a result has them."""
    job, specs = ReplayJob.read(folder), read_requests(folder)
    loaded = load_model(model.directory, quantization=job.quantization)
    asked = [ReferenceRequest(spec.prompt.tolist(), spec.max_output, seed=spec.seed) for spec in specs]
    answers = list(generate(loaded, asked))
    tokens = [f"{i}:{','.join(map(str, answer.tokens))}" for i, answer in enumerate(answers)]
    logits = [f"{i}:{answer.logits_sha256}" for i, answer in enumerate(answers)]
    first, second = (hashlib.sha256("\n".join(part).encode()).hexdigest() for part in (tokens, logits))
    return first, second


SCARCE = ("--enable-prefix-caching", "--num-gpu-blocks-override", "26", "--dram-blocks", "90")
MOVING = (
    "--eplb",
    "xdeepserve",
    "--eplb-step-interval",
    "4",
    "--redundant-experts",
    "4",
    "--set",
    "vpc.storage_gb_per_s=100",
)
WAYS = {
    "dp 2, tp 2, scarce blocks, drafts": (4, ("--dp-size", "2", "--tp-size", "2", "--mtp", "1", *SCARCE)),
}
WIDER = {
    "tp 2": (2, ("--tp-size", "2")),
    "tp 4": (4, ("--tp-size", "4", "--max-num-seqs", "2")),
    "dp 2, tp 2, the shared expert placed": (4, ("--tp-size", "2", "--shared-experts", "placed")),
    "dp 2, tp 2, INT8, scarce blocks, drafts": (
        4,
        ("--tp-size", "2", "--quantization", "int8", "--mtp", "1", *SCARCE),
    ),
    "dp 2, tp 2, experts move": (4, ("--tp-size", "2", "--mtp", "2", *MOVING)),
    "dp 4, tp 2": (8, ("--tp-size", "2", "--redundant-experts", "8", "--load-balancing", "decode-kv")),
}


@pytest.mark.parametrize("way", [*WAYS, *(pytest.param(way, marks=pytest.mark.sweep) for way in WIDER)])
def test_a_group_answers_as_one_process(way: str, tmp_path: Path, trace: Path, model: Model) -> None:
    """Fails with a rank of a group that samples, routes another's rows, or lets pages go late."""
    num_ranks, options = {**WAYS, **WIDER}[way]
    result = serve(tmp_path / "job", trace, model, num_ranks, *options)
    assert (result["completed"], result["failed"]) == (10, 0)
    assert (result["tokens_sha256"], result["logits_sha256"]) == wanted(tmp_path / "job", model)
    assert result["virtual_time"]["tensor"]["mean_s"] > 0
    assert result["work"]["group_bytes_sent"] > 0
    assert result["configuration"]["groups"]["dp_size"] * 2 in (num_ranks, num_ranks // 2)
    if "move" in way:
        assert result["eplb"]["moves"] > 0
    if "drafts" in way:
        assert result["speculation"]["steps"] > 0 and result["speculation"]["rejected"] > 0
    if "scarce" in way:
        assert result["cache"]["preemptions"] > 0 and result["cache"]["hit"] > 0
        assert result["cache"]["kv_load_bytes"] > 0


@pytest.mark.sweep
def test_two_runs_are_equal(tmp_path: Path, trace: Path, model: Model) -> None:
    ways = [serve(tmp_path / str(i), trace, model, 4, "--tp-size", "2", *SCARCE) for i in range(2)]
    assert ways[0]["trace_sha256"] == ways[1]["trace_sha256"]
