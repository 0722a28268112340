"""Another architecture behind the same interface: a Qwen3-MoE pod gives its reference's bits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from local_pod import load_priced, run_pod
from test_serving_engine import answers, limits, workload

import serving
from emulator.errors import UsageError
from serving.job import ReplayJob
from serving.limits import job_placement
from serving.model.checkpoint import make_checkpoint
from serving.model.config import preset_config
from serving.model.reference import ReferenceRequest, generate
from serving.placement import PlacementOptions, place_experts

PRESET = "qwen3-moe-tiny"
SHAPE = {"layers": 9, "routed_experts": 16, "top_k": 2}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A checkpoint, and Qwen3-30B-A3B's price file with its routing shape."""
    directory = tmp_path_factory.mktemp("qwen")
    make_checkpoint(directory / "model", PRESET, seed=5)
    text = (Path(str(serving.__file__)).parent / "priced" / "qwen3-30b-a3b.toml").read_text()
    for name, value in SHAPE.items():
        text, count = re.subn(rf"(?m)^({name} = {{ value = )\d+", rf"\g<1>{value}", text)
        assert count == 1, name
    (directory / "priced.toml").write_text(text)
    return str(directory / "model"), str(directory / "priced.toml")


@pytest.mark.parametrize(("num_ranks", "redundant"), [(1, 0), (4, 0), (5, 3)])
def test_every_layout_gives_the_reference_bits(qwen: tuple[str, str], num_ranks: int, redundant: int) -> None:
    model, priced = qwen
    requests = [ReferenceRequest(s.prompt.tolist(), s.max_output, seed=s.seed) for s in workload()]
    wanted = {i: (r.tokens, r.logits_sha256) for i, r in enumerate(generate(model, requests))}
    placement = place_experts(num_ranks, 16, 2, PlacementOptions("local", redundant))
    ends = run_pod(model, workload(), placement, limits(batched_tokens=512), load_priced(priced))
    assert answers(ends) == wanted
    rows = sum(link.priced_rows_sent for _, _, link in ends)
    assert rows == 2 * 3 * sum(s.priced_total for s in workload())  # top 2, three MoE layers, none dense


def test_shared_experts_that_are_not_there_cannot_be_placed() -> None:
    job = ReplayJob("model", 4, "qwen3-30b-a3b", "cloudmatrix384", shared_experts="placed")
    with pytest.raises(UsageError, match="--shared-experts placed: a model of type qwen3_moe has none"):
        job_placement(job, preset_config(PRESET))
