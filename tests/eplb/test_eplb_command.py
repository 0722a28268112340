"""A skewed router has the skew asked for, and `superpod eplb` shows what redundant experts make of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import UsageError
from launch.cli import main
from serving.eplb.observe import count_rows
from serving.model import (
    load_model,
    make_checkpoint,
    make_drifting_checkpoint,
    make_skewed_checkpoint,
    preset_config,
    skewed_bias,
    skewed_loads,
)
from serving.model.balance import expert_loads, walk
from serving.traces import TraceRequest
from serving.workload import WorkloadOptions, make_requests

MINI = preset_config("mini")


@pytest.mark.parametrize("skew", [2.0, 10.0, 18.0, 30.0])
def test_loads_have_the_asked_shape(skew: float) -> None:
    loads = skewed_loads(skew, MINI)
    assert loads.mean() == pytest.approx(1)
    assert loads[0] == pytest.approx(skew)
    assert (np.diff(loads) <= 1e-12).all()
    assert 0.18 <= (loads > 1).mean() <= 0.22


@pytest.mark.parametrize(
    "skew", [pytest.param(2.0, marks=pytest.mark.sweep), 18.0, pytest.param(30.0, marks=pytest.mark.sweep)]
)
def test_a_bias_gives_the_loads_on_rows_it_has_not_seen(skew: float) -> None:
    seed = 3
    rng = np.random.default_rng(seed)
    scores = 1 / (1 + np.exp(-rng.normal(0, 1, (2, 8192, MINI.n_routed_experts))))
    seen, unseen = scores.astype(np.float32)
    bias = skewed_bias(seen, skewed_loads(skew, MINI), MINI).numpy()
    got = expert_loads(unseen, bias, MINI)
    assert int(got.argmax()) == 0
    assert got.max() / got.mean() == pytest.approx(skew, rel=0.1 if skew < 10 else 0.05), seed


def test_only_the_biases_of_a_skewed_checkpoint_differ(tmp_path: Path) -> None:
    config = make_skewed_checkpoint(tmp_path / "skewed", "tiny", 4, skew=2.5)
    counts = count_rows(load_model(tmp_path / "skewed"), 4096, 2, seed=9)
    assert sorted(counts) == [i for i in range(config.num_hidden_layers) if config.is_moe(i)]
    for table in counts.values():
        rows = table.sum(axis=1)
        assert rows.sum() == 4096 * config.num_experts_per_tok
        assert rows.max() / rows.mean() == pytest.approx(2.5, rel=0.1)


def test_a_skew_no_router_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--expert-skew 31: 1.9 to 30.4 for 8 of 256 experts"):
        skewed_loads(31, MINI)


def test_the_command_compares_native_balanced_and_ideal(tmp_path: Path) -> None:
    make_skewed_checkpoint(tmp_path / "m", "tiny", 4, skew=3.0)
    config = preset_config("tiny")
    arguments = ["eplb", "--model", str(tmp_path / "m"), "-n", str(config.n_routed_experts)]
    arguments += ["--redundant-experts", str(config.n_routed_experts), "--tokens", "2048", "--batch", "512"]
    out = tmp_path / "out.json"
    assert main([*arguments, "--json", str(out)]) == 0
    for row in json.loads(out.read_text())["rows"]:
        assert row["native"]["imbalance"] > 2.5
        assert row["balanced"]["imbalance"] < 1.5
        assert row["ideal"]["imbalance"] == 1
        assert row["native"]["layer_ms"] >= row["balanced"]["layer_ms"] >= row["ideal"]["layer_ms"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "random"], "--policy random: choose xdeepserve or deepseek"),
        (["--batch", "a,b"], "--batch a,b: numbers with commas"),
        (["--batch", "0"], "--batch 0: at least 1 each"),
        (["--expert-skew", "3"], "leave one out"),
        (["--policy", "deepseek", "-n", "6", "--redundant-experts", "5"], "among 6 dies; nearest: 2"),
    ],
)
def test_bad_options_are_refused(
    tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_checkpoint(tmp_path, "tiny", 4)
    assert main(["eplb", "--model", str(tmp_path), *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("superpod: error: ")
    assert message in line


@pytest.mark.sweep
def test_hot_experts_move_from_section_to_section(tmp_path: Path) -> None:
    """Fails where all sections have the same loads, or the gate does not read the section."""
    config = make_drifting_checkpoint(tmp_path, "tiny", 4, skew=2.5, sections=2)
    model, size = load_model(tmp_path), config.vocab_size // 2
    hottest = []
    for section in range(2):
        tokens = np.random.default_rng(9).integers(0, size, 4096) + section * size
        found = []
        for layer, h in walk(model, config, tokens, 512, 8):
            rows = expert_loads(layer.router_scores(h).numpy(), layer.router_bias.numpy(), config)
            assert rows.max() / rows.mean() == pytest.approx(2.5, rel=0.1)
            found.append(int(rows.argmax()))
        hottest.append(found)
    assert hottest[0] != hottest[1]
    specs = make_requests(
        [TraceRequest(0, 32, 1, None)] * 4, WorkloadOptions(config.vocab_size, sections=config.vocab_sections)
    )
    assert [{int(t) // size for t in spec.prompt} for spec in specs] == [{0}, {0}, {1}, {1}]
    with pytest.raises(UsageError, match="--drift 1: 2 to 8 sections"):
        make_drifting_checkpoint(tmp_path, "tiny", 4, skew=2.5, sections=1)
