"""Compiled pieces give the bits of plain torch, and are used only where they do.

Broken builds these tests were shown to fail on: products without fused multiply-adds, `largest` preferring
the last of equals, a row that sees the key after its own.
"""

from pathlib import Path

import pytest
import torch

from serving.model import PRESETS, Model, PagedKV, fused, load_model, make_checkpoint
from serving.model.reference import forward
from serving.model.rows import Proofs, RowFunction, bits_equal

pytestmark = pytest.mark.skipif(fused._library() is None, reason="no compiled pieces here")

OVERRIDES = (
    {},
    {"rope_interleave": False, "norm_topk_prob": False},
    {"q_lora_rank": None, "n_group": 1, "topk_group": 1},
)


def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and experts that are opened from now on are in plain torch."""
    monkeypatch.setattr(fused, "_library", lambda: None)


def logits(model: Model, tokens: torch.Tensor, chunks: list[int]) -> torch.Tensor:
    """Logits of every position of one sequence that comes in these chunks."""
    kv, parts = PagedKV(model.config, 64, 7), []
    for chunk in torch.split(tokens, chunks):
        parts.append(model.logits(forward(model, chunk, model.plan([kv.append(0, len(chunk))], kv))))
    return torch.cat(parts)


@pytest.mark.parametrize("overrides", OVERRIDES)
def test_logits_are_those_of_plain_torch(
    overrides: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint(tmp_path, PRESETS["tiny"].model_copy(update=overrides), seed=3)
    ours = load_model(tmp_path)
    tokens = torch.randint(0, ours.config.vocab_size, (203,), generator=torch.Generator().manual_seed(4))
    got = logits(ours, tokens, [130, 1, 1, 37, 34])
    plain(monkeypatch)
    theirs = load_model(tmp_path)
    assert bits_equal(got, logits(theirs, tokens, [203]))
    compiled = [holds for key, holds in ours.proofs.verdicts().items() if "fused" in key]
    assert compiled and all(compiled)
    assert not any("fused" in key for key in theirs.proofs.verdicts())


def test_attention_of_the_mini_model_is_compiled(mini: Model) -> None:
    mini.layers[3].prove()
    assert [holds for key, holds in mini.proofs.verdicts().items() if key[0] == "attention.fused"] == [True]


def test_equal_scores_go_to_the_lower_expert(mini_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = load_model(mini_dir)
    gate = ours.layers[3].router_weight.clone()
    gate = gate[torch.arange(len(gate)) // 3 * 3]  # three neighbours score alike, and 8 are chosen
    bias = torch.zeros(len(gate))
    h = torch.randn(65, gate.shape[1], generator=torch.Generator().manual_seed(5))
    routed = []
    for model in (ours, load_model(mini_dir)):
        model.layers[3].set_router_weight(gate)
        model.layers[3].set_router_bias(bias)
        routed.append(model.layers[3].route(h))
        plain(monkeypatch)
    for a, b in zip(*routed, strict=True):
        assert bits_equal(a, b)
    verdicts = ours.proofs.verdicts().items()
    assert [holds for key, holds in verdicts if key[0] == "route" and "fused" in key] == [True]
    assert not any("fused" in key for key in model.proofs.verdicts())


def test_a_piece_with_other_bits_is_not_used() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2,)

    def other(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.nextafter(x * 2, torch.tensor(9.0)),)

    x = torch.randn(3, 8)
    for candidate, used in ((function, True), (other, False)):
        proofs = Proofs()
        assert bits_equal(RowFunction("f", function, proofs, fused=candidate)(x)[0], x * 2)
        assert [holds for key, holds in proofs.verdicts().items() if key[2] == "fused"] == [used]


def test_no_rows(mini: Model) -> None:
    assert mini.layers[3].norm(torch.empty(0, mini.config.hidden_size)).shape == (0, mini.config.hidden_size)
    assert mini.layers[3].route(torch.empty(0, mini.config.hidden_size))[0].shape[0] == 0
