"""The rank program of `superpod bench coll`: time a collective in virtual time and check what it brought.

Every iteration begins at the same virtual time on all ranks, a whole second after another, so that no rank
waits for one that the last iteration left late. All bytes are moved in every iteration and checked after the
last, up to `real_bytes` of all ranks together; larger buffers are charged in full (`charge_bytes`) and moved
and checked in part. Before every iteration the receive buffer is spoilt, so that one which brings nothing
shows.
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
    DTYPES,
    REDUCING,
    ROOTED,
    UNEQUAL,
    CollSample,
    CollSpec,
    counts_of,
    real_count,
    size_of,
    unequal,
)
from collectives.bench.together import together
from collectives.groups import Group
from collectives.work import Work

_SPOILT = 0x55
Array = npt.NDArray[Any]


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
        """Measure one count, out of place and in place; collective."""
        spec, size, rank = self.spec, self.group.size, self.group.rank
        real = real_count(spec, count, size)
        charge = count * self.itemsize if real < count else None
        if charge is not None and spec.coll in UNEQUAL:
            charge = round(charge / real)  # there it is that of an element
        given = data.sent(spec.coll, rank, real, size, spec.redop, spec.dtype)
        want = data.wanted(spec.coll, rank, real, size, spec.redop, spec.root, spec.dtype)
        name, us, wrong = self._timed(given, given, np.empty(want.size, want.dtype), want, charge, real)
        figures = [us, wrong]
        if spec.coll != "barrier":
            pair = data.buffers(spec.coll, rank, given, real, size)
            figures += self._timed(given, *pair, want, charge, real)[1:]
        return self._sample(count, real, name, figures)

    def _timed(
        self, given: Array, send: Array, recv: Array, want: Array, charge: int | None, real: int
    ) -> tuple[str, int, int]:
        """Return the algorithm, ps of all measured iterations, and wrong elements after the last."""
        spec, took, name = self.spec, 0, ""
        call, spoilt = self._call(send, recv, charge, real), recv.view(np.uint8)
        for k in range(-spec.warmup, spec.iterations):
            spoilt[...] = _SPOILT
            if send is not given:
                send[...] = given
            start = together(self.device)
            name = call().algorithm
            took += self.device.now_ps - start if k >= 0 else 0
        return name, took, int((recv[: want.size] != want).sum())

    def _call(self, send: Any, recv: Any, charge: int | None, real: int) -> Callable[[], Work]:
        spec, group = self.spec, self.group
        how: dict[str, Any] = {"algorithm": spec.algo}
        if charge is not None:
            how["charge_bytes"] = charge
        if spec.dtype == "bfloat16":
            how["dtype"] = "bfloat16"
        if spec.coll == "barrier":
            return lambda: coll.barrier(group, algorithm=spec.algo)
        if spec.coll == "broadcast":
            return lambda: self._broadcast(send, recv, how)
        if spec.coll in REDUCING:
            how["op"] = spec.redop
        if spec.coll in ROOTED:
            how["root"] = spec.root
        if spec.coll == "all_gather_v":
            sizes = unequal(real, group.size)
            return lambda: coll.all_gather_v(group, send, recv, sizes, **how)
        if spec.coll == "all_to_all_v":
            out = data.around(real, group.rank, group.size)
            back = [data.around(real, r, group.size)[group.rank] for r in range(group.size)]
            return lambda: coll.all_to_all_v(group, send, out, recv, back, **how)
        function: Callable[..., Work] = getattr(coll, spec.coll)
        return lambda: function(group, send, recv, **how)

    def _broadcast(self, send: Array, recv: Array, how: dict[str, Any]) -> Work:
        """A broadcast has one buffer: out of place the root copies (not charged, as inside any die)."""
        if self.group.rank == self.spec.root and recv is not send:
            recv[...] = send
        return coll.broadcast(self.group, recv, self.spec.root, **how)

    def _sample(self, count: int, real: int, algorithm: str, figures: list[int]) -> CollSample | None:
        """Rank 0 puts together what all measured: ps and wrong elements out of place, in place if any."""
        spec, size = self.spec, self.group.size
        every = np.empty(len(figures) * size if self.group.rank == 0 else 0, np.int64)
        coll.gather(self.group, np.array(figures, np.int64), every, root=0)
        if self.group.rank:
            return None
        table = every.reshape(size, -1)
        times, wrong = table[:, ::2] / spec.iterations / 1e6, table[:, 1::2].sum(axis=0).tolist()
        out = times[:, 0]
        sizes = [size_of(spec.coll, number, self.itemsize, size) for number in (count, real)]
        half = (float(times[:, 1].max()), wrong[1]) if len(wrong) > 1 else (None, 0)
        means = float(out.mean()), float(out.min()), float(out.max())
        return CollSample(sizes[0], count, size, algorithm, *means, wrong[0], sizes[1], *half)


def main(text: str, out: str) -> None:
    """Run a specification (JSON); rank 0 writes the samples."""
    row = json.loads(text)
    spec = CollSpec(**{**row, "sizes": tuple(row["sizes"])})
    device = emulator.init()
    samples = Bench(spec, device).run()
    if device.rank == 0:
        with open(out, "w") as file:
            json.dump([sample._asdict() for sample in samples], file)


__all__ = ["Bench", "main"]
