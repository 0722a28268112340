"""The program of the ranks for XCCL: real rows through `collectives.moe.ExpertExchange`, charged as R1's.

    python -m collectives.calibrate xccl_job sweep|in-situ out.json

sweep     8 of 256 experts for each of 4 to 128 tokens a die (arXiv 2508.02520v6 Fig 6: 128 dies)
in-situ   288 dies, 60 sequences of 2 tokens (one guessed): 8 of 256 routed experts and 1 of 32 shared, with
          the in-situ overhead (Fig 20). All dies begin together: waiting for each other is not in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import emulator
from collectives.calibrate.cases import EXPERTS, HIDDEN, OPERATIONS, TOPK, Case
from collectives.calibrate.measure import Meter, Moment
from collectives.libraries import charges, load_library
from collectives.moe import ExpertExchange
from emulator import Device
from emulator.device import BARRIER_CHANNEL

Int64 = npt.NDArray[np.int64]
BATCHES = (4, 8, 16, 24, 32, 40, 48, 64, 80, 96, 128)
IN_SITU_TOKENS = 120
MANAGED_BYTES = 16 << 20
_FUNCTIONAL = 8  # values of a row that is really moved
_SHARED = 32  # dies with a shared expert


def routing(rank: int, tokens: int, shared: bool) -> Int64:
    """Return the slots of each token, int64 [tokens, 8 or 9]: random experts, and a shared one by rank."""
    rng = np.random.default_rng([tokens, rank])
    chosen = np.argpartition(rng.random((tokens, EXPERTS)), TOPK, axis=1)[:, :TOPK].astype(np.int64)
    if not shared:
        return chosen
    return np.column_stack([chosen, np.full(tokens, EXPERTS + rank % _SHARED)])


class Pair:
    """Dispatch and combine of one batch size, timed from a common moment to each rank's own end."""

    def __init__(self, device: Device, tokens: int, shared: bool) -> None:
        self.device, self.meter, self.shared = device, Meter(device), shared
        self.topk = TOPK + shared
        slots = 1 if shared else EXPERTS // device.num_ranks
        most = tokens * self.topk * 3
        self.exchange = ExpertExchange(device, slots, _FUNCTIONAL, tokens, self.topk, max_rows=most)

    def times(self, tokens: int) -> tuple[int, int]:
        """Return how long dispatch and combine of `tokens` rows a rank took me, ps."""
        device = self.device
        x = np.full((tokens, _FUNCTIONAL), device.rank, np.float32)
        out, back = (self._costs(operation, tokens) for operation in OPERATIONS)
        start = self.meter.together()
        handle = self.exchange.dispatch(x, routing(device.rank, tokens, self.shared), out)
        dispatch = device.now_ps - start
        start = self.meter.together()
        weights = np.full((tokens, self.topk), 1 / self.topk, np.float32)
        got = self.exchange.combine(handle, handle.rows, weights, back)
        combine = device.now_ps - start
        if not np.allclose(got, x, rtol=1e-5):
            raise AssertionError(f"rank {device.rank}: identity experts gave other rows back")
        return dispatch, combine

    def _costs(self, operation: str, tokens: int) -> Any:
        return charges(
            load_library("xccl"), self.device.profile, operation,
            ranks=self.device.num_ranks, hidden=HIDDEN, topk=self.topk, tokens=tokens, in_situ=self.shared,
        )  # fmt: skip


def pulled(device: Device, case: Case) -> Moment:
    """Measure one case of any batch; the ranks of the run are its own."""
    dispatch, combine = Pair(device, case.tokens, False).times(case.tokens)
    return Moment(0, dispatch if case.operation == "dispatch" else combine)


def main(what: str, out: str) -> None:
    """Measure and let rank 0 write {tokens: {operation: {mean_ps, min_ps, max_ps}}}."""
    device = emulator.init(managed_bytes=MANAGED_BYTES)
    batches = BATCHES if what == "sweep" else (IN_SITU_TOKENS,)
    pair, found = Pair(device, max(batches), what == "in-situ"), {}
    for tokens in batches:
        taken = pair.times(tokens)
        all_taken = [device.exchange(BARRIER_CHANNEL, None, 0, tag=ps).tags for ps in taken]
        found[tokens] = {
            operation: {"mean_ps": int(ps.mean()), "min_ps": int(ps.min()), "max_ps": int(ps.max())}
            for operation, ps in zip(OPERATIONS, all_taken, strict=True)
        }
    emulator.finalize()
    if device.rank == 0:
        Path(out).write_text(json.dumps(found))
