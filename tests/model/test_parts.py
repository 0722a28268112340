"""A model computed in parts, one thread a rank: every rank has the logits of the whole, bit for bit."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from emulator.errors import UsageError
from serving.model import PRESETS, Model, PagedKV, load_model, make_checkpoint
from serving.model.blocks import BlockAttention
from serving.model.part import Part, check_parts
from serving.model.reference import forward
from serving.model.rows import RowFunction, bits_equal


class Meeting:
    """Columns of threads that meet."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=120)
        self.slots: list[torch.Tensor] = [torch.empty(0)] * size

    def gather(self, index: int, columns: torch.Tensor) -> torch.Tensor:
        self.slots[index] = columns
        self.barrier.wait()
        found = torch.cat(list(self.slots), -1)
        self.barrier.wait()
        return found


def logits_of(model: Model, tokens: torch.Tensor) -> torch.Tensor:
    """A prefill in two chunks and two decodes, beside a second sequence: logits of every row."""
    kv = PagedKV(model.kv_config, 64)
    found = []
    for first, end in ((0, 70), (70, 130), (130, 131), (131, 132)):
        segments = [kv.append("a", end - first), kv.append("b", 1)]
        rows = torch.cat((tokens[first:end], tokens[end : end + 1]))
        found.append(model.logits(forward(model, rows, model.plan(segments, kv))))
    kv.free("a")
    kv.free("b")
    return torch.cat(found)


def in_parts(directory: Path, size: int, quantization: Any = None) -> list[tuple[Model, torch.Tensor]]:
    meeting = Meeting(size)
    results: dict[int, tuple[Model, torch.Tensor]] = {}
    errors: list[BaseException] = []
    tokens = torch.randint(0, 64, (200,), generator=torch.Generator().manual_seed(1))

    def one(index: int) -> None:
        try:
            part = Part(index, size)
            model = load_model(directory, quantization=quantization, part=part)
            for layer in model.layers:
                layer.prove()  # before the ranks are connected
            part.gather = lambda what, columns: meeting.gather(index, columns)
            results[index] = (model, logits_of(model, tokens))
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=one, args=(index,)) for index in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[index] for index in range(size)]


CASES = [
    ("tiny", {}, 2, None),
    ("tiny", {"q_lora_rank": None, "n_shared_experts": 2}, 4, None),
    ("tiny", {}, 2, "int8"),
    ("qwen3-moe-tiny", {}, 2, None),
    ("qwen3-moe-tiny", {"first_k_dense_replace": 1, "tie_word_embeddings": True}, 4, None),
]


@pytest.mark.parametrize(("preset", "changes", "size", "quantization"), CASES)
def test_parts_have_the_bits_of_the_whole(
    preset: str, changes: dict[str, Any], size: int, quantization: Any, tmp_path: Path
) -> None:
    """Fails with partial sums added up (a split reduction), a head of a neighbour, or another KV head."""
    make_checkpoint(tmp_path, PRESETS[preset].model_copy(update=changes), seed=3)
    whole = load_model(tmp_path, quantization=quantization)
    tokens = torch.randint(0, 64, (200,), generator=torch.Generator().manual_seed(1))
    wanted = logits_of(whole, tokens)
    for model, logits in in_parts(tmp_path, size, quantization):
        assert bits_equal(logits, wanted)
        kept = getattr(model.kv_config, "num_key_value_heads", 0)
        assert kept == (max(1, 2 // size) if preset.startswith("qwen") else 0)


@pytest.mark.parametrize("way", ["columns", "heads"])
def test_what_is_not_proven_is_computed_whole(way: str, tmp_path: Path, monkeypatch: Any) -> None:
    """No shard's bits are trusted: the whole is computed and cut, with the same result."""
    if way == "columns":
        settled = RowFunction._settle

        def distrust(self: RowFunction, shapes: tuple[object, ...], rows: Any) -> None:
            if self._truth is not None:
                self._proofs._known[self._name, shapes, "part"] = False
            settled(self, shapes, rows)

        monkeypatch.setattr(RowFunction, "_settle", distrust)
    else:
        monkeypatch.setattr(BlockAttention, "_prove_among", lambda *arguments: False)
    make_checkpoint(tmp_path, PRESETS["tiny"], seed=3)
    tokens = torch.randint(0, 64, (200,), generator=torch.Generator().manual_seed(1))
    wanted = logits_of(load_model(tmp_path), tokens)
    for model, logits in in_parts(tmp_path, 2):
        assert bits_equal(logits, wanted)
        if way == "columns":
            assert any(str(key[0]).endswith(".whole") for key in model.proofs.verdicts())


@pytest.mark.parametrize(
    ("preset", "size", "said"),
    [
        ("tiny", 3, "num_attention_heads=4, hidden_size=32, .*nearest is 2"),
        ("tiny", 8, "num_attention_heads=4 .*nearest is 4"),
        ("qwen3-moe-mini", 16, "num_attention_heads=8 .*nearest is 8"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(preset: str, size: int, said: str) -> None:
    check_parts(PRESETS[preset], 2)
    with pytest.raises(UsageError, match=said):
        check_parts(PRESETS[preset], size)
