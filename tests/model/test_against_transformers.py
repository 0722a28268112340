"""Logits, routing and tokens equal those of `transformers` on the same checkpoint, for both architectures."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_reference import LOGIT_TOLERANCE, Comparison, compare, selection_gap
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV3Config, Qwen3MoeConfig

from serving.model import PRESETS, load_model, make_checkpoint
from serving.model.config import YarnConfig

YARN = YarnConfig(factor=8.0, original_max_position_embeddings=64, mscale=1.0, mscale_all_dim=0.7)

VARIANTS: dict[str, dict[str, Any]] = {
    "preset": {},
    "no q_lora_rank": {"q_lora_rank": None},
    "plain rope": {"yarn": None},
    "strong YaRN with mscale": {"yarn": YARN},
    "YaRN without mscale": {"yarn": YARN.model_copy(update={"mscale": None, "mscale_all_dim": None})},
    "rope in halves": {"rope_interleave": False},
    "rope in halves, plain, no q_lora_rank": {"rope_interleave": False, "yarn": None, "q_lora_rank": None},
    "weights not normalised": {"norm_topk_prob": False, "routed_scaling_factor": 1.0},
    "two shared experts": {"n_shared_experts": 2},
    "tied embeddings": {"tie_word_embeddings": True},
    "one group": {"n_group": 1, "topk_group": 1},
    "no dense layer": {"first_k_dense_replace": 0},
}


def assert_equal(result: Comparison) -> None:
    print(f"positions {result.positions}, worst logit {result.worst_logit:.1e}, excused {result.excused}")
    assert result.unexcused_routing == []
    assert len(result.excused) <= 0.005 * result.positions
    assert result.worst_logit <= LOGIT_TOLERANCE
    assert result.greedy_differing == []
    assert result.greedy_compared > 0.9 * result.positions


@pytest.mark.parametrize("variant", VARIANTS)
def test_tiny(variant: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, PRESETS["tiny"].model_copy(update=VARIANTS[variant]), seed=3)
    assert_equal(compare(tmp_path, num_sequences=4, length=512, seed=1))


QWEN: dict[str, dict[str, Any]] = {
    "preset": {},
    "weights not normalised": {"norm_topk_prob": False},
    "every head its own KV head": {"num_key_value_heads": 4},
    "one KV head": {"num_key_value_heads": 1},
    "YaRN": {"yarn": YarnConfig(factor=4.0, original_max_position_embeddings=64)},
    "a dense layer first, tied embeddings": {"first_k_dense_replace": 1, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("variant", QWEN)
def test_qwen(variant: str, tmp_path: Path) -> None:
    """Fails with a query head read from another group's KV head, or without the norm of queries or keys."""
    make_checkpoint(tmp_path, PRESETS["qwen3-moe-tiny"].model_copy(update=QWEN[variant]), seed=3)
    assert_equal(compare(tmp_path, num_sequences=3, length=256, seed=1))


YARN_5 = {
    "rope_type": "yarn", "rope_theta": 50000.0, "factor": 8.0, "original_max_position_embeddings": 64,
    "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 16, "truncate": False,
}  # fmt: skip
LEFT_OUT = object()
SAVED: dict[str, tuple[str, dict[str, Any]]] = {
    "DeepSeek, 16 bits": ("tiny", {"rope_parameters": YARN_5}),
    "DeepSeek, no MoE layer": ("tiny", {"first_k_dense_replace": 3, "n_shared_experts": 3}),
    "Qwen, 16 bits, head_dim left out": ("qwen3-moe-tiny", {"head_dim": LEFT_OUT, "norm_topk_prob": True}),
}


@pytest.mark.parametrize("case", SAVED)
def test_what_transformers_saves(case: str, tmp_path: Path) -> None:
    """Its own files, in shards of 60 kB: its names, spelling of rope and types."""
    preset, changes = SAVED[case]
    config = PRESETS[preset].to_hf() | {"rope_scaling": None} | changes
    config = {key: value for key, value in config.items() if value is not LEFT_OUT}
    of_type = {"tiny": DeepseekV3Config, "qwen3-moe-tiny": Qwen3MoeConfig}[preset]
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(of_type(**config, initializer_range=0.2))
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.02)
    model.to(torch.bfloat16 if "16 bits" in case else torch.float32)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert_equal(compare(tmp_path, num_sequences=2, length=200, seed=1))


@pytest.mark.slow
def test_mini(mini_dir: Path) -> None:
    assert_equal(compare(mini_dir, num_sequences=5, length=512, seed=2))


DOCTORED = {
    "model.layers.1.mlp.gate.e_score_correction_bias": "tiny",
    "model.norm.weight": "tiny",
    "model.layers.1.self_attn.q_norm.weight": "qwen3-moe-tiny",
    "model.layers.2.self_attn.k_norm.weight": "qwen3-moe-tiny",
}


@pytest.mark.parametrize("doctored", DOCTORED)
def test_a_tensor_left_out_is_noticed(doctored: str, tmp_path: Path) -> None:
    """The comparison can fail: our side reads a checkpoint in which one tensor is neutral."""
    make_checkpoint(tmp_path / "a", DOCTORED[doctored], seed=3)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    tensors[doctored] = torch.full_like(tensors[doctored], float(tensors[doctored].mean().round()))
    save_file(tensors, tmp_path / "b" / "model.safetensors")
    result = compare(tmp_path / "a", 1, 64, ours=load_model(tmp_path / "b"))
    assert result.unexcused_routing or result.worst_logit > LOGIT_TOLERANCE


def test_selection_gap() -> None:
    """Groups [.9 .8] [.5 .4] [.3 .2]: one group of three leaves 1.7 against 0.9; then 0.9 against 0.8."""
    choice = torch.tensor([[0.9, 0.8, 0.5, 0.4, 0.3, 0.2]])
    assert float(selection_gap(choice, 3, 1, 1)) == pytest.approx(0.1)
    assert float(selection_gap(choice, 3, 2, 3)) == pytest.approx(0.1)
    assert float(selection_gap(choice, 3, 2, 2)) == pytest.approx(0.3)
