"""`superpod bench ep --routing gate`: the choices are a model's own; what does not fit is refused."""

import json

import numpy as np
import pytest
import torch

from collectives.bench import ep_shapes
from collectives.bench.ep_shapes import EpSpec
from launch import bench_gate
from launch.cli import main
from serving.model import PagedKV, load_model, make_checkpoint
from serving.model.reference import forward

SPEC = EpSpec("xccl", "xccl", 16, 13, 2, routing="gate", seed=5)
RANKS = 4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A checkpoint of 3 layers, 1 and 2 with 16 experts, top-2."""
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, "tiny", 1)
    return folder


def by_hand(model, index):
    """What layer `index` chooses in a whole pass of each sequence alone."""
    chosen, layer = [], model.layer(index)
    real = layer.route

    def route(h):
        chosen.append(real(h))
        return chosen[-1]

    layer.route = route
    for rank in range(RANKS):
        tokens = np.random.default_rng([SPEC.seed, rank, 4]).integers(0, 64, SPEC.tokens)
        for part in (tokens[:8], tokens[8:]):
            kv = PagedKV(model.config, 1)
            forward(model, torch.from_numpy(part), model.plan([kv.append(0, part.size)], kv))
    return [torch.cat(parts).numpy().reshape(RANKS, SPEC.tokens, 2) for parts in zip(*chosen, strict=True)]


@pytest.mark.parametrize("layer", [1, 2])
def test_choices_are_those_of_the_model(tiny, tmp_path, layer):
    """Bit by bit, of the process that draws them. (Mutations: another layer; attention left out; expert
    layers below left out.)"""
    spec = SPEC._replace(model=str(tiny), layer=layer, folder=str(tmp_path))
    bench_gate.draw(spec, RANKS)
    ids, weights = by_hand(load_model(tiny), layer)
    for rank in range(RANKS):
        got = ep_shapes.choices(spec, rank)
        assert np.array_equal(got[0], ids[rank]) and np.array_equal(got[1], weights[rank])
    assert ep_shapes.loads(spec, RANKS).sum() == RANKS * 13 * 2 and np.unique(ids[0], axis=0).shape[0] > 3


def test_the_model_decides_experts_and_topk(tiny):
    assert bench_gate.find_gate(tiny, None, 16, None, 8) == (str(tiny), 1, 16, 2)
    assert bench_gate.find_gate(None, 7, None, 8, 8) == ("", 7, 256, 8)


@pytest.mark.parametrize(
    "words, says",
    [
        ("--routing gate --experts 8", "--experts 8: MODEL has 16; leave --experts out"),
        ("--routing gate --topk 8", "--topk 8: MODEL has 2"),
        ("--routing gate --layer 0", "--layer 0: MoE layers of MODEL are 1 to 2"),
        ("--routing gate --layer 3", "--layer 3: MoE layers of MODEL are 1 to 2"),
        ("--routing gate -n 6", "-n 6: the 16 experts of MODEL are not shared equally; nearest: 4"),
        ("--routing gate --tokens 0", "--tokens 0: choose 1 to"),
        ("--routing zipf", "--model MODEL: for --routing gate only, not zipf"),
        ("--routing gate --layer 1 -n 1000", "has 768 dies"),
    ],
)
def test_what_does_not_fit_is_one_line(tiny, words, says, capsys):
    assert main(["bench", "ep", "-n", "4", "--model", str(tiny), *words.split()]) == 2
    err = capsys.readouterr().err
    assert says.replace("MODEL", str(tiny)) in err and err.count("\n") == 1


def test_a_broken_checkpoint_is_one_line(tmp_path, capsys):
    """What the process that has torch finds comes out as the command's own error."""
    assert main(["bench", "ep", "--routing", "gate", "--model", str(tmp_path / "no")]) == 2
    assert "cannot read the model configuration" in capsys.readouterr().err
    make_checkpoint(tmp_path / "cut", "tiny", 1)
    file = tmp_path / "cut" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    words = f"bench ep -n 4 --routing gate --model {tmp_path / 'cut'}".split()
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "is cut short" in err and err.count("\n") == 1


@pytest.mark.multirank
def test_the_command_end_to_end(tiny, tmp_path, capfd):
    out = tmp_path / "rows.json"
    words = f"bench ep -n 4 --iterations 1 --warmup 0 --tokens 13 --routing gate --layer 2 --model {tiny}"
    assert main([*words.split(), "--json", str(out)]) == 0
    facts = json.loads(out.read_text())
    assert facts["wrong_tokens"] == 0 and facts["routing_mode"] == "gate"
    assert (facts["gate_model"], facts["gate_layer"]) == (str(tiny), 2)
    assert (facts["num_experts"], facts["top_k"]) == (16, 2)
    load = facts["metrics"]["expert_load"]
    assert load["mean_tokens_per_expert"] == 4 * 13 * 2 / 16 and load["imbalance_ratio"] > 1.2
    assert "routing gate" in capfd.readouterr().out
