"""A pod in one process for tests: a plain clock, and links that compute what the exchange would deliver.

The ranks of `run_pod` are threads that meet at a barrier, so routing, placement and combine order are real
while time is only added up. The emulated machine is tested with real processes in `test_replay.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.profile import load_profile
from serving.charges import Charges, plan_layers
from serving.dispatch import Dispatcher
from serving.engine import RankRecord, Sampled, ServingEngine
from serving.forward import Forward, Received
from serving.job import PagingOptions
from serving.model.drafters import Drafter
from serving.model.kv_cache import PagedKV
from serving.model.model import load_model
from serving.model.sampling import GREEDY, SamplingParams, sample
from serving.paged import PagedOptions, PagedScheduler, make_cache
from serving.placement import Placement
from serving.pricing import PricedModel
from serving.request import RequestSpec
from serving.scheduler import Scheduler, SchedulerLimits
from serving.speculation import Speculation


@dataclass
class AddingClock:
    """A clock that knows nothing but to add."""

    now_ps: int = 0
    charged: list[tuple[int, int]] = field(default_factory=list)

    def compute(self, ps: int | None = None, *, label: int = 0) -> None:
        assert ps is not None
        self.now_ps += ps
        self.charged.append((label, ps))

    def sleep_ps(self, ps: int) -> None:
        self.now_ps += ps


class Board:
    """Where the threads of a pod lay things out for each other."""

    def __init__(self, num_ranks: int) -> None:
        self.barrier = threading.Barrier(num_ranks, timeout=60)
        self.slots: list[Any] = [None] * num_ranks

    def all_gather(self, rank: int, value: Any) -> list[Any]:
        self.slots[rank] = value
        self.barrier.wait()
        values = list(self.slots)
        self.barrier.wait()
        return values


class LocalStatus:
    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank

    def exchange(self, word: int) -> NDArray[np.int64]:
        return np.array(self._board.all_gather(self._rank, word), dtype=np.int64)


class LocalLink:
    """Rows to the experts and back by plain loops over (source, token, k)."""

    def __init__(self, board: Board, rank: int, placement: Placement, hidden: int) -> None:
        self._board, self._rank, self._placement, self._hidden = board, rank, placement, hidden
        self.priced_rows_sent = 0
        self.priced_received: list[NDArray[np.int64]] = []

    def dispatch(self, x: Any, slots: Any, shares: Any, costs: Any) -> Received:
        self.priced_rows_sent += int(shares.sum()) * slots.shape[1]
        return self._receive(self._board.all_gather(self._rank, (x.copy(), slots, shares)))

    def _receive(self, everyone: list[Any]) -> Received:
        per_rank = self._placement.slots_per_rank
        found = []
        for source, (x, slots, shares) in enumerate(everyone):
            for t, k in zip(*np.nonzero(slots // per_rank == self._rank), strict=True):
                found.append((int(slots[t, k] % per_rank), source, int(t), int(k), x[t], int(shares[t])))
        found.sort(key=lambda f: f[:4])
        rows = np.array([f[4] for f in found], np.float32).reshape(-1, self._hidden)
        local = np.array([f[0] for f in found], dtype=np.int64)
        count = np.bincount(local, minlength=per_rank)
        priced = np.bincount(local, [f[5] for f in found], per_rank).astype(np.int64)
        self.priced_received.append(priced)
        return Received(rows, count, priced, [f[1:4] for f in found])

    def combine(self, received: Any, results: Any, weights: Any, costs: Any) -> Any:
        mine = [(ticket, row) for ticket, row in zip(received.ticket, results, strict=True)]
        back = self._board.all_gather(self._rank, mine)
        rows = {ticket[1:]: row for part in back for ticket, row in part if ticket[0] == self._rank}
        out = np.zeros((len(weights), self._hidden), np.float32)
        for t in range(len(weights)):
            for k in range(weights.shape[1]):
                term = weights[t, k] * rows[(t, k)]
                out[t] = term if k == 0 else out[t] + term
        return out

    def idle(self, layers: Sequence[Any]) -> tuple[int, Received | None]:
        nothing = (np.zeros((0, self._hidden), np.float32), np.zeros((0, 1), np.int64), np.zeros(0, np.int64))
        for index in range(len(layers)):
            received = self._receive(self._board.all_gather(self._rank, nothing))
            if received.count:
                return index, received
            self.combine(received, received.rows, np.zeros((0, 1), np.float32), None)
        return len(layers), None

    def combine_then_idle(
        self, received: Any, results: Any, costs: Any, layers: Sequence[Any]
    ) -> tuple[int, Received | None]:
        self.combine(received, results, np.zeros((0, 1), np.float32), costs)
        return self.idle(layers)


def run_pod(
    model_dir: str,
    specs: Sequence[RequestSpec],
    placement: Placement,
    limits: SchedulerLimits,
    priced: PricedModel,
    params: SamplingParams | None = None,
    paging: PagingOptions | None = None,
    drafter: Drafter | None = None,
) -> list[tuple[RankRecord, AddingClock, LocalLink]]:
    """Serve `specs` on as many threads as the placement has ranks; with a drafter by as many draft layers as
    the limits say."""
    board = Board(placement.num_ranks)
    ends: list[Any] = [None] * placement.num_ranks
    errors: list[BaseException] = []

    def one_rank(rank: int) -> None:
        try:
            parts = (board, model_dir, specs, placement, limits, priced, params, paging, drafter)
            ends[rank] = _serve(rank, *parts)
        except BaseException as error:
            errors.append(error)
            board.barrier.abort()

    threads = [threading.Thread(target=one_rank, args=(rank,)) for rank in range(placement.num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return ends


def _serve(
    rank: int,
    board: Board,
    model_dir: str,
    specs: Sequence[RequestSpec],
    placement: Placement,
    limits: SchedulerLimits,
    priced: PricedModel,
    params: SamplingParams | None,
    paging: PagingOptions | None = None,
    drafter: Drafter | None = None,
) -> tuple[RankRecord, AddingClock, LocalLink]:
    held = [e for e in placement.experts_on(rank) if e < placement.num_routed]
    model = load_model(model_dir, held, mtp_layers=limits.drafts)
    scheduler = Scheduler(limits)
    if paging is not None:
        options = PagedOptions(paging.reuse, paging.chunked, paging.dram_blocks)
        scheduler = PagedScheduler(limits, make_cache(limits, options, paging.block_size), options)
    cache = scheduler.kv if isinstance(scheduler, PagedScheduler) else None
    kv = PagedKV(model.config, limits.kv_blocks, limits.block_tokens, cache)
    clock, record = AddingClock(), RankRecord()
    link = LocalLink(board, rank, placement, model.config.hidden_size)
    charges = Charges(priced, placement.num_ranks, shared_local=not placement.shared_placed)
    plans = plan_layers(model.config, priced)
    forward = Forward(rank, clock, model, plans, charges, placement, link, kv, record.time)
    engine = ServingEngine(
        rank,
        clock,
        LocalStatus(board, rank),
        forward,
        scheduler,
        Dispatcher(specs, lambda spec: scheduler.refusal(spec) is not None),
        lambda logits, request, position: Sampled(
            sample(logits, params or GREEDY, request.spec.seed, 0, position)
        ),
        record,
        lambda ended, now_ps: None,
    )
    if drafter is not None:
        engine.speculation = Speculation(forward, model, kv, scheduler, drafter, record.speculation)
    engine.run()
    kv.check_integrity()
    record.work.kv_blocks_allocated, record.work.kv_blocks_freed = kv.pages_allocated, kv.pages_freed
    if isinstance(scheduler, PagedScheduler):
        scheduler.kv.check_integrity(idle=True)
        record.cache = asdict(scheduler.counts)
    return record, clock, link


def load_priced(name: str) -> PricedModel:
    return PricedModel.load(name, load_profile("cloudmatrix384", None))
