"""A measured decode step over threads: every priced layer is a call, the answers are the reference's."""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_pod import AddingClock, Board, LocalLink, LocalStatus, load_priced

from emulator.errors import InternalError
from emulator.profile import load_profile
from serving.charges import Charges, plan_layers
from serving.decode.charges import moe_passes, step_kernels
from serving.decode.forward import DecodeForward, skew_router
from serving.decode.jitter import Jitter
from serving.decode.settings import (
    WARM_STEPS,
    decode_job,
    decode_requests,
)
from serving.engine import RankRecord, Sampled, ServingEngine
from serving.fixed import deciders
from serving.job import DecodeOptions, ReplayJob
from serving.limits import job_limits
from serving.model.checkpoint import make_checkpoint
from serving.model.config import ModelConfig, preset_config
from serving.model.kv_cache import PagedKV
from serving.model.model import load_model
from serving.model.reference import ReferenceRequest, generate
from serving.model.sampling import GREEDY, sample
from serving.placement import PlacementOptions, place_experts
from serving.price_tables import COMBINE, DISPATCH, DecodeCase, decode_kernels
from serving.pricing import PricedModel

RANKS, BATCH, CONTEXT, SCALE, PASSES = 3, 4, (2048, 4096), 1024, 9
"""PASSES: 8 priced MoE layers of the tiny priced model and the MTP layer."""
MS = 10**9
Link = Callable[..., LocalLink]


def tiny_job(model: str, priced: str, **changes: Any) -> ReplayJob:
    options = DecodeOptions(steps=2)
    job = decode_job(model, RANKS, BATCH, CONTEXT, options, {}, priced_as=priced, token_scale=SCALE)
    return replace(job, check_memory=False, **changes)


class CountingLink(LocalLink):
    """Counts calls and keeps what they were charged."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.dispatched: list[tuple[int, int]] = []
        self.combined = 0

    def dispatch(self, x: Any, slots: Any, shares: Any, costs: Any) -> Any:
        self.dispatched.append((int(shares.sum()), costs.row_bytes))
        return super().dispatch(x, slots, shares, costs)

    def combine(self, *args: Any) -> Any:
        self.combined += 1
        return super().combine(*args)


class LossyLink(CountingLink):
    """A broken machine: the second pass of an executed layer combines into something else."""

    def combine(self, *args: Any) -> Any:
        out = super().combine(*args)
        if self.combined > 2 + 2 and self._rank == 1:  # the prefill's two calls, then layers 0 and 1
            out[0, 0] += 1
        return out


class Pod:
    """`RANKS` threads that run a decode job."""

    def __init__(self, job: ReplayJob, link: Link = CountingLink, jitter: Jitter | None = None) -> None:
        self.job, self.make_link, self.jitter = job, link, jitter or Jitter()
        self.config = ModelConfig.from_hf(job.model_dir)
        self.priced = load_priced(job.priced_as)
        self.placement = place_experts(RANKS, self.config.n_routed_experts, 2, PlacementOptions("placed"))
        assert job.decode is not None
        self.specs = decode_requests(RANKS, BATCH, CONTEXT, SCALE, job.decode.steps, 64, job.seed)
        self.limits = job_limits(job, self.config, 1 << 40, self.specs)
        self.board = Board(RANKS)
        self.ends: list[Any] = [None] * RANKS
        self.errors: list[BaseException] = []

    def run(self) -> list[tuple[RankRecord, AddingClock, CountingLink]]:
        threads = [threading.Thread(target=self._guarded, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        return self.ends

    def _guarded(self, rank: int) -> None:
        try:
            self.ends[rank] = self._serve(rank)
        except BaseException as error:
            self.errors.append(error)
            self.board.barrier.abort()

    def _serve(self, rank: int) -> Any:
        held = [e for e in self.placement.experts_on(rank) if e < self.placement.num_routed]
        model = load_model(self.job.model_dir, held)
        kv = PagedKV(model.config, self.limits.kv_blocks, self.limits.block_tokens)
        clock, record = AddingClock(), RankRecord()
        link = self.make_link(self.board, rank, self.placement, model.config.hidden_size)
        charges = Charges(self.priced, RANKS, shared_local=False)
        parts = (rank, clock, model, plan_layers(self.config, self.priced), charges, self.placement, link, kv)
        assert self.job.decode is not None
        forward = DecodeForward(*parts, record.time, self.job.decode, self.jitter, record.decode)
        scheduler, dispatcher = deciders(self.job, self.specs, self.limits, rank)

        def sampler(logits: Any, request: Any, position: int) -> Sampled:
            return Sampled(sample(logits, GREEDY, request.spec.seed, 0, position))

        status = LocalStatus(self.board, rank)
        ServingEngine(
            rank, clock, status, forward, scheduler, dispatcher, sampler, record, lambda ended, now: None
        ).run()  # fmt: skip
        return record, clock, link


def answers(ends: list[Any]) -> dict[int, tuple[list[int], str]]:
    return {
        request.spec.request_id: (request.outputs, record.logits[request.spec.request_id].hexdigest())
        for record, _, _ in ends
        for request in record.requests
    }


@pytest.fixture(scope="module")
def job(tiny_model: str, tiny_priced: str) -> ReplayJob:
    return tiny_job(tiny_model, tiny_priced)


@pytest.fixture(scope="module")
def ends(job: ReplayJob) -> list[tuple[RankRecord, AddingClock, CountingLink]]:
    return Pod(job).run()


def test_answers_are_those_of_one_process(ends: list, job: ReplayJob) -> None:
    """Further passes of a layer send rows and change nothing."""
    specs = decode_requests(RANKS, BATCH, CONTEXT, SCALE, 2, 64, job.seed)
    wanted = generate(job.model_dir, [ReferenceRequest(s.prompt.tolist(), s.max_output) for s in specs])
    assert answers(ends) == {i: (list(r.tokens), r.logits_sha256) for i, r in enumerate(wanted)}
    assert hashlib.sha256(b"").hexdigest() not in {text for _, text in answers(ends).values()}


def test_every_priced_layer_is_a_call_of_all_rows(ends: list) -> None:
    prefill, steps = 2, WARM_STEPS + 2
    for record, _, link in ends:
        assert len(link.dispatched) == link.combined == prefill + steps * PASSES
        one = [rows for rows, _ in link.dispatched[prefill:]]
        assert set(one) == {BATCH * 2}  # a row for each sequence stands for two
        assert {size for _, size in link.dispatched[prefill:]} == {7680}  # not for several layers
        assert len(record.decode) == steps
        for step in record.decode:
            assert len(step["dispatch_ps"]) == len(step["combine_ps"]) == PASSES
    received = sum(sum(record.decode[0]["expert_rows"]) for record, _, _ in ends)
    assert received == PASSES * RANKS * BATCH * 2 * 3  # two experts and the placed shared one


def test_a_step_is_charged_its_kernels_and_nothing_else(ends: list, job: ReplayJob) -> None:
    """The links here take no time, so a step is the sum of its kernels; they are the closed form's."""
    priced, options = load_priced(job.priced_as), job.decode
    assert options is not None
    for record, _, _ in ends:
        kv = [request.spec.priced_prompt + 1 for request in record.requests]
        kernels = step_kernels(priced, np.array(kv), options)
        fixed = 8 * sum(kernels.attention.values()) + sum(kernels.dense_layer.values())
        fixed += 2 * sum(kernels.head.values()) + sum(kernels.join.values()) + sum(kernels.attention.values())
        first = record.decode[0]
        assert sum(first["kernels"].values()) == first["end_ps"] - first["begin_ps"] > fixed
        assert first["jitter_ps"] == 0


def test_jitter_lengthens_computing_by_what_it_says(job: ReplayJob) -> None:
    """And nothing else: kernels and answers stay. Mutation: dropping the delay in `_block` fails here."""
    jitter = Jitter(5, 100 * 10**6, 0.01, 0.01, 0.05, 250 * 10**6, 10**6)
    calm, uneven = Pod(job).run(), Pod(job, jitter=jitter).run()
    assert answers(calm) == answers(uneven)
    for (before, _, _), (after, _, _) in zip(calm, uneven, strict=True):
        for a, b in zip(before.decode, after.decode, strict=True):
            assert a["kernels"] == b["kernels"]
            assert b["end_ps"] - b["begin_ps"] == sum(b["kernels"].values()) + b["jitter_ps"]
            assert b["jitter_ps"] != 0
    assert len({record.decode[0]["jitter_ps"] for record, _, _ in uneven}) == RANKS


def test_a_model_as_deep_as_the_priced_one_computes_every_layer(tmp_path: Path, tiny_priced: str) -> None:
    """Only the MTP layer repeats an executed one; the answers are the reference's again."""
    config = preset_config("tiny").model_copy(update={"num_hidden_layers": 9})
    make_checkpoint(tmp_path / "deep", config, seed=2)
    deep = tiny_job(str(tmp_path / "deep"), tiny_priced)
    deep = replace(deep, decode=DecodeOptions(steps=1))
    ends = Pod(deep).run()
    specs = decode_requests(RANKS, BATCH, CONTEXT, SCALE, 1, 64, deep.seed)
    wanted = generate(deep.model_dir, [ReferenceRequest(s.prompt.tolist(), s.max_output) for s in specs])
    assert answers(ends) == {i: (list(r.tokens), r.logits_sha256) for i, r in enumerate(wanted)}
    rows = np.array([record.decode[0]["expert_rows"] for record, _, _ in ends])
    assert np.array_equal(rows[:, 8], rows[:, 0])
    assert not np.array_equal(rows[:, 1], rows[:, 0])


def test_rows_that_come_back_changed_are_an_error(job: ReplayJob) -> None:
    with pytest.raises(InternalError, match="layer 2 did not receive the rows sent before"):
        Pod(job, link=LossyLink).run()


def test_without_mtp_there_is_a_pass_and_a_head_less(job: ReplayJob) -> None:
    priced, kv = load_priced(job.priced_as), np.full(4, 3000)
    plain = DecodeOptions(queries=1, mtp=False)
    assert moe_passes(priced, plain) == 8
    assert step_kernels(priced, kv, plain).join == {}
    record = Pod(replace(job, decode=replace(plain, steps=1))).run()[0][0]
    assert len(record.decode[0]["dispatch_ps"]) == 8


def test_kernels_are_those_of_the_closed_form() -> None:
    """61 layers, two heads and the MTP layer at equal contexts: `superpod prices` to the picosecond."""
    r1, options, case = PricedModel.load("deepseek-r1", load_profile()), DecodeOptions(), DecodeCase()
    kernels = step_kernels(r1, np.full(case.sequences, case.context), options)
    passes = moe_passes(r1, options)
    assert passes == 59
    total = 3 * sum(kernels.dense_layer.values()) + passes * sum(kernels.attention.values())
    total += passes * r1.experts_ps([540, 540]) + 2 * sum(kernels.head.values()) + sum(kernels.join.values())
    closed = decode_kernels(r1, case)
    assert total == sum(ps for name, ps in closed.items() if name not in (DISPATCH, COMBINE))


def test_a_skewed_router_chooses_more_unevenly(tiny_model: str) -> None:
    plain, skewed, again = (load_model(tiny_model) for _ in range(3))
    skew_router(plain, 0.0, 1)
    skew_router(skewed, 0.5, 1)
    skew_router(again, 0.5, 1)
    h = plain.layer(1).norm(plain.embed(torch.arange(64)))
    loads = [np.bincount(m.layer(1).route(h)[0].numpy().ravel(), minlength=16) for m in (plain, skewed)]
    assert loads[1].max() > 1.5 * loads[0].max()
    assert skewed.layer(1).router_bias.equal(again.layer(1).router_bias)


def test_a_job_with_decode_options_survives_its_file(tmp_path: Path, job: ReplayJob) -> None:
    job.write(tmp_path)
    assert ReplayJob.read(tmp_path) == job
    replace(job, decode=None).write(tmp_path)
    assert ReplayJob.read(tmp_path).decode is None
