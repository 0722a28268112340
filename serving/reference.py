"""Answer a job's requests one by one, in one process: the truth that every layout must give bit for bit.

Writes `reference.jsonl`, one line per request: id, tokens, hash of the logits. It reads the workload and
nothing else of the job: no rank, no placement, no budget.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from serving.feed import read_recording, spec_of
from serving.job import ReplayJob, read_requests
from serving.model.int8_error import logit_error
from serving.model.model import load_model
from serving.model.reference import ReferenceRequest, generate
from serving.model.stopping import TokenBytes
from serving.request import RequestSpec

NICENESS = 5


def _specs(job: ReplayJob, directory: str) -> list[RequestSpec]:
    """The workload; a recording's requests have parameters of their own, which its own file holds."""
    if not job.recording:
        return read_requests(directory)
    _, entries = read_recording(job.recording)
    return [spec_of(entry["add"], 0) for entry in entries if "add" in entry]


def answer_requests(directory: str) -> None:
    """Answer every request that fits the model's context; the others are left out, as a rank refuses them."""
    os.nice(NICENESS)
    job = ReplayJob.read(directory)
    model = load_model(job.model_dir, quantization=job.quantization)
    full = load_model(job.model_dir) if job.quantization else None
    table = TokenBytes.read(directory)
    with open(Path(directory) / "reference.jsonl", "w", encoding="utf-8") as file:
        for spec in _specs(job, directory):
            if spec.prompt_tokens + spec.max_output > model.config.max_position_embeddings:
                continue
            params, seed = spec.params or job.sampling, (spec.seed, spec.choice)
            request = ReferenceRequest(spec.prompt.tolist(), spec.max_output, params, *seed, table=table)
            (result,) = generate(model, [request])
            line: dict[str, Any] = {
                "id": spec.request_id, "tokens": result.tokens, "logits_sha256": result.logits_sha256,
            }  # fmt: skip
            if full is not None:
                tokens = [*spec.prompt.tolist(), *result.tokens[:-1]]
                line["logit_error"] = asdict(logit_error(model, full, tokens))
            file.write(json.dumps(line) + "\n")
            file.flush()
