"""Three ways to carry a round of messages: windows, verbs, MPI. What a workload sees is the same.

    mem     put_signal into the lane's buffer; the value of the lane's signal word holds round and length
    verbs   RDMA write with immediate into the lane's buffer; a receive is consumed, the immediate is the lane
    mpi     Isend and Irecv, the slot is the tag

Every path has two buffers a lane, used in turn; `workloads` says why two are enough. Set-up (windows, queue
pairs, registration, first receives) is outside what is measured, as it is with the real things.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from collectives.compare.workloads import Lane, Send, Workload
from emulator import Device
from memsem import Window
from memsem import mpi as MPI
from memsem.message import Comm

Bytes = npt.NDArray[np.uint8]
LENGTH_BITS = 40


class Carrier(Protocol):
    """A way to carry messages between all ranks; made on all ranks together."""

    def round(self, sends: Sequence[Send], expected: Sequence[Lane]) -> list[Bytes]:
        """Send, wait for what is expected, and return it in that order, as copies.

        Completion: the sends' data may be reused on return.
        """
        ...

    def settle(self) -> None:
        """Complete everything of mine."""
        ...


class Lanes:
    """Where the buffers of a receiver's lanes lie: lane i of parity p at (p * lanes + i) * capacity."""

    def __init__(self, workload: Workload, num_ranks: int) -> None:
        self.capacity = max(1, workload.capacity)
        self.of = [workload.inbound(rank) for rank in range(num_ranks)]
        self.index = [{lane: i for i, lane in enumerate(lanes)} for lanes in self.of]
        self.most = max(1, *(len(lanes) for lanes in self.of))
        self.nbytes = 2 * self.most * self.capacity

    def offset(self, lane: int, step: int) -> int:
        """Byte offset of a lane's buffer in round `step`."""
        return self.word(lane, step) * self.capacity

    def word(self, lane: int, step: int) -> int:
        """Number of a lane's buffer and signal word in round `step`. Two rounds of a lane may be under
        way at once, and two unordered signals to one word could come in the wrong order."""
        return step % 2 * self.most + lane


class MemCarrier:
    """Memory semantics: one put_signal a message, nothing else."""

    def __init__(self, device: Device, workload: Workload) -> None:
        self._lanes = Lanes(workload, device.num_ranks)
        self._window = Window.create(self._lanes.nbytes, np.uint8, signals=2 * self._lanes.most)
        self._rank, self._steps = device.rank, np.zeros(self._lanes.most, np.int64)
        self._sent: dict[tuple[int, int], int] = {}

    def round(self, sends: Sequence[Send], expected: Sequence[Lane]) -> list[Bytes]:
        for target, slot, data in sends:
            lane = self._lanes.index[target][Lane(self._rank, slot)]
            step = self._sent[target, slot] = self._sent.get((target, slot), -1) + 1
            value = step + 1 << LENGTH_BITS | data.size
            self._window.put_signal(
                target, data, self._lanes.offset(lane, step), self._lanes.word(lane, step), value
            )
        return [self._take(self._lanes.index[self._rank][lane]) for lane in expected]

    def _take(self, lane: int) -> Bytes:
        step = int(self._steps[lane])
        seen = self._window.signal_wait_until(self._lanes.word(lane, step), "ge", step + 1 << LENGTH_BITS)
        assert seen is not None and seen >> LENGTH_BITS == step + 1, f"lane {lane}: {seen:#x} in round {step}"
        length = seen & (1 << LENGTH_BITS) - 1
        at = self._lanes.offset(lane, step)
        self._steps[lane] += 1
        return self._window.local[at : at + length].copy()

    def settle(self) -> None:
        self._window.quiet()


class MpiCarrier:
    """Messages: every receive is posted before the sends of its round."""

    def __init__(self, device: Device, workload: Workload) -> None:
        self._comm: Comm = MPI.COMM_WORLD
        self._capacity = workload.capacity

    def round(self, sends: Sequence[Send], expected: Sequence[Lane]) -> list[Bytes]:
        buffers = [np.empty(self._capacity, np.uint8) for _ in expected]
        receives = [
            self._comm.Irecv(buffer, source=lane.source, tag=lane.slot)
            for buffer, lane in zip(buffers, expected, strict=True)
        ]
        requests = [self._comm.Isend(data, dest=target, tag=slot) for target, slot, data in sends]
        statuses = [MPI.Status() for _ in receives]
        MPI.Request.Waitall(receives, statuses)
        MPI.Request.Waitall(requests)
        return [buffer[: s.Get_count(MPI.BYTE)] for buffer, s in zip(buffers, statuses, strict=True)]

    def settle(self) -> None:
        """Nothing is left: every request has been waited for."""
