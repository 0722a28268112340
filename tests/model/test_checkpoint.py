"""Checkpoints: single and sharded give the same model; what is wrong is named with its tensor and file."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from emulator.errors import UsageError
from serving.model import (
    Model,
    ModelConfig,
    ReferenceRequest,
    generate,
    load_model,
    make_checkpoint,
    preset_config,
)
from serving.model.config import DeepseekV3Config

REQUEST = ReferenceRequest(prompt=(1, 2, 3, 4, 5), max_tokens=4)
EXPERT = "model.layers.2.mlp.experts.3.up_proj.weight"


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text())
    for key, value in changes.items():
        if value is ...:
            del config[key]
        else:
            config[key] = value
    path.write_text(json.dumps(config))


def edit_tensors(directory: Path, **changes: Any) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for key, value in changes.items():
        if value is ...:
            del tensors[key]
        else:
            tensors[key] = value
    save_file(tensors, path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    make_checkpoint(tmp_path, "tiny", seed=0)
    return tmp_path


def error_of(directory: Path, **kwargs: Any) -> str:
    with pytest.raises(UsageError) as caught:
        load_model(directory, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_checkpoint(tmp_path / name, "tiny", seed=seed)
    files = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert files["a"] == files["b"] != files["c"]


def test_sharded_equals_single(checkpoint: Path, tmp_path: Path) -> None:
    sharded = tmp_path / "sharded"
    make_checkpoint(sharded, "tiny", seed=0, max_shard_bytes=30_000)
    assert len(list(sharded.glob("model-*-of-*.safetensors"))) > 3
    assert list(generate(sharded, [REQUEST])) == list(generate(checkpoint, [REQUEST]))


def test_files_of_the_safetensors_library(checkpoint: Path) -> None:
    """Its tensors start anywhere; the bits of the results stay the same."""
    wanted = list(generate(checkpoint, [REQUEST]))
    edit_tensors(checkpoint, extra=torch.zeros(3))
    assert list(generate(checkpoint, [REQUEST])) == wanted


def test_our_files_open_in_the_safetensors_library(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    assert tensors[EXPERT].shape == (16, 32)
    assert tensors["model.layers.1.mlp.gate.e_score_correction_bias"].abs().max() > 0


def test_weights_are_views_aligned_in_one_mapping(tiny: Model) -> None:
    first, second = tiny.files.tensor(EXPERT, 16, 32), tiny.files.tensor(EXPERT, 16, 32)
    assert first.data_ptr() == second.data_ptr()
    assert first.data_ptr() % 64 == 0


def test_only_the_experts_asked_for(checkpoint: Path) -> None:
    edit_tensors(checkpoint, **{EXPERT: ...})
    model = load_model(checkpoint, experts=[0, 5])
    rows = torch.ones(2, 32)
    assert model.layer(2).expert(5, rows).shape == (2, 32)
    with pytest.raises(UsageError, match="layer 2: expert 3 is not loaded here"):
        model.layer(2).expert(3, rows)
    with pytest.raises(UsageError, match="expert 16 does not exist; there are 16"):
        load_model(checkpoint, experts=[16])


@pytest.mark.parametrize("sharded", [False, True])
def test_missing_tensor(tmp_path: Path, sharded: bool) -> None:
    make_checkpoint(tmp_path, "tiny", seed=0, max_shard_bytes=10**9 if sharded else None)
    if sharded:
        index = tmp_path / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        del content["weight_map"][EXPERT]
        index.write_text(json.dumps(content))
    else:
        edit_tensors(tmp_path, **{EXPERT: ...})
    message = error_of(tmp_path)
    assert EXPERT in message
    assert ("index.json" if sharded else "model.safetensors") in message


def test_misshapen_tensor(checkpoint: Path) -> None:
    edit_tensors(checkpoint, **{EXPERT: torch.zeros(16, 31)})
    message = error_of(checkpoint)
    assert EXPERT in message
    assert "[16, 31]" in message
    assert "[16, 32]" in message
    assert "model.safetensors" in message


def test_wrong_dtype(checkpoint: Path) -> None:
    edit_tensors(checkpoint, **{"model.norm.weight": torch.zeros(32, dtype=torch.int16)})
    message = error_of(checkpoint)
    assert "model.norm.weight" in message
    assert "I16" in message


def test_missing_files(checkpoint: Path, tmp_path: Path) -> None:
    assert "config.json" in error_of(tmp_path / "nowhere")
    (checkpoint / "model.safetensors").unlink()
    assert "holds neither model.safetensors nor model.safetensors.index.json" in error_of(checkpoint)


def test_missing_shard(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "tiny", seed=0, max_shard_bytes=30_000)
    next(tmp_path.glob("model-00002-*")).unlink()
    message = error_of(tmp_path)
    assert "model-00002-of" in message
    assert "missing" in message


@pytest.mark.parametrize("keep_bytes", [0, 5, 100, -1000])
def test_truncated_file(checkpoint: Path, keep_bytes: int) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep_bytes])
    assert "model.safetensors" in error_of(checkpoint)


def test_header_that_is_not_json(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"{{{{" + bytes(100))
    assert "header is not JSON" in error_of(checkpoint)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": ...}, ["hidden_size", "required"]),
        ({"hidden_size": "32"}, ["hidden_size", "integer", "'32'"]),
        ({"n_group": 3}, ["n_routed_experts=16", "n_group=3"]),
        ({"topk_group": 9}, ["topk_group=9", "n_group=4"]),
        ({"num_experts_per_tok": 9}, ["num_experts_per_tok=9", "8"]),
        ({"model_type": "llama"}, ["model_type", "llama", "deepseek_v3"]),
        ({"attention_bias": True}, ["attention_bias"]),
        ({"num_key_value_heads": 2}, ["num_key_value_heads=2"]),
        ({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config"]),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["rope_type", "linear", "yarn"]),
    ],
)
def test_bad_config(checkpoint: Path, changes: dict[str, Any], words: list[str]) -> None:
    edit_config(checkpoint, **changes)
    message = error_of(checkpoint)
    assert all(word in message for word in [*words, "config.json"]), message


def test_config_that_is_not_json(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("{")
    assert "config.json: not JSON" in error_of(checkpoint)


@pytest.mark.parametrize("name", ["mini", "tiny"])
def test_config_survives_the_round_trip(name: str, tmp_path: Path) -> None:
    config = preset_config(name)
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
    assert ModelConfig.from_hf(tmp_path) == config


def test_both_spellings_of_rope() -> None:
    published = preset_config("tiny").to_hf()
    newer = dict(published)
    newer["rope_parameters"] = {"rope_type": "yarn", "rope_theta": 10000.0} | newer.pop("rope_scaling")
    del newer["rope_theta"]
    assert ModelConfig.from_dict(newer) == ModelConfig.from_dict(published)


def test_what_a_configuration_leaves_out() -> None:
    """Absent keys mean what they mean to `transformers`; Kimi-K2 is one by another name."""
    published = preset_config("tiny").to_hf()
    brief = {k: v for k, v in published.items() if k not in ("q_lora_rank", "routed_scaling_factor")}
    read = ModelConfig.from_dict(brief)
    assert isinstance(read, DeepseekV3Config)
    assert (read.q_lora_rank, read.routed_scaling_factor) == (1536, 2.5)
    direct = ModelConfig.from_dict(published | {"q_lora_rank": None})
    assert isinstance(direct, DeepseekV3Config) and direct.q_lora_rank is None
    assert ModelConfig.from_dict(published | {"model_type": "kimi_k2"}) == ModelConfig.from_dict(published)
    with pytest.raises(UsageError, match="model_type 'deepseek_v32' is not supported"):
        ModelConfig.from_dict(published | {"model_type": "deepseek_v32"})


def test_unknown_preset(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown model preset 'huge'; choose from mini, qwen3-moe-mini, "):
        make_checkpoint(tmp_path, "huge")


def test_an_existing_checkpoint_is_not_overwritten(checkpoint: Path) -> None:
    before = (checkpoint / "model.safetensors").read_bytes()
    with pytest.raises(UsageError, match="already exists"):
        make_checkpoint(checkpoint, "tiny", seed=1)
    assert (checkpoint / "model.safetensors").read_bytes() == before
    make_checkpoint(checkpoint, "tiny", seed=1, overwrite=True)
    assert (checkpoint / "model.safetensors").read_bytes() != before
