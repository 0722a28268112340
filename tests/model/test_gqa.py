"""Qwen3-MoE: its configuration, its cache, and bits that depend on no batch, chunk, page or rank."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_batch_invariance import alone, random_schedule

from emulator.errors import UsageError
from emulator.profile import load_profile
from serving.kv.formats import GroupedFormat, LatentFormat
from serving.model import PRESETS, Model, ModelConfig, PagedKV, load_model, make_checkpoint
from serving.model.balance import make_balanced_checkpoint
from serving.model.config import DeepseekV3Config, Qwen3MoeConfig
from serving.model.rows import bits_equal
from serving.pricing import PricedModel

TINY = "qwen3-moe-tiny"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = tmp_path_factory.mktemp("qwen")
    make_checkpoint(directory, TINY, seed=4)
    return load_model(directory)


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_bits_are_those_of_a_sequence_alone(qwen: Model, page_size: int) -> None:
    """Fails when a group's rows are cut from the page in the order of queries (heads before groups)."""
    rng = np.random.default_rng(page_size)
    sequences = [torch.from_numpy(rng.integers(0, 64, n)) for n in (1, 9, 70, 150)]
    for tokens, logits in zip(sequences, random_schedule(qwen, sequences, page_size, 40, rng), strict=True):
        assert bits_equal(logits, alone(qwen, tokens)), f"seed {page_size}, {len(tokens)} tokens"


def test_a_cache_holds_the_formula_s_bytes_and_a_constant() -> None:
    """2 · KV heads · head size values a layer, or latent and rotated key, and the constant 1."""
    qwen, deepseek = PRESETS[TINY], PRESETS["tiny"]
    assert isinstance(qwen, Qwen3MoeConfig) and isinstance(deepseek, DeepseekV3Config)
    grouped = GroupedFormat(3, qwen.num_key_value_heads, qwen.head_dim, 4)
    latent = LatentFormat(3, deepseek.kv_lora_rank, deepseek.qk_rope_head_dim, 4, 4)
    for config, form in ((qwen, grouped), (deepseek, latent)):
        pages = PagedKV(config, 5, 8).pages
        assert pages.shape[0] * (pages.shape[-1] - 1) * pages.element_size() == form.bytes_per_token


def test_the_priced_model_s_cache_is_the_formula_s() -> None:
    priced = PricedModel.load("qwen3-30b-a3b", load_profile("cloudmatrix384", {}))
    assert priced.kv_bytes(1) == GroupedFormat(48, 4, 128, 2).bytes_per_token == 98_304
    # 30.5 billion parameters: INT8 but for router, embedding and head, all experts on one die.
    assert priced.weights_bytes(128) == pytest.approx(30.5e9, rel=0.03)


def test_the_published_configuration_is_read(tmp_path: Path) -> None:
    published: dict[str, Any] = {
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
        "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
        "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
        "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
    }  # fmt: skip
    config = ModelConfig.from_dict(published)
    assert isinstance(config, Qwen3MoeConfig)
    assert (config.n_routed_experts, config.num_key_value_heads, config.kv_width) == (128, 4, 1024)
    assert (config.num_moe_layers, config.n_shared_experts) == (48, 0)
    assert ModelConfig.from_dict(config.to_hf()) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen3"}, "model_type 'qwen3' is not supported; use 'deepseek_v3' or 'qwen3_moe'"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step=2 is not supported; only 1 is"),
        (
            {"mlp_only_layers": [1]},
            "mlp_only_layers=[1] is not supported; only the first layers may be dense",
        ),
        ({"attention_bias": True}, "attention_bias=True is not supported; only False is"),
        ({"use_sliding_window": True}, "use_sliding_window=True is not supported"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is not a multiple of num_key_value_heads=3"),
        ({"num_key_value_heads": None}, "num_key_value_heads: Input should be a valid integer"),
        ({"quantization_config": {"quant_method": "fp8"}}, "weights quantised as 'fp8' are not read"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        ModelConfig.from_dict(PRESETS[TINY].to_hf() | changes)


def test_a_bias_cannot_be_balanced_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which qwen3_moe lacks"):
        make_balanced_checkpoint(tmp_path, TINY)
