"""Prices and bytes of DeepSeek-R1: published sizes, growth with length and batch, memory, repeated layers."""

import re
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import UsageError
from emulator.profile import LABELS, load_profile
from emulator.profile_keys import PROFILE_KEYS
from serving.exchange_price import estimate_ps
from serving.priced_shape import MODEL_KEYS
from serving.pricing import ATTENTION, MATMUL, OTHERS, PREPROCESS, PricedModel

PRICED = Path(__file__).parents[2] / "serving" / "priced"
NO_DECODE = np.zeros(0, dtype=np.int64)


@pytest.fixture(scope="module")
def r1() -> PricedModel:
    return PricedModel.load("deepseek-r1", load_profile())


@pytest.mark.parametrize("name", sorted(path.stem for path in PRICED.glob("*.toml")))
def test_every_number_of_a_model_is_labelled(name: str) -> None:
    entries = dict(PricedModel.load(name, load_profile()).entries.items())
    assert set(entries) == set(MODEL_KEYS)
    assert all(entry.label in LABELS and len(entry.source) > 5 for entry in entries.values())


def test_published_sizes(r1: PricedModel) -> None:
    assert r1.kv_bytes(1) == 39_040  # INT8 latent, 16-bit RoPE part, 61 layers
    assert r1.kv_bytes(1000, mtp=True) == 1000 * 62 * 640
    assert (r1.dispatch_row_bytes, r1.combine_row_bytes) == (7680, 14336)
    assert r1.expert_bytes == 44_040_192
    assert round(58 * r1.expert_bytes / 1e9, 2) == 2.55
    parameters = r1.weights_bytes(256, shared_local=True)  # a byte each, two for embeddings and the like
    assert 671e9 < parameters < 676e9


def test_alias_and_unknown_names() -> None:
    profile = load_profile()
    assert PricedModel.load("deepseek-v3", profile).shape == PricedModel.load("deepseek-r1", profile).shape
    with pytest.raises(UsageError, match="did you mean 'deepseek-r1'"):
        PricedModel.load("deepseek-r2", profile)


def test_mini_is_the_preset() -> None:
    preset = pytest.importorskip("serving.model.config").preset_config("mini")
    shape = PricedModel.load("mini", load_profile()).shape
    assert shape.hidden == preset.hidden_size
    assert shape.layers == preset.num_hidden_layers
    assert shape.dense_layers == preset.first_k_dense_replace
    assert (shape.q_lora, shape.kv_lora) == (preset.q_lora_rank, preset.kv_lora_rank)
    assert (shape.qk_nope, shape.qk_rope, shape.v_head) == (
        preset.qk_nope_head_dim,
        preset.qk_rope_head_dim,
        preset.v_head_dim,
    )
    assert (shape.heads, shape.vocab) == (preset.num_attention_heads, preset.vocab_size)
    assert (shape.dense_intermediate, shape.expert_intermediate) == (
        preset.intermediate_size,
        preset.moe_intermediate_size,
    )
    assert (shape.routed_experts, shape.top_k) == (preset.n_routed_experts, preset.num_experts_per_tok)
    assert (shape.groups, shape.topk_groups) == (preset.n_group, preset.topk_group)


def test_attention_grows_with_kv_length_and_nothing_else_does(r1: PricedModel) -> None:
    series = [r1.layer_kernels(np.full(60, length)) for length in (512, 1024, 2048, 4096, 32768)]
    attention = [kernels[ATTENTION] for kernels in series]
    assert attention == sorted(set(attention))
    assert (attention[4] - attention[3]) == pytest.approx(28 * (attention[1] - attention[0]) * 2, rel=0.01)
    for name in (PREPROCESS, MATMUL, OTHERS):
        assert len({kernels[name] for kernels in series}) == 1


def test_attention_depends_on_the_sum_of_lengths(r1: PricedModel) -> None:
    even = r1.layer_kernels(np.array([2000, 2000]))
    assert r1.layer_kernels(np.array([1, 3999])) == even
    assert r1.layer_kernels(np.array([1, 4000]))[ATTENTION] > even[ATTENTION]


def test_matrix_products_grow_with_the_batch(r1: PricedModel) -> None:
    batches = (1, 8, 60, 120, 256, 1024)
    for series in (
        [r1.layer_kernels(np.full(rows, 100))[MATMUL] for rows in batches],
        [r1.layer_kernels(np.full(rows, 100))[PREPROCESS] for rows in batches],
        [r1.experts_kernels([rows])[MATMUL] for rows in batches],
        [r1.dense_mlp_ps(rows) for rows in batches],
        [r1.shared_ps(rows) for rows in batches],
        [r1.router_ps(rows) for rows in batches],
        [r1.head_ps(rows) for rows in batches],
        [r1.mtp_projection_ps(rows) for rows in batches],
    ):
        assert series == sorted(set(series))


def test_prefill_grows_with_length_quadratically_in_attention(r1: PricedModel) -> None:
    lengths = (256, 1024, 4096, 16384, 65536)
    series = [r1.layer_kernels(NO_DECODE, [(0, length)]) for length in lengths]
    assert [sum(k.values()) for k in series] == sorted({sum(k.values()) for k in series})
    assert series[4][ATTENTION] / series[3][ATTENTION] == pytest.approx(16, rel=0.01)
    assert series[4][MATMUL] / series[3][MATMUL] == pytest.approx(4, rel=0.01)


def test_chunks_of_a_prompt_attend_to_as_many_pairs_as_the_whole(r1: PricedModel) -> None:
    whole = r1.layer_kernels(NO_DECODE, [(0, 8192)])[ATTENTION]
    chunks = [r1.layer_kernels(NO_DECODE, [(start, 2048)])[ATTENTION] for start in range(0, 8192, 2048)]
    assert chunks == sorted(set(chunks))
    start_up = r1.prices.rate("attention_prefill").start_ps
    assert sum(chunks) - 3 * start_up == pytest.approx(whole, rel=1e-6)


def test_a_mixed_step_costs_no_more_than_its_parts(r1: PricedModel) -> None:
    decode, prefill = np.full(16, 3000), [(0, 1024), (512, 300)]
    mixed = sum(r1.layer_kernels(decode, prefill).values())
    alone = sum(r1.layer_kernels(decode).values()), sum(r1.layer_kernels(NO_DECODE, prefill).values())
    assert max(alone) < mixed < sum(alone)


def test_no_rows_cost_nothing(r1: PricedModel) -> None:
    assert set(r1.layer_kernels(NO_DECODE).values()) == {0}
    zeros = (r1.experts_ps([0, 0]), r1.shared_ps(0), r1.dense_mlp_ps(0), r1.router_ps(0), r1.head_ps(0))
    assert zeros == (0, 0, 0, 0, 0)


RATES = [key for key, spec in PROFILE_KEYS.items() if spec.unit in ("GB/s", "TFLOPS", "TOPS")]


@pytest.mark.parametrize("key", RATES)
def test_doubling_a_bandwidth_or_peak_raises_no_price(r1: PricedModel, key: str) -> None:
    faster = PricedModel.load("deepseek-r1", load_profile(overrides={key: 2 * r1.profile.value(key)}))
    decode = np.array([100, 3000, 50_000])
    steps = [(decode, [(0, 900)], 1), (np.full(60, 3072), [], 2), (NO_DECODE, [(100, 4000)], 1)]
    for kv, prefill, queries in steps:
        before, after = (m.layer_kernels(kv, prefill, queries) for m in (r1, faster))
        assert all(after[name] <= before[name] for name in before)
    for rows in (1, 120, 4096):
        assert faster.experts_ps([rows, rows]) <= r1.experts_ps([rows, rows])
        assert faster.dense_mlp_ps(rows) <= r1.dense_mlp_ps(rows)
        assert faster.head_ps(rows) + faster.router_ps(rows) <= r1.head_ps(rows) + r1.router_ps(rows)
        for ranks in (1, 8, 384):
            for costs in (lambda m: m.dispatch_costs(rows, ranks), lambda m: m.combine_costs(rows, ranks)):  # noqa: B023
                after_ps = estimate_ps(faster.profile, costs(faster), ranks, rows)
                assert after_ps <= estimate_ps(r1.profile, costs(r1), ranks, rows)


def test_memory_check(r1: PricedModel) -> None:
    r1.check_memory(2, 60 * 4096, mtp=True)  # the published deployment
    most = r1.max_kv_tokens(2)
    r1.check_memory(2, most)
    with pytest.raises(UsageError, match=rf"on a die of 64 GB.*at most {most} KV tokens fit") as raised:
        r1.check_memory(2, most + 1)
    assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match="at most 0 KV tokens fit"):
        r1.check_memory(32, 0)
    smaller = PricedModel.load("deepseek-r1", load_profile(overrides={"die.hbm_gb": 32}))
    with pytest.raises(UsageError, match="die of 32 GB"):
        smaller.check_memory(2, 60 * 4096)


def test_local_shared_experts_and_mtp_take_memory(r1: PricedModel) -> None:
    assert r1.weights_bytes(1, shared_local=True) == r1.weights_bytes(2)
    assert r1.weights_bytes(3) - r1.weights_bytes(2) == 58 * r1.expert_bytes
    extra = r1.weights_bytes(1, mtp=True) - r1.weights_bytes(1)
    assert extra == r1.attention_bytes + r1.expert_bytes + 2 * 7168 * 256 + 2 * 7168 * 7168


@pytest.mark.parametrize("executed", [1, 5, 8, 57, 58])
def test_executed_layers_stand_for_all_priced_ones(r1: PricedModel, executed: int) -> None:
    repeats = r1.repeat(executed)
    assert repeats == [len(range(j, 58, executed)) for j in range(executed)]
    assert sum(repeats) == 58


def test_executed_layers_out_of_range(r1: PricedModel) -> None:
    for executed in (0, 59):
        with pytest.raises(UsageError, match="cannot stand for 58 priced ones"):
            r1.repeat(executed)
    assert r1.repeat_dense(3) == [1, 1, 1]
    with pytest.raises(UsageError, match="4 executed dense layers cannot stand for 3"):
        r1.repeat_dense(4)


def test_routing_must_match(r1: PricedModel) -> None:
    r1.check_routing(PricedModel.load("mini", load_profile()).shape.routing)
    for name, value in r1.shape.routing.items():
        with pytest.raises(UsageError, match=f"{value} {re.escape(name)}: the model has {value + 1}"):
            r1.check_routing({**r1.shape.routing, name: value + 1})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\nlayers = ", "\nlayerz = ", "did you mean 'shape.layers'"),
        ("dense_layers = { value = 3", "dense_layers = { value = 62", "more dense layers than layers"),
        ("\ngroups = { value = 8", "\ngroups = { value = 7", "do not fit together"),
        ("top_k = { value = 8", "top_k = { value = 129", "top-k exceeds"),
        ("hidden = { value = 7168", "hidden = { value = 7168.5", "whole number of elements"),
        ("mla_int8_share = { value = 0.42", "mla_int8_share = { value = 1.1", "absurd"),
    ],
)
def test_bad_model_files(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (PRICED / "deepseek-r1.toml").read_text(encoding="utf-8")
    assert text.count(old) == 1
    path = tmp_path / "bad.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(UsageError, match=re.escape(message)):
        PricedModel.load(str(path), load_profile())
