"""The operations a benchmark times, for each path: a ping-pong leg, a whole operation, a batch in flight.

A path is used by both ranks of the pair. `serve` says what the other rank does meanwhile: answer legs of a
ping-pong, or nothing (one-sided operations).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from emulator import Device
from memsem import Window
from memsem import mpi as MPI
from memsem.bench.shapes import ATOMIC_BYTES, BenchSpec

Bytes = npt.NDArray[np.uint8]
REAL_BYTES, ROOM = 1 << 16, 1 << 21
"""Memory path: most bytes of a message, and of a batch, that are really moved; all are charged."""
TAG = 7


class Path(Protocol):
    """One path, one operation, between me and `partner`."""

    def prepare(self, size: int) -> None:
        """Get ready for messages of `size` bytes (both ranks, before a barrier)."""
        ...

    def send_leg(self, size: int) -> None:
        """My half of a ping-pong: send."""
        ...

    def receive_leg(self, size: int) -> None:
        """The other half: wait until the partner's message is here."""
        ...

    def operation(self, size: int) -> None:
        """One whole operation, complete on return."""
        ...

    def batch(self, size: int, count: int) -> None:
        """`count` operations in flight at once, all complete on return (for sends: received)."""
        ...

    def serve_batch(self, size: int, count: int) -> None:
        """What the partner does for a batch."""
        ...


class MemPath:
    """Windows: puts with a signal for the ping-pong, `quiet` to complete a batch."""

    def __init__(self, device: Device, spec: BenchSpec, partner: int) -> None:
        self._op, self._partner = spec.op, partner
        self._how: dict[str, Any] = {} if spec.op == "cas" else {"engine": spec.engine}
        places = 1 if spec.kind == "lat" else spec.batch
        self._room = room = max(1, min(max(spec.sizes), REAL_BYTES, ROOM // places))
        self._window = Window.create(places * room, np.uint8, signals=2)
        self._word = Window.create(1, np.int64, signals=0)
        self._data = np.zeros(room, np.uint8)
        self._sent = self._heard = 0

    def prepare(self, size: int) -> None:
        """Nothing: memory is there from the start."""

    def send_leg(self, size: int) -> None:
        self._sent += 1
        data = self._data[:size]
        self._window.put_signal(self._partner, data, 0, 0, self._sent, charge_bytes=size, **self._how)

    def receive_leg(self, size: int) -> None:
        self._heard += 1
        self._window.signal_wait_until(0, "ge", self._heard)

    def operation(self, size: int) -> None:
        if self._op == "cas":
            self._word.compare_swap(self._partner, 0, 0, 0)
        elif self._op == "get":
            data = self._data[:size]
            self._window.get(self._partner, 0, out=data, charge_bytes=size, **self._how)
        else:
            self.batch(size, 1)

    def batch(self, size: int, count: int) -> None:
        for number in range(count):
            self._start(number, self._data[:size], size)
        self._window.quiet()

    def _start(self, number: int, data: Bytes, size: int) -> None:
        """Operations in flight have places of their own: two unordered puts to one would be a race."""
        at = number * self._room
        if self._op == "put":
            self._window.put(self._partner, data, at, size, **self._how)
        elif self._op == "put_signal":
            self._window.put_signal(self._partner, data, at, 1, 1, "add", size, **self._how)
        elif self._op == "get":
            self._window.get_nbi(self._partner, at, np.empty_like(data), charge_bytes=size, **self._how)
        else:
            self._word.compare_swap_nbi(self._partner, 0, 0, 0)

    def serve_batch(self, size: int, count: int) -> None:
        """Nothing: the operations are one-sided."""


class MpiPath:
    """Messages: blocking sends and receives for the ping-pong, `Isend`/`Irecv` and an answer for a batch."""

    def __init__(self, device: Device, spec: BenchSpec, partner: int) -> None:
        self._comm, self._partner = MPI.COMM_WORLD, partner
        self._data = np.zeros(max(spec.sizes), np.uint8)
        self._sink = np.zeros(max(spec.sizes), np.uint8)

    def prepare(self, size: int) -> None:
        """Nothing: messages need no set-up."""

    def send_leg(self, size: int) -> None:
        self._comm.Send(self._data[:size], dest=self._partner, tag=TAG)

    def receive_leg(self, size: int) -> None:
        self._comm.Recv(self._sink[:size], source=self._partner, tag=TAG)

    def operation(self, size: int) -> None:
        self.batch(size, 1)

    def batch(self, size: int, count: int) -> None:
        MPI.Request.Waitall(
            [self._comm.Isend(self._data[:size], dest=self._partner, tag=TAG) for _ in range(count)]
        )
        self._comm.Recv(self._sink[:1], source=self._partner, tag=TAG + 1)

    def serve_batch(self, size: int, count: int) -> None:
        MPI.Request.Waitall(
            [self._comm.Irecv(self._sink[:size], source=self._partner, tag=TAG) for _ in range(count)]
        )
        self._comm.Send(self._data[:1], dest=self._partner, tag=TAG + 1)


assert np.dtype(np.int64).itemsize == ATOMIC_BYTES
