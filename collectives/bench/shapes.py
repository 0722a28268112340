"""What a benchmark of collectives measures: its specification, counts, and bandwidth factors. Pure.

Sizes, counts and bus bandwidth as nccl-tests (`doc/PERFORMANCE.md`, and each test's `GetCollByteCount` and
`GetBw`): a size is that of the larger of the two buffers; `count` is elements of one rank's block where the
buffer is made of a block for each rank, else of the buffer; bus bandwidth is algorithm bandwidth times

    all_reduce                                    2 (n - 1) / n
    all_gather(_v), reduce_scatter, all_to_all(_v)  (n - 1) / n
    gather, scatter                               (n - 1) / n
    broadcast, reduce                             1

Operations in v have unequal blocks (`unequal`), in all as many elements as those of equal ones.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from emulator.errors import UsageError
from emulator.profile import nearest

UNEQUAL: Final = ("all_gather_v", "all_to_all_v")
BLOCKWISE: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", *UNEQUAL)
"""Operations whose larger buffer has a block for each rank."""
REDUCING: Final = ("all_reduce", "reduce_scatter", "reduce")
ROOTED: Final = ("broadcast", "reduce", "gather", "scatter")
COLLECTIVES: Final = ("all_reduce", *BLOCKWISE, "broadcast", "reduce", "barrier")
DTYPES: Final = {
    "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "half": 2, "bfloat16": 2, "float": 4, "double": 8,
}  # fmt: skip
"""Element types by nccl-tests' names, with their bytes."""
REDUCTIONS: Final = ("sum", "prod", "max", "min")
FORMATS: Final = ("nccl", "osu", "json")
MOST_BYTES: Final = 1 << 40
REAL_BYTES: Final = 1 << 28
"""Bytes really moved and checked by default, of the larger buffers of all ranks together."""


class CollSpec(NamedTuple):
    """One benchmark.

    coll, algo: operation of `COLLECTIVES`; algorithm, or None for the selector's. sizes: bytes. dtype, redop:
    of `DTYPES`, `REDUCTIONS`. real_bytes: most bytes really moved and checked, of the larger buffers of all
    ranks together; what is larger is charged in full.
    """

    coll: str
    algo: str | None
    sizes: tuple[int, ...]
    dtype: str = "float"
    redop: str = "sum"
    root: int = 0
    iterations: int = 5
    warmup: int = 1
    real_bytes: int = REAL_BYTES


class CollSample(NamedTuple):
    """One size, measured. Times are over ranks: of the mean over iterations of each, microseconds.

    real: bytes of the larger buffer of a rank that were moved and checked. in_place_us: of the slowest rank,
    with the same memory sent and received; None where there is no such form. wrong, in_place_wrong: elements.
    """

    size: int
    count: int  # type: ignore[assignment]
    ranks: int
    algorithm: str
    average_us: float
    least_us: float
    most_us: float
    wrong: int
    real: int = 0
    in_place_us: float | None = None
    in_place_wrong: int = 0

    def halves(self) -> list[tuple[float, int]]:
        """(time of the slowest rank, wrong elements) out of place and, where there is one, in place."""
        both = [(self.most_us, self.wrong)]
        return both if self.in_place_us is None else [*both, (self.in_place_us, self.in_place_wrong)]

    def algbw(self, us: float) -> float:
        """Algorithm bandwidth, GB/s (10^9): size over a time."""
        return self.size / us / 1e3 if us else 0.0

    def busbw(self, coll: str, us: float) -> float:
        """Bus bandwidth, GB/s (10^9)."""
        return self.algbw(us) * bus_factor(coll, self.ranks)


def operation(name: str) -> str:
    """The operation of a name as users write it (all_reduce, all-reduce, AllReduce, alltoall). Raises
    UsageError."""
    plain = {coll.replace("_", ""): coll for coll in COLLECTIVES}
    key = name.lower().replace("-", "").replace("_", "")
    if key not in plain:
        raise UsageError(f"--coll {name}: there is no such collective{nearest(name, COLLECTIVES)}")
    return plain[key]


def bus_factor(coll: str, ranks: int) -> float:
    """By what bus bandwidth exceeds algorithm bandwidth."""
    if coll == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if coll in BLOCKWISE else 1.0


def count_of(coll: str, size: int, itemsize: int, ranks: int) -> int:
    """Elements of a block (`BLOCKWISE`) or of the buffer for about `size` bytes: rounded down, at least 1 if
    there are bytes at all."""
    if coll == "barrier" or not size:
        return 0
    return max(1, size // itemsize // (ranks if coll in BLOCKWISE else 1))


def size_of(coll: str, count: int, itemsize: int, ranks: int) -> int:
    """Bytes of the larger buffer."""
    return count * itemsize * (ranks if coll in BLOCKWISE else 1)


def unequal(count: int, ranks: int) -> list[int]:
    """Elements of the blocks of a rank, the j-th from it on: half more and half less than `count` in turns,
    in all ranks * count. Block j of rank r is for rank r + j (all_to_all_v), or is that of rank j."""
    turn = [count + count // 2 * (1 if j % 2 else -1) for j in range(ranks)]
    even = (0, 1) if ranks % 2 == 0 else (0,)
    return [count if j in even else size for j, size in enumerate(turn)]


def lifted(spec: CollSpec, ranks: int) -> list[tuple[int, int]]:
    """(asked, measured) bytes of sizes that are less than one element, or one of each rank."""
    least = size_of(spec.coll, 1, DTYPES[spec.dtype], ranks)
    return [(size, least) for size in spec.sizes if 0 < size < least and spec.coll != "barrier"]


def real_count(spec: CollSpec, count: int, ranks: int) -> int:
    """How many of `count` elements are really moved: all, or as many as `real_bytes` has room for."""
    each = size_of(spec.coll, 1, DTYPES[spec.dtype], ranks) * ranks
    return min(count, max(1, spec.real_bytes // each))


def counts_of(spec: CollSpec, ranks: int) -> list[int]:
    """The counts to measure, each once."""
    itemsize = DTYPES[spec.dtype]
    return list(dict.fromkeys(count_of(spec.coll, size, itemsize, ranks) for size in spec.sizes))


def most_moved(spec: CollSpec, ranks: int) -> int:
    """Bytes of the larger buffers of all ranks that are really moved, at most."""
    largest = max(real_count(spec, count, ranks) for count in counts_of(spec, ranks))
    return size_of(spec.coll, largest, DTYPES[spec.dtype], ranks) * ranks


def check(spec: CollSpec, ranks: int) -> None:
    """Refuse what cannot be measured. Raises UsageError: one line, what and the nearest choice."""
    if not 0 <= spec.root < ranks:
        raise UsageError(f"--root {spec.root}: ranks are 0 to {ranks - 1}")
    for name, value, least, most in (
        ("--iterations", spec.iterations, 1, 100_000),
        ("--warmup", spec.warmup, 0, 100_000),
        ("--real", spec.real_bytes, 1, 1 << 32),
    ):
        if not least <= value <= most:
            raise UsageError(f"{name} {value}: choose {least} to {most}")
    if max(spec.sizes) > MOST_BYTES:
        raise UsageError(f"--sizes: {max(spec.sizes)} bytes are more than {MOST_BYTES}")
    if spec.redop != "sum" and spec.coll not in REDUCING:
        raise UsageError(f"--redop {spec.redop}: {spec.coll} reduces nothing; leave it out")
