"""What is alike on every rank of a job, made once where the ranks are forked from one process.

Ranks that inherit it share its memory, and each saves the time of making it. A rank that inherits nothing
(started another way, or where making it ahead failed) makes its own, with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from emulator.profile import Profile, load_profile
from serving.charges import LayerPlan, kv_capacity, plan_layers
from serving.job import ReplayJob, read_requests
from serving.limits import ExchangeSizes, exchange_sizes, job_limits, job_placement
from serving.model.config import ModelConfig
from serving.model.model import Model, load_model
from serving.model.part import Part
from serving.model.sampling import sample
from serving.placement import Placement
from serving.pricing import PricedModel
from serving.request import RequestSpec
from serving.scheduler import SchedulerLimits
from serving.tensor.price import shard


@dataclass(frozen=True)
class CommonParts:
    """Parts of a rank that do not depend on which rank it is; the models have no routed experts open yet.

    models: one for each rank of a tensor-parallel group, in order; else the one.
    """

    job: ReplayJob
    config: ModelConfig
    priced: PricedModel
    placement: Placement
    limits: SchedulerLimits
    sizes: ExchangeSizes
    plans: Sequence[LayerPlan]
    models: Sequence[Model]

    @property
    def model(self) -> Model:
        """The model, of the first rank of a group."""
        return self.models[0]


_ahead: dict[str, tuple[list[RequestSpec], CommonParts]] = {}


def make_ahead(directory: str) -> CommonParts:
    """Make the common parts of the job in `directory` for the processes to be forked from this one, and prove
    there what each of them would prove (`model/rows.py`: a proof holds for the machine and the build)."""
    job, specs = ReplayJob.read(directory), read_requests(directory)
    parts = _make(job, specs, load_profile(job.profile, job.overrides))
    longest = max((spec.total_tokens for spec in specs), default=1)
    for model in parts.models:
        model.prove(longest)
    sample(torch.zeros(parts.config.vocab_size), job.sampling, 0, 0, 0)
    _ahead[str(Path(directory).resolve())] = specs, parts
    return parts


def forget() -> None:
    """Drop what was made ahead."""
    _ahead.clear()


def job_requests(directory: str) -> Sequence[RequestSpec]:
    """The workload of the job in `directory`."""
    made = _ahead.get(str(Path(directory).resolve()))
    return made[0] if made else read_requests(directory)


def common_parts(job: ReplayJob, specs: Sequence[RequestSpec], profile: Profile) -> CommonParts:
    """The common parts of a job: inherited where they were made ahead from equal settings, else made now."""
    for ahead_specs, parts in _ahead.values():
        if ahead_specs is specs and parts.job == job and parts.priced.profile.hash() == profile.hash():
            return parts
    return _make(job, specs, profile)


def make_parts(job: ReplayJob, specs: Sequence[RequestSpec], like: CommonParts | None = None) -> CommonParts:
    """The common parts of a job, with the models of another one of the same checkpoint if there is one."""
    return _make(job, specs, load_profile(job.profile, job.overrides), () if like is None else like.models)


def _make(
    job: ReplayJob, specs: Sequence[RequestSpec], profile: Profile, known: Sequence[Model] = ()
) -> CommonParts:
    models: list[Model] = list(known)
    for index in range(len(models), job.tp_size):
        like = models[0] if models else None
        part = Part(index, job.tp_size)
        models.append(load_model(job.model_dir, (), job.quantization, job.mtp, part, like))
    config = models[0].config
    priced = shard(PricedModel.load(job.priced_as, profile, job.priced_overrides), job.tp_size)
    placement = job_placement(job, config)
    limits = job_limits(job, config, kv_capacity(priced, placement, job.check_memory), specs)
    sizes = exchange_sizes(job, limits, placement, config.num_experts_per_tok, specs)
    plans = plan_layers(config, priced)
    return CommonParts(job, config, priced, placement, limits, sizes, plans, models)
