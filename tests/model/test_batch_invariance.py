"""A position's logits have the same bits alone, batched, chunked, decoded, recomputed, in any page layout."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from serving.model import (
    PRESETS,
    Model,
    PagedKV,
    Segment,
    combine_in_order,
    load_model,
    make_checkpoint,
)
from serving.model import rows as rows_module
from serving.model.layers import Layer
from serving.model.plan import StepPlan
from serving.model.reference import forward
from serving.model.rows import Proofs, RowFunction, bits_equal

Tokens = torch.Tensor


def alone(model: Model, tokens: Tokens) -> torch.Tensor:
    """Logits of every position, one sequence in one chunk."""
    kv = PagedKV(model.config, -(-len(tokens) // 16))
    return model.logits(forward(model, tokens, model.plan([kv.append(0, len(tokens))], kv)))


def scattered_experts(layer: Layer, h: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """The routed part, rows of an expert shuffled and cut into random calls, as ranks and replicas would."""
    idx, weights = layer.route(h)
    flat = idx.flatten().numpy()
    out = torch.empty(len(flat), h.shape[1])
    for expert in np.unique(flat):
        places = rng.permutation(np.flatnonzero(flat == expert))
        for part in np.array_split(places, int(rng.integers(1, 4))):
            if len(part):
                out[torch.from_numpy(part)] = layer.expert(
                    int(expert), h[torch.from_numpy(part // idx.shape[1])]
                )
    return combine_in_order(out.view(*idx.shape, -1), weights)


def scattered_forward(model: Model, tokens: Tokens, plan: StepPlan, rng: np.random.Generator) -> torch.Tensor:
    x = model.embed(tokens)
    for layer in model.layers:
        x = layer.attention(x, plan)
        h = layer.norm(x)
        x = x + (layer.joined(scattered_experts(layer, h, rng), h) if layer.is_moe else layer.dense(h))
    return x


def random_schedule(
    model: Model, sequences: Sequence[Tokens], page_size: int, max_chunk: int, rng: np.random.Generator
) -> list[torch.Tensor]:
    """Logits of every position when sequences advance by random chunks in random company, order and pages."""
    total_pages = sum(-(-len(tokens) // page_size) for tokens in sequences)
    kv = PagedKV(model.config, total_pages + 3, page_size)
    for dummy in ("a", "b", "c"):
        kv.append(dummy, page_size)
    rng.shuffle(kv._free)
    kv.pages[:, 1:, :, :-1].normal_(
        generator=torch.Generator().manual_seed(1)
    )  # what an earlier owner left behind
    done = [0] * len(sequences)
    logits: list[list[torch.Tensor]] = [[] for _ in sequences]
    while any(count < len(tokens) for count, tokens in zip(done, sequences, strict=True)):
        open_ = [i for i, tokens in enumerate(sequences) if done[i] < len(tokens)]
        chosen = [int(i) for i in rng.permutation(open_)[: rng.integers(1, len(open_) + 1)]]
        lengths = [min(int(rng.integers(1, max_chunk + 1)), len(sequences[i]) - done[i]) for i in chosen]
        segments = [kv.append(i, length) for i, length in zip(chosen, lengths, strict=True)]
        tokens = torch.cat([sequences[s.sequence][s.start : s.start + s.length] for s in segments])
        out = model.logits(scattered_forward(model, tokens, model.plan(segments, kv), rng))
        for i, part in zip(chosen, out.split(lengths), strict=True):
            logits[i].append(part)
            done[i] += len(part)
    kv.check_integrity()
    for i in range(len(sequences)):
        kv.free(i)
    kv.check_integrity()
    return [torch.cat(parts) for parts in logits]


def random_sequences(model: Model, lengths: Sequence[int], seed: int) -> list[Tokens]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, model.config.vocab_size, (length,), generator=generator) for length in lengths]


def assert_same(model: Model, lengths: Sequence[int], page_size: int, max_chunk: int, seed: int) -> None:
    print(f"seed {seed}, page size {page_size}, chunks up to {max_chunk}, lengths {list(lengths)}")
    sequences = random_sequences(model, lengths, seed)
    rng = np.random.default_rng(seed)
    for tokens, got in zip(
        sequences, random_schedule(model, sequences, page_size, max_chunk, rng), strict=True
    ):
        assert bits_equal(got, alone(model, tokens))


@pytest.mark.parametrize("page_size", [1, 7, 16, 64, 100])
@pytest.mark.parametrize("max_chunk", [1, 5, 37, 150])
def test_random_company(tiny: Model, page_size: int, max_chunk: int) -> None:
    rng = np.random.default_rng(page_size * 1000 + max_chunk)
    lengths = rng.integers(1, 150 if max_chunk > 1 else 70, size=5).tolist()
    assert_same(tiny, lengths, page_size, max_chunk, seed=page_size + max_chunk)


def test_long_contexts_padded_to_longer_ones(tiny: Model) -> None:
    """Decodes over 33 to 64 key blocks in one batch equal themselves alone (random cache, attention only)."""
    lengths = [2100, 3900, 2500, 4030]
    kv = PagedKV(tiny.config, sum(-(-length // 16) for length in lengths) + len(lengths), 16)
    kv.pages[:, 1:, :, :-1].normal_(generator=torch.Generator().manual_seed(2))
    for number, length in enumerate(lengths):
        kv.append(number, length)
    plan = tiny.plan([kv.append(number, 1) for number in range(len(lengths))], kv)
    assert [job.num_sequences for job in plan.jobs] == [4]
    x = torch.randn((4, tiny.config.hidden_size), generator=torch.Generator().manual_seed(3))
    together = tiny.layer(0).attention(x, plan)
    for number, length in enumerate(lengths):
        single = tiny.plan([Segment(number, length, 1)], kv)
        assert bits_equal(tiny.layer(0).attention(x[number : number + 1], single)[0], together[number])


ODD = {
    "hidden_size": 36,
    "intermediate_size": 30,
    "moe_intermediate_size": 15,
    "q_lora_rank": 10,
    "kv_lora_rank": 11,
    "qk_nope_head_dim": 5,
    "qk_rope_head_dim": 6,
    "v_head_dim": 7,
    "vocab_size": 51,
}


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_odd_shapes(heads: int, tmp_path: Path) -> None:
    """Few heads and widths that fit no vector register: more proofs are refused, the bits stay the same."""
    config = PRESETS["tiny"].model_copy(update=ODD | {"num_attention_heads": heads})
    make_checkpoint(tmp_path, config, seed=heads)
    model = load_model(tmp_path)
    assert_same(model, [70, 3, 130, 65], page_size=5, max_chunk=40, seed=heads)
    assert_same(model, [12, 13, 14, 20, 30], page_size=5, max_chunk=1, seed=heads)
    print("refused:", [key for key, holds in model.proofs.verdicts().items() if not holds])


def test_random_company_mini(mini: Model) -> None:
    assert_same(mini, [3, 64, 65, 130, 200], page_size=16, max_chunk=60, seed=11)


@pytest.mark.parametrize("batch", range(1, 71))
def test_decode_batch_of_any_size(tiny: Model, batch: int) -> None:
    """Row 0 of a decode step with `batch` sequences of unequal length equals its step alone."""
    lengths = [40] + [1 + (i * 37) % 90 for i in range(1, batch)]
    sequences = random_sequences(tiny, [length + 1 for length in lengths], batch)
    kv = PagedKV(tiny.config, sum(-(-(length + 1) // 8) for length in lengths), 8)
    segments = [kv.append(i, length) for i, length in enumerate(lengths)]
    forward(tiny, torch.cat([s[:-1] for s in sequences]), tiny.plan(segments, kv))
    plan = tiny.plan([kv.append(i, 1) for i in range(batch)], kv)
    got = tiny.logits(forward(tiny, torch.cat([s[-1:] for s in sequences]), plan))
    assert bits_equal(got[:1], alone(tiny, sequences[0])[-1:])


def test_padding_blocks_change_nothing(tiny: Model) -> None:
    """A short sequence decoded beside a very long one is padded to its key blocks."""
    assert_same(tiny, [200, 1000, 193], page_size=16, max_chunk=400, seed=5)


@pytest.mark.parametrize("count", range(1, 71))
def test_expert_rows_of_any_number(mini: Model, count: int) -> None:
    rows = torch.randn((count, mini.config.hidden_size), generator=torch.Generator().manual_seed(count))
    layer = mini.layer(3)
    want = torch.cat([layer.expert(7, row.unsqueeze(0)) for row in rows])
    assert bits_equal(layer.expert(7, rows), want)
    assert bits_equal(layer.expert(7, rows.flip(0)), want.flip(0))


def test_unaligned_rows_give_the_same_bits(mini: Model) -> None:
    hidden = mini.config.hidden_size
    storage = torch.randn(70 * hidden + 3, generator=torch.Generator().manual_seed(3))
    for offset in (1, 2, 3):
        rows = storage[offset : offset + 70 * hidden].view(70, hidden)
        assert bits_equal(mini.layer(4).expert(5, rows), mini.layer(4).expert(5, rows.clone()))


def test_the_tile_is_what_makes_it_invariant(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tiles a row alone differs from the same row in a batch: the tests above can fail."""

    def unpadded(self: RowFunction, *rows: torch.Tensor) -> rows_module.Rows:
        return self._function(*rows)

    monkeypatch.setattr(RowFunction, "__call__", unpadded)
    broken = load_model(tiny_dir)
    sequences = random_sequences(broken, [40] * 5, 1)
    differing = 0
    for tokens, got in zip(
        sequences, random_schedule(broken, sequences, 16, 3, np.random.default_rng(1)), strict=True
    ):
        differing += not bits_equal(got, alone(broken, tokens))
    assert differing > 0


class TestRowFunction:
    """The proofs refuse what is not invariant and fall back to what is."""

    def test_refused_size_is_not_used(self) -> None:
        """A function whose bits differ except in tiles of 4 and 8 is called with those only."""
        sizes: list[int] = []

        def function(x: torch.Tensor) -> rows_module.Rows:
            sizes.append(x.shape[0])
            return (x * (1.0 if x.shape[0] in (4, 8) else 1.0 + 2**-20),)

        tiled = RowFunction("sized", function, Proofs())
        x = torch.randn((61, 3), generator=torch.Generator().manual_seed(0))
        assert bits_equal(tiled(x)[0], x)
        sizes.clear()
        assert bits_equal(tiled(x)[0], x)
        assert set(sizes) <= {4, 8}

    def test_place_in_the_tile_matters_so_rows_go_alone(self) -> None:
        def function(x: torch.Tensor) -> rows_module.Rows:
            scale = torch.ones(x.shape[0], 1)
            scale[1:] += 2**-20
            return (x * scale,)

        tiled = RowFunction("placed", function, Proofs())
        x = torch.randn((13, 3), generator=torch.Generator().manual_seed(0))
        assert bits_equal(tiled(x)[0], x)

    def test_no_rows(self, tiny: Model) -> None:
        assert tiny.layer(1).expert(0, torch.empty(0, tiny.config.hidden_size)).shape == (0, 32)
        idx, weights = tiny.layer(1).route(torch.empty(0, tiny.config.hidden_size))
        assert idx.shape == weights.shape == (0, 2)
        assert idx.dtype == torch.int64


def test_attention_by_tiles_equals_batched(mini: Model) -> None:
    """The slow ground truth itself, taken when a proof fails, gives the same bits as the batched path."""

    tokens = random_sequences(mini, [150], 9)[0]
    want = alone(mini, tokens)
    slow = Model(mini.config, mini.files, range(mini.config.n_routed_experts))
    holds = slow.proofs.holds
    slow.proofs.holds = lambda key, prove: False if key[0] == "attention.blocks" else holds(key, prove)  # type: ignore[method-assign]
    assert bits_equal(alone(slow, tokens), want)
