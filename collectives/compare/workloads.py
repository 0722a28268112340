"""The workloads that `superpod compare` runs over three paths: who sends what to whom, and what comes out.

A workload is one rank's pure state machine in rounds. In each round a rank hands over its sends, gets the
messages it expects, and takes them; at the end it has a result in bytes. Contents come from seed, rank and
round alone, so results must be equal whatever carried the bytes.

An inbound lane is a (source, slot) pair of a receiver: one message a round travels on it, so a path may give
it a buffer, a signal word or a tag of its own. Rounds of a lane overlap by one at most, because whoever sends
in round r + 2 has taken what its receiver sent in round r + 1 (those without answers have one round).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from emulator.errors import UsageError

Bytes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]


class Lane(NamedTuple):
    """Where a receiver's message comes from: the source's rank, and which of its messages."""

    source: int
    slot: int


class Send(NamedTuple):
    """One message: to whom, on which of my lanes there, and its bytes (may be empty)."""

    target: int
    slot: int
    data: Bytes


class Workload(Protocol):
    """One rank's part of a workload; `rounds` and `capacity` (most bytes of a message) are fixed."""

    rounds: int
    capacity: int

    def inbound(self, rank: int) -> list[Lane]:
        """All lanes into a rank, in a fixed order."""
        ...

    def expected(self, step: int) -> list[Lane]:
        """The lanes on which I get a message this round, a part of my inbound ones."""
        ...

    def sends(self, step: int) -> list[Send]:
        """My messages of this round."""
        ...

    def take(self, step: int, received: list[Bytes]) -> None:
        """Use what came on the expected lanes, in their order."""
        ...

    def result(self) -> bytes:
        """What I have at the end."""
        ...


@dataclass(frozen=True)
class Setting:
    """What all ranks of a workload share: message size in bytes, rounds or items, and a seed."""

    num_ranks: int
    size: int
    repeat: int
    seed: int = 0


def _noise(nbytes: int, *key: int) -> Bytes:
    return np.random.default_rng(key).integers(0, 256, nbytes, np.uint8)


class PingPong:
    """Rank 0 and the last rank throw a message to and fro; each adds 1 to every byte."""

    def __init__(self, setting: Setting, rank: int) -> None:
        self.rank, self.partner = rank, setting.num_ranks - 1 - rank
        self.plays = rank in (0, setting.num_ranks - 1)
        self.last = setting.num_ranks - 1
        self.rounds, self.capacity = 2 * setting.repeat, setting.size
        self.ball = _noise(setting.size, setting.seed)

    def inbound(self, rank: int) -> list[Lane]:
        return [Lane(self.last - rank, 0)] if rank in (0, self.last) else []

    def _throws(self, step: int) -> bool:
        return self.plays and (self.rank == 0) == (step % 2 == 0)

    def expected(self, step: int) -> list[Lane]:
        return self.inbound(self.rank) if self.plays and not self._throws(step) else []

    def sends(self, step: int) -> list[Send]:
        return [Send(self.partner, 0, self.ball)] if self._throws(step) else []

    def take(self, step: int, received: list[Bytes]) -> None:
        if received:
            self.ball = received[0] + np.uint8(1)

    def result(self) -> bytes:
        return self.ball.tobytes() if self.plays else b""


class Halo:
    """Jacobi steps on a torus of ranks: each sends an edge of `size` bytes to its four neighbours.

    The grid is as square as the rank count allows. Each rank holds a line of float32 per direction; a step
    replaces every line by the mean of what the four neighbours sent, rounded in float32 in a fixed order.
    """

    OPPOSITE = (1, 0, 3, 2)

    def __init__(self, setting: Setting, rank: int) -> None:
        self.rank, self.num_ranks = rank, setting.num_ranks
        self.rows = max(d for d in range(1, int(self.num_ranks**0.5) + 1) if self.num_ranks % d == 0)
        self.columns = self.num_ranks // self.rows
        self.rounds, self.capacity = setting.repeat, setting.size
        rng = np.random.default_rng((setting.seed, rank))
        self.edges: Float32 = rng.random((4, setting.size // 4), np.float32)

    def _neighbour(self, rank: int, direction: int) -> int:
        row, column = divmod(rank, self.columns)
        moves = ((-1, 0), (1, 0), (0, -1), (0, 1))
        return (row + moves[direction][0]) % self.rows * self.columns + (
            column + moves[direction][1]
        ) % self.columns

    def inbound(self, rank: int) -> list[Lane]:
        return [Lane(self._neighbour(rank, d), self.OPPOSITE[d]) for d in range(4)]

    def expected(self, step: int) -> list[Lane]:
        return self.inbound(self.rank)

    def sends(self, step: int) -> list[Send]:
        return [Send(self._neighbour(self.rank, d), d, self.edges[d].view(np.uint8)) for d in range(4)]

    def take(self, step: int, received: list[Bytes]) -> None:
        lines = [line.view(np.float32) for line in received]
        mean = ((lines[0] + lines[1]) + (lines[2] + lines[3])) * np.float32(0.25)
        self.edges = (self.edges + mean) * np.float32(0.5)

    def result(self) -> bytes:
        return self.edges.tobytes()


class Dispatch:
    """Tokens to experts: each rank routes `repeat` tokens to 8 distinct ranks (all, if fewer) and sends every
    rank its rows in one message, an empty one included. Rows have `size` bytes."""

    TOPK = 8
    rounds = 1

    def __init__(self, setting: Setting, rank: int) -> None:
        self.rank, self.setting = rank, setting
        self.capacity = setting.size * setting.repeat
        self.got = hashlib.sha256()

    def inbound(self, rank: int) -> list[Lane]:
        return [Lane(source, 0) for source in range(self.setting.num_ranks)]

    def expected(self, step: int) -> list[Lane]:
        return self.inbound(self.rank)

    def sends(self, step: int) -> list[Send]:
        n, tokens = self.setting.num_ranks, self.setting.repeat
        rng = np.random.default_rng((self.setting.seed, self.rank))
        routes = np.stack([rng.permutation(n)[: self.TOPK] for _ in range(tokens)])
        rows = rng.integers(0, 256, (tokens, self.setting.size), np.uint8)
        return [Send(target, 0, rows[(routes == target).any(axis=1)].reshape(-1)) for target in range(n)]

    def take(self, step: int, received: list[Bytes]) -> None:
        for source, rows in enumerate(received):
            self.got.update(source.to_bytes(4, "little") + rows.size.to_bytes(8, "little") + rows.tobytes())

    def result(self) -> bytes:
        return self.got.digest()


class KvTransfer:
    """Prefill to decode: rank i of the 1st half sends `repeat` layers of `size` bytes to that of the 2nd."""

    rounds = 1

    def __init__(self, setting: Setting, rank: int) -> None:
        self.rank, self.half, self.setting = rank, setting.num_ranks // 2, setting
        self.capacity = setting.size
        self.cache = b""

    def inbound(self, rank: int) -> list[Lane]:
        layers = self.setting.repeat if rank >= self.half else 0
        return [Lane(rank - self.half, layer) for layer in range(layers)]

    def expected(self, step: int) -> list[Lane]:
        return self.inbound(self.rank)

    def sends(self, step: int) -> list[Send]:
        if self.rank >= self.half:
            return []
        key = (self.setting.seed, self.rank)
        layers = range(self.setting.repeat)
        return [Send(self.rank + self.half, i, _noise(self.setting.size, *key, i)) for i in layers]

    def take(self, step: int, received: list[Bytes]) -> None:
        self.cache = b"".join(layer.tobytes() for layer in received)

    def result(self) -> bytes:
        return self.cache


WORKLOADS: dict[str, type[PingPong | Halo | Dispatch | KvTransfer]] = {
    "pingpong": PingPong,
    "halo": Halo,
    "dispatch": Dispatch,
    "kv-transfer": KvTransfer,
}


def check(name: str, setting: Setting) -> None:
    """Refuse a setting that a workload cannot have. Raises: UsageError."""
    ranks, size = setting.num_ranks, setting.size
    if name == "pingpong" and ranks < 2:
        raise UsageError("compare --op pingpong: needs at least 2 ranks")
    if name == "kv-transfer" and (ranks % 2 or ranks < 2):
        raise UsageError(f"compare --op kv-transfer: needs an even number of ranks, got {ranks}")
    if ranks < 1:
        raise UsageError(f"compare --op {name}: needs at least 1 rank, got {ranks}")
    if name == "halo" and size % 4:
        raise UsageError(f"compare --op halo: an edge holds float32 values; {size} B are no multiple of 4")


def make(name: str, setting: Setting, rank: int) -> Workload:
    """One rank's part of a workload by name. Raises: UsageError, a setting that it cannot have."""
    check(name, setting)
    return WORKLOADS[name](setting, rank)
