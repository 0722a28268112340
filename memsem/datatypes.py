"""MPI datatypes: which bytes, counted from an element's start, belong to it and in which order they travel.

A datatype is a list of runs (offset, length) and an extent, the step from one element to the next. Basic
types are one run; the constructors place copies of an older type at new offsets. Everything here is pure.

Left out: Fortran's parametrised types, distributed arrays (`Create_darray`), external packing.

Source: MPI 4.1, chapter 5. Names and constructor arguments as mpi4py spells them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from memsem.mpi_errors import ERR_ARG, ERR_TYPE, failure

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
ORDER_C, ORDER_FORTRAN = 0, 1
UNDEFINED = -32766


class Datatype:
    """A datatype. Make basic ones from this module's names, others with the `Create_…` methods.

    Attributes:
        size: bytes of one element that travel.
        lb, extent: where an element starts and the distance to the next one, bytes.
        name: "" unless basic or set.
        is_predefined: a basic type; it cannot be freed.
    """

    def __init__(self, runs: Int64s, lb: int, extent: int, atoms: Int64s, name: str = "") -> None:
        """`runs`: int64 [k, 2] of (offset, bytes) in travelling order. `atoms`: int64, bytes of each basic
        element, in the same order."""
        self._runs, self._atoms = runs, atoms
        self.lb, self.extent, self.name = lb, extent, name
        self.size = int(runs[:, 1].sum())
        self.is_predefined = bool(name)
        self._usable = self.is_predefined

    # --- what it is -------------------------------------------------------------------------------------

    @property
    def ub(self) -> int:
        """Where an element ends, bytes."""
        return self.lb + self.extent

    @property
    def is_contiguous(self) -> bool:
        """Whether n elements are n * size bytes in a row from the start on."""
        return len(self._runs) <= 1 and self.extent == self.size and (not self.size or not self._runs[0, 0])

    def Get_size(self) -> int:
        """Return the bytes of one element that travel."""
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        """Return lower bound and extent, bytes."""
        return self.lb, self.extent

    def Get_true_extent(self) -> tuple[int, int]:
        """Return first byte touched and the span of the bytes touched, whatever the bounds say."""
        if not len(self._runs):
            return 0, 0
        first = int(self._runs[:, 0].min())
        return first, int(self._runs.sum(axis=1).max()) - first

    def Get_name(self) -> str:
        """Return the name, "" if it has none."""
        return self.name

    def Set_name(self, name: str) -> None:
        """Give the type a name."""
        self.name = name

    def __bool__(self) -> bool:
        return self is not DATATYPE_NULL

    def __repr__(self) -> str:
        return f"<Datatype {self.name or 'derived'}: {self.size} bytes, extent {self.extent}>"

    # --- new types --------------------------------------------------------------------------------------

    def Dup(self) -> Datatype:
        """Return a type of its own that moves the same bytes."""
        copy = Datatype(self._runs, self.lb, self.extent, self._atoms)
        copy._usable = self._usable
        return copy

    def Create_contiguous(self, count: int) -> Datatype:
        """Return `count` elements in a row as one type."""
        return self.Create_vector(1, count, count)

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Return `count` blocks of `blocklength` elements, `stride` elements from one start to the next."""
        return self.Create_hvector(count, blocklength, stride * self.extent)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """As `Create_vector`, the stride in bytes."""
        _check_counts([count, blocklength])
        return self.Create_hindexed([blocklength] * count, [i * stride for i in range(count)])

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Return blocks of their own lengths at their own displacements, both in elements."""
        return self.Create_hindexed(blocklengths, [d * self.extent for d in displacements])

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """As `Create_indexed`, the displacements in bytes."""
        return Datatype.Create_struct(blocklengths, displacements, [self] * len(blocklengths))

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """As `Create_indexed` with one length for all blocks."""
        return self.Create_indexed([blocklength] * len(displacements), displacements)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """As `Create_hindexed` with one length for all blocks."""
        return self.Create_hindexed([blocklength] * len(displacements), displacements)

    @classmethod
    def Create_struct(
        cls, blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]
    ) -> Datatype:
        """Return blocks of differing types at displacements in bytes.

        Raises:
            Exception: ERR_ARG for negative lengths or lists that differ in length; ERR_TYPE for a null type.
        """
        _check_counts(blocklengths)
        if not len(blocklengths) == len(displacements) == len(datatypes):
            raise failure(
                ERR_ARG,
                f"{len(blocklengths)} lengths, {len(displacements)} displacements",
                value=displacements,
            )
        starts = [
            (kind, d + i * kind.extent)
            for n, d, kind in zip(blocklengths, displacements, datatypes, strict=True)
            for i in range(n)
        ]
        return cls._placed([kind for kind, _ in starts], np.array([at for _, at in starts], np.int64))

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = ORDER_C
    ) -> Datatype:
        """Return the block `starts … starts + subsizes` of an array of shape `sizes`; its extent is the whole
        array.

        Raises:
            Exception: ERR_ARG where the block does not lie in the array.
        """
        bad = [
            d for d in zip(sizes, subsizes, starts, strict=True) if d[1] < 1 or not 0 <= d[2] <= d[0] - d[1]
        ]
        if bad:
            raise failure(ERR_ARG, f"block {bad[0][2]}+{bad[0][1]} is not within {bad[0][0]}", value=bad[0])
        places = np.arange(int(np.prod(sizes)), dtype=np.int64)
        shaped = places.reshape(sizes, order="C" if order == ORDER_C else "F")
        block = shaped[tuple(slice(s, s + n) for n, s in zip(subsizes, starts, strict=True))]
        chosen = block.reshape(-1, order="C" if order == ORDER_C else "F")
        return self._placed([self] * len(chosen), chosen * self.extent).Create_resized(
            0, len(places) * self.extent
        )

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """Return the same bytes under other bounds."""
        _check_type(self)
        return Datatype(self._runs, lb, extent, self._atoms)

    @classmethod
    def _placed(cls, kinds: Sequence[Datatype], starts: Int64s) -> Datatype:
        for kind in kinds:
            _check_type(kind)
        if not kinds:
            return cls(np.empty((0, 2), np.int64), 0, 0, np.empty(0, np.int64))
        runs = np.concatenate([kind._runs + [at, 0] for kind, at in zip(kinds, starts, strict=True)])
        lb = min(kind.lb + int(at) for kind, at in zip(kinds, starts, strict=True))
        ub = max(kind.ub + int(at) for kind, at in zip(kinds, starts, strict=True))
        return cls(_joined(runs), lb, ub - lb, np.concatenate([kind._atoms for kind in kinds]))

    def Commit(self) -> Datatype:
        """Make the type usable in messages; returns it."""
        _check_type(self)
        self._usable = True
        return self

    def Free(self) -> None:
        """Give the type up; a message that uses it afterwards is refused.

        Raises:
            Exception: ERR_TYPE for a basic type, an uncommitted or a freed one.
        """
        if self.is_predefined or not self._usable:
            raise failure(ERR_TYPE, f"{self!r} cannot be freed", value=self.name)
        self._usable = False

    # --- messages ---------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raise ERR_TYPE unless basic or committed."""
        if not self._usable:
            raise failure(ERR_TYPE, f"{self!r} is not committed (or freed)", value=self.name)

    def places(self, count: int) -> Int64s:
        """Return where each travelling byte of `count` elements lies, from the first element's start on:
        int64 [count * size]."""
        one = np.concatenate([np.arange(at, at + n) for at, n in self._runs.tolist()] or [np.empty(0, int)])
        each = np.arange(count, dtype=np.int64)[:, None] * self.extent
        return (each + one.astype(np.int64)).reshape(-1)

    def span(self, count: int) -> tuple[int, int]:
        """Return the first byte touched by `count` elements and the one after the last, from the start on."""
        if not count or not self.size:
            return 0, 0
        if self.is_contiguous:
            return 0, count * self.size
        first, length = self.Get_true_extent()
        step = (count - 1) * self.extent
        return first + min(step, 0), first + length + max(step, 0)

    def count_of(self, nbytes: int) -> int:
        """Return how many whole elements `nbytes` are, UNDEFINED if a part is left over."""
        if not self.size:
            return 0 if not nbytes else UNDEFINED
        return UNDEFINED if nbytes % self.size else nbytes // self.size

    def elements_of(self, nbytes: int) -> int:
        """Return how many basic elements `nbytes` are, UNDEFINED if they end within one."""
        if not self.size:
            return 0 if not nbytes else UNDEFINED
        whole, rest = divmod(nbytes, self.size)
        ends = np.concatenate([[0], np.cumsum(self._atoms)])
        found = int(np.searchsorted(ends, rest))
        return whole * len(self._atoms) + found if ends[found] == rest else UNDEFINED


def _check_type(kind: Datatype) -> None:
    if kind is DATATYPE_NULL:
        raise failure(ERR_TYPE, "a new type from the null datatype", value=None)


def _check_counts(counts: Iterable[int]) -> None:
    for count in counts:
        if count < 0:
            raise failure(ERR_ARG, f"a datatype cannot have {count} elements", value=count)


def _joined(runs: Int64s) -> Int64s:
    """Merge each run with the next where they touch; drop empty ones."""
    runs = runs[runs[:, 1] > 0]
    if not len(runs):
        return runs
    ends = runs.sum(axis=1)
    first = np.flatnonzero(np.concatenate([[True], runs[1:, 0] != ends[:-1]]))
    return np.column_stack([runs[first, 0], np.add.reduceat(runs[:, 1], first)])


DATATYPE_NULL = Datatype(np.empty((0, 2), np.int64), 0, 0, np.empty(0, np.int64))
DATATYPE_NULL.name = "MPI_DATATYPE_NULL"
