"""One process answers touched requests under the very masks they were served under.

For each position the experts that were lost when it was computed for good are left out of routing. Outputs
that were given before the request moved to another rank are fed as they were.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from serving.job import ReplayJob, read_requests
from serving.model.kv_cache import PagedKV
from serving.model.model import Model, load_model
from serving.model.reference import LogitHash, forward
from serving.model.sampling import SamplingParams, sample
from serving.recovery.touch import ANSWERED, ASKED
from serving.request import RequestSpec

_PAGE_SIZE = 64


def answer_masked(directory: str) -> None:
    """Answer what `ASKED` holds ({request: {"history": [[position, [experts]]], "given": tokens}}); a line
    each to `ANSWERED`: id, tokens, logits_sha256."""
    place = Path(directory)
    job, specs = ReplayJob.read(place), {spec.request_id: spec for spec in read_requests(place)}
    model = load_model(job.model_dir)
    asked: dict[str, Any] = json.loads((place / ASKED).read_text())
    with open(place / ANSWERED, "w", encoding="utf-8") as file:
        for name, facts in asked.items():
            tokens, digest = _answer(model, specs[int(name)], job.sampling, facts)
            file.write(json.dumps({"id": int(name), "tokens": tokens, "logits_sha256": digest}) + "\n")


def _answer(
    model: Model, spec: RequestSpec, params: SamplingParams, facts: Mapping[str, Any]
) -> tuple[list[int], str]:
    kv = PagedKV(model.config, -(-spec.total_tokens // _PAGE_SIZE), _PAGE_SIZE)
    digest, tokens = LogitHash(), list[int]()
    masks = [(int(start), list(lost)) for start, lost in facts["history"]]
    logits = _feed(model, kv, spec.prompt.tolist(), 0, masks)
    while True:
        digest.update(logits)
        token = sample(logits, params, spec.seed, 0, len(tokens))
        given = facts["given"]
        tokens.append(given[len(tokens)] if len(tokens) < len(given) else token)
        if len(tokens) == spec.max_output:
            return tokens, digest.hexdigest()
        logits = _feed(model, kv, tokens[-1:], spec.prompt_tokens + len(tokens) - 1, masks)


def _feed(
    model: Model, kv: PagedKV, tokens: Sequence[int], start: int, masks: Sequence[tuple[int, list[int]]]
) -> torch.Tensor:
    """Append tokens at `start`, each under its mask; logits after the last, float32 [vocabulary]."""
    edges = sorted({start, *(at for at, _ in masks if start < at < start + len(tokens)), start + len(tokens)})
    for low, high in zip(edges, edges[1:], strict=False):
        lost = next((lost for at, lost in reversed(masks) if at <= low), [])
        piece = torch.tensor(tokens[low - start : high - start])
        plan = model.plan([kv.append("request", len(piece))], kv)
        biases = [(layer, layer.router_bias) for layer in model.layers if layer.is_moe]
        for layer, bias in biases:
            masked = bias.clone()
            masked[lost] = -torch.inf
            layer.set_router_bias(masked)
        x = forward(model, piece, plan)
        for layer, bias in biases:
            layer.set_router_bias(bias)
    return model.logits(x[-1:])[0]
