"""The rank program of `superpod bench coll`: time a collective in virtual time and check what it brought.

Every iteration begins at the same virtual time on all ranks, a whole second after another, so that no rank
waits for one that the last iteration left late. Real bytes are at most `real_bytes` of a buffer; larger ones
are charged in full (`charge_bytes`) and checked as far as they are real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import emulator
from collectives import coll
from collectives.bench import data
from collectives.bench.shapes import (
    BLOCKWISE,
    DTYPES,
    REDUCING,
    ROOTED,
    CollSample,
    CollSpec,
    counts_of,
    size_of,
)
from collectives.groups import Group
from collectives.work import Work

GRID_PS = 10**12
Int64 = npt.NDArray[np.int64]


class Bench:
    """One rank's part."""

    def __init__(self, spec: CollSpec, device: emulator.Device) -> None:
        self.spec, self.device, self.group = spec, device, Group.world(device)
        self.itemsize = DTYPES[spec.dtype]

    def run(self) -> list[CollSample]:
        """Measure every size. Returns samples on rank 0, nothing on the others."""
        samples = [self.measure(count) for count in counts_of(self.spec, self.group.size)]
        return [sample for sample in samples if sample is not None]

    def measure(self, count: int) -> CollSample | None:
        """Measure one count; collective."""
        spec, size, rank = self.spec, self.group.size, self.group.rank
        most = max(1, spec.real_bytes // self.itemsize // (size if spec.coll in BLOCKWISE else 1))
        real = min(count, most)
        send = data.encode(data.sent(spec.coll, rank, real, size, spec.redop), spec.dtype)
        want = data.encode(data.wanted(spec.coll, rank, real, size, spec.redop, spec.root), spec.dtype)
        recv = np.zeros(want.size, send.dtype)
        if spec.coll == "broadcast":
            recv = send.copy()
        call = self._call(send, recv, count * self.itemsize if real < count else None)
        took, work = np.empty(spec.iterations, np.int64), None
        for k in range(-spec.warmup, spec.iterations):
            start = self._together()
            work = call()
            if k >= 0:
                took[k] = self.device.now_ps - start
        wrong = 0 if work is None else int((recv != want).sum())
        return self._sample(count, "" if work is None else work.algorithm, took, wrong)

    def _together(self) -> int:
        """Let time pass to the next whole second; returns when that is for this rank."""
        device = self.device
        device.sleep_ps(GRID_PS - device.now_ps % GRID_PS)
        return device.now_ps

    def _call(self, send: Any, recv: Any, charge: int | None) -> Callable[[], Work]:
        spec, group = self.spec, self.group
        how: dict[str, Any] = {"algorithm": spec.algo}
        if charge is not None:
            how["charge_bytes"] = charge
        if spec.dtype == "bfloat16":
            how["dtype"] = "bfloat16"
        if spec.coll == "barrier":
            return lambda: coll.barrier(group, algorithm=spec.algo)
        if spec.coll == "broadcast":
            return lambda: coll.broadcast(group, recv, spec.root, **how)
        if spec.coll in REDUCING:
            how["op"] = spec.redop
        if spec.coll in ROOTED:
            how["root"] = spec.root
        function: Callable[..., Work] = getattr(coll, spec.coll)
        return lambda: function(group, send, recv, **how)

    def _sample(self, count: int, algorithm: str, took: Int64, wrong: int) -> CollSample | None:
        """Rank 0 puts together what all measured."""
        mine, size = np.array([took.sum(), wrong], np.int64), self.group.size
        every = np.empty(2 * size if self.group.rank == 0 else 0, np.int64)
        coll.gather(self.group, mine, every, root=0)
        if self.group.rank:
            return None
        times = every[::2] / self.spec.iterations / 1e6
        nbytes = size_of(self.spec.coll, count, self.itemsize, size)
        figures = (float(times.mean()), float(times.min()), float(times.max()))
        return CollSample(nbytes, count, size, algorithm, *figures, int(every[1::2].sum()))


def main(text: str, out: str) -> None:
    """Run a specification (JSON); rank 0 writes the samples."""
    row = json.loads(text)
    spec = CollSpec(**{**row, "sizes": tuple(row["sizes"])})
    device = emulator.init()
    samples = Bench(spec, device).run()
    if device.rank == 0:
        with open(out, "w") as file:
            json.dump([sample._asdict() for sample in samples], file)


__all__ = ["GRID_PS", "Bench", "main"]
