"""The rank program of `superpod bench ep`: dispatch, experts, combine, timed in virtual time and checked.

As in Mooncake's benchmark the routing is drawn once, and the experts are stand-ins: they return their rows,
at no charge, so what comes home is the token times the sum of its weights. Every iteration begins at the same
virtual time on all ranks.
"""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

import emulator
from collectives import coll
from collectives.bench.ep_shapes import EpSpec, choices
from collectives.bench.together import together
from collectives.ep import ExpertParallel
from collectives.groups import Group
from collectives.libraries import EpCharges, charges, load_library

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


class EpBench:
    """One rank's part."""

    def __init__(self, spec: EpSpec, device: emulator.Device) -> None:
        self.spec, self.device = spec, device
        self.ep = ExpertParallel(
            device, spec.experts, spec.real_hidden, spec.tokens, spec.topk, spec.scheme,
            dispatch_costs=self._costs("dispatch"), combine_costs=self._costs("combine"),
            max_rows=spec.max_rows, planes=(spec.planes[0], spec.planes[1], spec.planes[2], spec.planes[3]),
        )  # fmt: skip
        self.ids, self.weights = choices(spec, device.rank)
        rng = np.random.default_rng([spec.seed, device.rank, 2])
        self.x = rng.integers(-8, 9, (spec.tokens, spec.real_hidden)).astype(np.float32)

    def _costs(self, operation: str) -> EpCharges:
        spec, device = self.spec, self.device
        return charges(
            load_library(spec.library), device.profile, operation, ranks=device.num_ranks, hidden=spec.hidden,
            topk=spec.topk, dtype=spec.dtype if operation == "dispatch" else None, tokens=spec.tokens,
        )  # fmt: skip

    def run(self) -> tuple[Int64, int]:
        """Return int64 [iterations, 3] of dispatch, combine and both, ps; and how many tokens came back
        wrong."""
        spec = self.spec
        times, out = np.empty((spec.iterations, 3), np.int64), self.x
        for k in range(-spec.warmup, spec.iterations):
            took, out = self._once()
            if k >= 0:
                times[k] = took
        want = self.x * self.weights.sum(axis=1, keepdims=True)
        close = np.isclose(out, want, rtol=1e-4, atol=1e-4).all(axis=1)
        return times, int((~close).sum())

    def _once(self) -> tuple[tuple[int, int, int], Float32]:
        device = self.device
        start = together(device)
        handle = self.ep.dispatch(self.x, self.ids)
        middle = device.now_ps
        out = self.ep.combine(handle, handle.rows, self.weights)
        end = device.now_ps
        return (middle - start, end - middle, end - start), out


def main(text: str, out: str) -> None:
    """Run a specification (JSON); rank 0 writes int64 times by rank, and the number of wrong tokens."""
    spec = EpSpec(**json.loads(text))
    device = emulator.init()
    times, wrong = EpBench(spec, device).run()
    group = Group.world(device)
    mine = np.append(times.ravel(), wrong)
    every = np.empty(mine.size * group.size if group.rank == 0 else 0, np.int64)
    coll.gather(group, mine, every, root=0)
    if group.rank == 0:
        rows = every.reshape(group.size, -1)
        told = {"times_ps": rows[:, :-1].tolist(), "wrong": int(rows[:, -1].sum())}
        with open(out, "w") as file:
            json.dump(told, file)


__all__ = ["EpBench", "main"]
