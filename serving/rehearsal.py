"""Run a rank's whole life once in the process its ranks are forked from.

The interpreter writes to a function's own bytes while it learns to run it (specialised bytecode, caches of
methods and types, counts of references they hold), which in hundreds of forked ranks copies the same pages
hundreds of times. A process that has served a request itself has done its learning; the ranks share the
result. Nothing else is left of it: a pod of one rank without MPI, in its own memory and files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from emulator.solo import solo_device
from serving.ahead import CommonParts, make_ahead
from serving.charges import kv_capacity
from serving.job import Progress, ReplayJob
from serving.limits import exchange_sizes, job_limits, job_placement, machine_bytes
from serving.model.model import load_model
from serving.rank_main import serve_on
from serving.request import RequestSpec
from serving.series import is_series, make_series_ahead

_PROMPT, _OUTPUTS = 20, 20
"""Enough for every function of a decode step to be past the interpreter's warm-up."""


def make_ready(directory: str) -> None:
    """Make the common parts of the job in `directory` and rehearse them; those of a series are only made."""
    if is_series(directory):
        make_series_ahead(directory)
        return
    rehearse(make_ahead(directory), directory if os.access(directory, os.W_OK) else None)


def rehearse(parts: CommonParts, within: str | None = None) -> None:
    """Serve two small requests, and forget them; files for the time being lie `within` a directory, so that
    whoever removes it removes them too."""
    specs = [_request(i, parts.job, parts.config.max_position_embeddings) for i in range(2)]
    with tempfile.TemporaryDirectory(prefix="superpod-rehearsal-", dir=within) as directory:
        serve_alone(parts, specs, directory)


def serve_alone(parts: CommonParts, specs: Sequence[RequestSpec], directory: str) -> None:
    """Serve requests by one rank with all experts, without MPI; its line of result goes to `directory`."""
    config, job = parts.config, _solo_job(parts.job)
    placement = job_placement(job, config)
    limits = job_limits(job, config, kv_capacity(parts.priced, placement, job.check_memory), specs)
    sizes = exchange_sizes(job, limits, placement, config.num_experts_per_tok, specs)
    sent = config.num_experts_per_tok + placement.shared_placed
    memory = machine_bytes(sizes, sent, config.hidden_size, placement.slots_per_rank)
    model = load_model(job.model_dir, (), job.quantization, job.mtp)
    solo = CommonParts(job, config, parts.priced, placement, limits, sizes, parts.plans, [model])
    Progress(directory, 1, create=True)
    device = solo_device(profile=job.profile, set=dict(job.overrides), **memory)
    serve_on(device, directory, solo, specs)
    device.finish()
    device.memory.close()


def _solo_job(job: ReplayJob) -> ReplayJob:
    alone = replace(job, num_ranks=1, tp_size=1, check_memory=False, schedule="", redundant_experts=0)
    return replace(alone, decode=None, eplb=None, mtp_acceptance=())


def _request(number: int, job: ReplayJob, context: int) -> RequestSpec:
    outputs = min(_OUTPUTS, max(1, context // 2))
    prompt = np.zeros(min(_PROMPT, max(1, context - outputs)), np.int64)
    priced = len(prompt) * job.token_scale
    return RequestSpec(number, 0, prompt, priced, job.token_scale, outputs, False, number)
