"""Dispatch and combine of expert parallelism, XCCL's pull-based protocol over real bytes.

    dispatch   rows -> my OWN managed block, grouped by destination        (quantised on the way, if asked)
               a 32-byte record {event, first row, rows} to every rank, zero counts included
               all n records are in: the only barrier
               pull my rows from each source's block                        (one read a row, placed by expert)
    combine    the same the other way round, then a weighted sum at the token's owner in the given k order

Write after read: the block of event e must survive until the slowest rank has pulled. Blocks are doubled
    by event parity, and each (micro-batch, operation) has its own event counter and pair: a rank writes
    event e + 2 only after all records of e + 1, and a rank posts its record of e + 1 only after its pull
    of e. (The paper is silent on this.)

Real bytes move on the host; the fabric is charged what the costs say (`row_bytes` for each priced row a
row stands for). One engine entry per operation. Left out: deduplication of rows to one rank, overlap
inside one operation.

Source: arXiv 2508.02520 section 3.2; 32-byte record and block layout as listed there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from collectives.blocks import BlockPair
from collectives.moe_parts import META_BYTES, EpCosts, Handle, IdleStep, OperationCosts, Pending, Timing
from collectives.moe_rows import NO_WEIGHTS, RowExchange
from emulator.engine.api import ChainStep, ExchangeResult
from emulator.errors import DeadlockError, InternalError, UsageError
from emulator.rows import Plan

__all__ = [
    "META_BYTES", "EpCosts", "ExpertExchange", "Handle", "IdleStep", "OperationCosts", "Pending", "Timing",
]  # fmt: skip
Float32 = npt.NDArray[np.float32]


class ExpertExchange(RowExchange):
    """Dispatch and combine, and sleep while others do them; made as `ExchangeBase` is."""

    # --- idle -------------------------------------------------------------------------------------------

    def idle(self, steps: Sequence[IdleStep], micro_batch: int = 0) -> tuple[int, Handle]:
        """Take part in the next operations without rows of my own, asleep until one brings me rows.

        In virtual time this is exactly a loop of empty dispatches and combines with `compute_ps` of computing
        before each; on the host it is one sleep.

        Args:
            steps: what the others will do, in order; ends wherever the caller wants to be back.
            micro_batch: which pair of buffers.

        Returns:
            index of the step that brought rows and its handle; or of the last step, with a handle of no rows.
        """
        pairs, chain = self._chain(steps, micro_batch)
        for ps in (steps[0].compute_ps, steps[0].costs.start_ps):
            if ps:
                self.device.compute(ps)
        result = self._sleep(pairs[0], None, steps[0].costs, chain[1:])
        return self._woken(steps, pairs, result.index, result, micro_batch)

    def combine_then_idle(
        self, handle: Handle, y: Float32, steps: Sequence[IdleStep], costs: OperationCosts | None = None
    ) -> tuple[int, Handle]:
        """Send the experts' outputs home, then `idle`, in one sleep: for a rank that dispatched no rows.

        In virtual time this is exactly `combine` followed by `idle`.

        Args:
            handle: of the dispatch, with no rows of my own (`tokens` 0).
            y: see `combine`.
            steps: see `idle`; at least one.
            costs: of the combine.

        Raises:
            UsageError: as `combine`; or I sent rows, so the combine brings some.
        """
        if handle.tokens or not steps:
            raise UsageError(
                f"combine_then_idle: for a rank that dispatched no rows and has steps to follow, "
                f"got {handle.tokens} rows and {len(steps)} steps"
            )
        pairs, chain = self._chain(steps, handle.micro_batch)
        pair, plan, costs = self._write_back(handle, y, NO_WEIGHTS, costs)
        result = self._sleep(pair, plan, costs, chain)
        return self._woken(steps, pairs, result.index - 1, result, handle.micro_batch, first=0)

    def _sleep(
        self, pair: BlockPair, plan: Plan | None, costs: OperationCosts, chain: Sequence[ChainStep]
    ) -> ExchangeResult:
        try:
            return pair.exchange(plan, costs, chain)
        except DeadlockError as error:
            raise self._explained(error, pair) from None

    def _chain(self, steps: Sequence[IdleStep], micro_batch: int) -> tuple[list[BlockPair], list[ChainStep]]:
        """The steps as the engine goes through them: computing included, call prices too."""
        pairs = [self._pair(self._back if s.combine else self._out, micro_batch) for s in steps]
        price = self.device.engine.config.call_price_ps
        waits = [sum(ps + price for ps in (s.compute_ps, s.costs.start_ps) if ps) for s in steps]
        return pairs, [
            ChainStep(p.channel, w, s.costs.meta_bytes, s.costs.pull_start_ps, s.costs.record_ps)
            for p, s, w in zip(pairs, steps, waits, strict=True)
        ]

    def _woken(
        self,
        steps: Sequence[IdleStep],
        pairs: list[BlockPair],
        index: int,
        result: ExchangeResult,
        micro_batch: int,
        first: int = 1,
    ) -> tuple[int, Handle]:
        """Steps up to `index` are over, those from `first` on without my counting them."""
        for pair in pairs[first : index + 1]:
            pair.skip()
        pair = pairs[index] if index >= 0 else self._back[micro_batch]
        try:
            if index >= 0 and not steps[index].combine:
                return index, self._take_in(pair, self._no_plan(), 0, result)
            pair.pull(result, self._no_plan().counts)
        except InternalError as error:
            raise self._explained(error, pair) from None
        return index, self._nothing(micro_batch)

    def _nothing(self, micro_batch: int) -> Handle:
        none = np.zeros(self.device.num_ranks, np.int32)
        handle = Handle(np.empty((0, self.hidden), np.float32), micro_batch)
        handle.rows_per_slot = handle.charged_per_slot = np.zeros(self.slots, np.int64)
        handle.tokens, handle.sent, handle.place = 0, self._no_plan(), np.empty(0, np.int32)
        handle.received = handle.received_charge = none
        return handle

    def _no_plan(self) -> Plan:
        none = np.zeros(self.device.num_ranks, np.int32)
        return Plan(none, none, none, none, np.empty(0, np.int32))
