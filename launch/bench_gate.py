"""Routing of a benchmark from a model's own gate: seeded tokens walk through the model up to a MoE layer.

What needs torch is done by a process of its own, `python -m launch.bench_gate`: this one would hold it as
long as ranks run. The ranks read its two files (`collectives.bench.ep_shapes.choices`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.bench.ep_shapes import GATE_IDS, GATE_WEIGHTS, EpSpec
from emulator.errors import SuperpodError, UsageError
from serving.model import ModelConfig, preset_config

if TYPE_CHECKING:
    import torch

    from serving.model import Layer, Model

_PRESET = "mini"
_LENGTH, _BATCH = 8, 512
"""Tokens of a sequence, sequences of a step."""


class Gate(NamedTuple):
    """A router: model (a checkpoint's directory, or "" for the mini preset of the seed), its MoE layer,
    routed experts and experts of a token."""

    model: str
    layer: int
    experts: int
    topk: int


def find_gate(
    model: Path | None, layer: int | None, experts: int | None, topk: int | None, ranks: int
) -> Gate:
    """The router that options ask for; experts and topk are the model's. Raises: UsageError."""
    config = preset_config(_PRESET) if model is None else ModelConfig.from_hf(model)
    name = f"preset {_PRESET}" if model is None else str(model)
    first, last = config.first_k_dense_replace, config.num_hidden_layers - 1
    if first > last:
        raise UsageError(f"--model {name}: no layer of it has routed experts")
    at = first if layer is None else layer
    if not first <= at <= last:
        raise UsageError(f"--layer {at}: MoE layers of {name} are {first} to {last}")
    for option, asked, has in (
        ("--experts", experts, config.n_routed_experts),
        ("--topk", topk, config.num_experts_per_tok),
    ):
        if asked not in (None, has):
            raise UsageError(f"{option} {asked}: {name} has {has}; leave {option} out")
    count = config.n_routed_experts
    if count % ranks:
        near = min((n for n in range(1, count + 1) if count % n == 0), key=lambda n: (abs(n - ranks), n))
        raise UsageError(f"-n {ranks}: the {count} experts of {name} are not shared equally; nearest: {near}")
    return Gate("" if model is None else str(model), at, count, config.num_experts_per_tok)


def draw(spec: EpSpec, ranks: int) -> None:
    """Write the choices of all ranks into the folder of a specification. Raises: UsageError."""
    words = json.dumps([spec.model, spec.layer, ranks, spec.tokens, spec.seed, spec.folder])
    command = [sys.executable, "-P", "-m", "launch.bench_gate", words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or [f"its process ended with {ended.returncode}"]
        raise UsageError(f"--routing gate: {said[-1]}")


def main(text: str) -> None:
    """Draw and write: ids int64 and weights float32, both [ranks, tokens, topk], rank by rank."""
    from serving import model as models

    directory, layer, ranks, tokens, seed, folder = json.loads(text)
    if not directory:
        directory = str(Path(folder) / "model")
        models.make_checkpoint(directory, _PRESET, seed)
    config = ModelConfig.from_hf(directory)
    needed = None if layer > config.first_k_dense_replace else ()
    ids, weights = choices(models.load_model(directory, needed), layer, drawn(config, ranks, tokens, seed))
    shape = (ranks, tokens, config.num_experts_per_tok)
    np.save(Path(folder) / GATE_IDS, ids.reshape(shape))
    np.save(Path(folder) / GATE_WEIGHTS, weights.reshape(shape))


def drawn(config: ModelConfig, ranks: int, tokens: int, seed: int) -> npt.NDArray[np.int64]:
    """int64 [ranks, tokens]: token ids; those of a rank depend on the seed and the rank only."""
    rows = [
        np.random.default_rng([seed, rank, 4]).integers(0, config.vocab_size, tokens) for rank in range(ranks)
    ]
    return np.stack(rows)


def choices(
    model: Model, layer: int, tokens: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """What the router of a layer chooses for tokens [ranks, n], in sequences of a few tokens of one rank.

    Returns:
        ids int64 and weights float32, [ranks * n, topk], experts of a token ascending.
    """
    length = min(_LENGTH, model.config.max_position_embeddings)
    pieces = [row[at : at + length] for row in tokens for at in range(0, row.size, length)]
    parts = [_routed(model, layer, pieces[at : at + _BATCH]) for at in range(0, len(pieces), _BATCH)]
    return np.concatenate([ids for ids, _ in parts]), np.concatenate([weights for _, weights in parts])


def _routed(
    model: Model, layer: int, pieces: list[npt.NDArray[np.int64]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Walk sequences, each from its start, up to the router of a layer."""
    import torch

    from serving.model import PagedKV

    kv = PagedKV(model.config, len(pieces))
    plan = model.plan([kv.append(i, piece.size) for i, piece in enumerate(pieces)], kv)
    x = model.embed(torch.from_numpy(np.concatenate(pieces)))
    for below in model.layers[:layer]:
        x = below.attention(x, plan)
        x = x + _mlp(below, below.norm(x))
    at = model.layer(layer)
    ids, weights = at.route(at.norm(at.attention(x, plan)))
    return ids.numpy(), weights.numpy()


def _mlp(layer: Layer, h: torch.Tensor) -> torch.Tensor:
    from serving.model.reference import routed_experts

    return routed_experts(layer, h) + layer.shared(h) if layer.is_moe else layer.dense(h)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except SuperpodError as error:
        sys.exit(str(error))
