"""What a micro-benchmark is asked to do, and what one size of it gives. Pure.

Figures are in virtual time, so iterations of one size differ only where something changes between them (first
use, adversarial delivery); a handful is enough.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from emulator.errors import UsageError

KINDS = ("lat", "bw", "rate")
OPERATIONS = {
    "mem": ("put", "get", "put_signal", "cas"),
    "verbs": ("send", "write", "read", "cas"),
    "mpi": ("send",),
}
ENGINES = ("mte", "dma")
PAIRS = ("same-chip", "same-node", "cross-node")
FORMATS = ("perftest", "osu", "json")
ATOMIC_BYTES = 8
IN_FLIGHT_BYTES = 1 << 26
_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+)([KMG]?)I?B?", re.IGNORECASE)


MOST_BYTES, MOST_QUEUE_BYTES = 16 << 30, 1 << 30
"""Largest operation: on the memory path few of its bytes really move, on the others all."""
MOST_BATCH, MOST_CALLS = 1024, 100_000


@dataclass(frozen=True)
class BenchSpec:
    """One benchmark: what is measured, between which ranks, over which sizes.

    Attributes:
        kind: "lat" (one operation after the other), "bw" or "rate" (`batch` in flight).
        op, path, engine, pair: see `OPERATIONS`, `ENGINES`, `PAIRS`.
        sizes: message sizes, bytes.
        iterations, warmup: per size.
        batch: operations in flight ("bw", "rate").
        peer: the rank that rank 0 talks to; ranks between them only start and end.
        sliding: "bw", "rate" of verbs: `batch` are in flight all the time, the next one goes out when a
            completion is taken; else a batch is posted, waited for, and only then comes the next.
    """

    kind: str
    op: str
    path: str
    engine: str
    pair: str
    sizes: tuple[int, ...]
    iterations: int = 10
    warmup: int = 2
    batch: int = 64
    peer: int = 1
    sliding: bool = False

    def __post_init__(self) -> None:
        """Check what goes with what. Raises: UsageError."""
        for name, choices in (("kind", KINDS), ("path", tuple(OPERATIONS)), ("engine", ENGINES)):
            if getattr(self, name) not in choices:
                raise UsageError(f"bench: {name} {getattr(self, name)!r} is not one of {', '.join(choices)}")
        if self.op not in OPERATIONS[self.path]:
            names = ", ".join(OPERATIONS[self.path])
            raise UsageError(f"bench: --op {self.op} does not exist on path {self.path}, which has {names}")
        if self.pair not in PAIRS:
            raise UsageError(f"bench: --pair {self.pair}: choose one of {', '.join(PAIRS)}")
        if self.path != "mem" and self.engine != "mte":
            raise UsageError(
                f"bench: --engine {self.engine} belongs to --path mem; {self.path} has its own unit"
            )
        if self.iterations < 1 or self.warmup < 0 or self.batch < 1:
            raise UsageError("bench: iterations and batch must be at least 1, warm-up at least 0")
        if self.sliding and (self.path != "verbs" or self.kind == "lat"):
            raise UsageError("bench: only bw and rate of --path verbs keep a queue full")
        if self.op == "cas" and self.sizes != (ATOMIC_BYTES,):
            raise UsageError(f"bench: --op cas moves {ATOMIC_BYTES} bytes; give --sizes {ATOMIC_BYTES}")
        if not self.sizes or min(self.sizes) < 1:
            raise UsageError("bench: sizes must be at least 1 byte")
        self._check_bounds()

    def _check_bounds(self) -> None:
        """No larger than what a run can hold. Raises: UsageError."""
        largest = MOST_BYTES if self.path == "mem" else MOST_QUEUE_BYTES
        calls = self.iterations + self.warmup
        if max(self.sizes) > largest:
            raise UsageError(f"bench: --sizes {max(self.sizes)}: at most {largest} bytes on path {self.path}")
        if self.batch > MOST_BATCH:
            raise UsageError(f"bench: --batch {self.batch}: at most {MOST_BATCH} operations in flight")
        if calls > MOST_CALLS:
            raise UsageError(f"bench: {calls} iterations and warm-ups: at most {MOST_CALLS} a size")

    def in_flight(self, size: int) -> int:
        """Operations of an iteration: `batch`, or fewer where the real bytes would fill memory."""
        if self.kind == "lat":
            return 1
        return self.batch if self.path == "mem" else min(self.batch, max(1, IN_FLIGHT_BYTES // size))

    @property
    def both_ways(self) -> bool:
        """A latency is half of a round trip: the peer answers with the same operation."""
        return self.kind == "lat" and self.op in ("put", "put_signal", "send", "write")


@dataclass(frozen=True)
class Sample:
    """One size: every measured iteration, and what one operation cost in transactions.

    Attributes:
        size: message size, bytes.
        times_ps: per iteration; lat: one operation (half a round trip where `both_ways`), else a batch; of a
            sliding window without gaps, so that their sum is from the first post to the last completion.
        batch: operations in an iteration (1 for lat).
        transactions: by kind, of all ranks, per operation.
        label: where the numbers behind it come from: measured, published, derived, assumed (the weakest).
        peak_ps: of a sliding window, the shortest time of a batch (`sliding.peak`); 0: that of `times_ps`.
    """

    size: int
    times_ps: tuple[float, ...]
    batch: int
    transactions: Mapping[str, float] = field(default_factory=dict)
    label: str = "derived"
    peak_ps: float = 0

    @property
    def average_us(self) -> float:
        """Time of one operation, µs."""
        return sum(self.times_ps) / len(self.times_ps) / self.batch / 1e6

    @property
    def bytes_per_s(self) -> float:
        """Payload rate over all iterations."""
        return self.size * self.batch * len(self.times_ps) * 1e12 / sum(self.times_ps)

    @property
    def peak_bytes_per_s(self) -> float:
        """Payload rate of the best iteration."""
        return self.size * self.batch * 1e12 / (self.peak_ps or min(self.times_ps))

    @property
    def messages_per_s(self) -> float:
        """Operations a second."""
        return self.batch * len(self.times_ps) * 1e12 / sum(self.times_ps)


def keeps_full(kind: str, path: str, form: str) -> bool:
    """Return whether a benchmark keeps its queue full, as the tool does whose output is asked for.

    perftest does. OSU (`osu_bw`, `osu_put_bw`) posts a window and waits for all of it; so does MemFabric's
    benchmark of memory copies (a batch of 32 blocks), and windows have no completions to take one by one.
    """
    return kind != "lat" and path == "verbs" and form != "osu"


def parse_size(text: str, option: str = "--sizes") -> int:
    """Bytes of `512`, `8K`, `16M`, `4G` (powers of 1024), at least one. Raises UsageError naming `option`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option}: {text!r} is no size; write 8, 4K, 16M or 4G")
    if not (size := int(match[1]) * _SUFFIXES[match[2].upper()]):
        raise UsageError(f"{option} {text}: there is nothing to move; the least is 1 byte")
    return size


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes of `8:16M` (doubling, both ends included) or `8,64,1K`. Raises UsageError."""
    if ":" not in text:
        return tuple(parse_size(part) for part in text.split(","))
    first, _, last = text.partition(":")
    low, high = parse_size(first), parse_size(last)
    if not 1 <= low <= high:
        raise UsageError(f"--sizes {text}: write smallest:largest, from 1 byte on")
    sizes = []
    while low < high:
        sizes.append(low)
        low *= 2
    return (*sizes, high)
