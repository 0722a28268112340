"""What a rank's engine calls beside its parts: what tells the host, chooses, ends and counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

import torch

from emulator.spare import give_back, trim
from serving.engine import RankRecord, Sampled, Sampler
from serving.forward import Forward
from serving.job import ReplayJob
from serving.model.kv_cache import PagedKV
from serving.model.sampling import choose, sample
from serving.model.stopping import TokenBytes, finish_of
from serving.paged import PagedScheduler
from serving.request import Request
from serving.scheduler import Scheduler


class StepProgress(Protocol):
    """Who is told how far a rank is."""

    def update(self, rank: int, ended: int, now_ps: int) -> None:
        """A step has ended: requests ended so far, virtual time."""


_TRIM_EVERY = 32


class Housekeeping:
    """What a rank does once a step for its host: show how far it is, and give freed memory back.

    What steps have touched and left as it was goes back after steps 1, 4, 16, …; freed memory after 2, 8, …
    too. An open pod serves for as long as it likes: there freed memory goes back every 32 steps.
    """

    def __init__(self, progress: StepProgress, rank: int, is_open: bool) -> None:
        self._progress, self._rank, self._is_open, self._steps = progress, rank, is_open, 0

    def __call__(self, ended: int, now_ps: int) -> None:
        self._progress.update(self._rank, ended, now_ps)
        self._steps += 1
        if self._is_open and self._steps % _TRIM_EVERY == 0:
            trim()
        elif self._steps & (self._steps - 1) == 0:  # a power of two
            if self._steps.bit_length() % 2:  # and of four
                give_back()
            else:
                trim()


def sampler_of(job: ReplayJob) -> Sampler:
    """Chooses tokens: as the job says, or as the request itself."""

    def choose_for(logits: torch.Tensor, request: Request, position: int) -> Sampled:
        spec = request.spec
        if spec.params is None:
            return Sampled(sample(logits, job.sampling, spec.seed, spec.choice, position))
        rest = (spec.seed, spec.choice, position, spec.prompt, request.outputs)
        chosen = choose(logits, spec.params, *rest)
        return Sampled(chosen.token, chosen.logprobs)

    return choose_for


def stops_of(directory: str) -> Callable[[Request], None]:
    """Ends a request whose last output says so."""
    table = TokenBytes.read(directory)

    def stop(request: Request) -> None:
        params = request.spec.params
        if params is None:
            return
        finish = finish_of(params, request.outputs, request.spec.max_output, table)
        if finish is not None and finish.reason == "stop":
            request.stop(finish.stop_reason)

    return stop


def count_cache(record: RankRecord, scheduler: Scheduler, forward: Forward, kv: PagedKV) -> None:
    """What a paged cache has done, at the end; nothing may be held any more."""
    if not isinstance(scheduler, PagedScheduler):
        record.work.kv_blocks_allocated, record.work.kv_blocks_freed = kv.pages_allocated, kv.pages_freed
        return
    cache = scheduler.kv
    cache.check_integrity(idle=True)
    record.work.kv_blocks_allocated, record.work.kv_blocks_freed = cache.hbm.allocated, cache.hbm.freed
    tiers = {"evicted": cache.hbm.evicted, "dram_evicted": cache.dram.evicted if cache.dram else 0}
    record.cache = {**asdict(scheduler.counts), **tiers, **forward.moved}
