"""MPI datatypes: which bytes, counted from an element's start, belong to it and in which order they travel.

A datatype is a list of runs (offset, length) and an extent, the step from one element to the next. Basic
types are one run; the constructors place copies of an older type at new offsets. Everything here is pure.

Left out: Fortran's parametrised types, distributed arrays (`Create_darray`), external packing.

Source: MPI 4.1, chapter 5. Names and constructor arguments as mpi4py spells them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from memsem.mpi_errors import ERR_ARG, ERR_TYPE, failure
from memsem.whole import is_whole

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
ORDER_C, ORDER_FORTRAN = 0, 1
UNDEFINED = -32766
MAX_ELEMENTS = 1 << 24
"""Most basic elements of one derived datatype (a message may have any number of those)."""
_FARTHEST = 1 << 46
_NOWHERE = 1 << 62
_NO_RUNS, _NO_ATOMS = np.empty((0, 2), np.int64), np.empty(0, np.int64)


class Datatype:
    """A datatype. Make basic ones from this module's names, others with the `Create_…` methods.

    Attributes:
        size: bytes of one element that travel.
        lb, extent: where an element starts and the distance to the next one, bytes.
        name: "" unless basic or set. base: name of the basic type all of it is made of, "" if of several.
        is_predefined: a basic type; it cannot be freed.
    """

    def __init__(
        self, runs: Int64s, lb: int, extent: int, atoms: Int64s, name: str = "", base: str = ""
    ) -> None:
        """`runs`: int64 [k, 2] of (offset, bytes) in travelling order. `atoms`: int64, bytes of each basic
        element, in the same order."""
        self._runs, self._atoms = runs, atoms
        self.lb, self.extent, self.name, self.base = lb, extent, name, base or name
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
        copy = Datatype(self._runs, self.lb, self.extent, self._atoms, base=self.base)
        copy._usable = self._usable
        return copy

    def Create_contiguous(self, count: int) -> Datatype:
        """Return `count` elements in a row as one type."""
        return self.Create_vector(1, count, count)

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Return `count` blocks of `blocklength` elements, `stride` elements from one start to the next."""
        _check_places([stride])
        return self.Create_hvector(count, blocklength, stride * self.extent)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """As `Create_vector`, the stride in bytes."""
        _check_counts([count, blocklength])
        _check_elements(count * blocklength, self)
        _check_places([stride])
        _check_places([max(0, count - 1) * stride])
        blocks, inside = np.arange(count, dtype=np.int64), np.arange(blocklength, dtype=np.int64)
        return self._placed(self, np.add.outer(blocks * stride, inside * self.extent).reshape(-1))

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Return blocks of their own lengths at their own displacements, both in elements."""
        _check_places(displacements)
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
        _check_places(displacements)
        for count, kind in zip(blocklengths, datatypes, strict=True):
            _check_elements(count, kind)
        blocks = [
            kind._copies(d + np.arange(n, dtype=np.int64) * kind.extent)
            for n, d, kind in zip(blocklengths, displacements, datatypes, strict=True)
        ]
        bases = {kind.base for kind in datatypes}
        return cls._merged(blocks, bases.pop() if len(bases) == 1 else "")

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = ORDER_C
    ) -> Datatype:
        """Return the block `starts … starts + subsizes` of an array of shape `sizes`; its extent is the whole
        array.

        Raises:
            Exception: ERR_ARG where the block does not lie in the array.
        """
        if not len(sizes) == len(subsizes) == len(starts):
            raise failure(ERR_ARG, f"{len(sizes)} sizes, {len(subsizes)} of the block", value=tuple(sizes))
        _check_places([*sizes, *subsizes, *starts])
        bad = [
            d for d in zip(sizes, subsizes, starts, strict=True) if d[1] < 1 or not 0 <= d[2] <= d[0] - d[1]
        ]
        if bad:
            raise failure(ERR_ARG, f"block {bad[0][2]}+{bad[0][1]} is not within {bad[0][0]}", value=bad[0])
        _check_elements(math.prod(sizes), self)
        places = np.arange(math.prod(sizes), dtype=np.int64)
        shaped = places.reshape(sizes, order="C" if order == ORDER_C else "F")
        block = shaped[tuple(slice(s, s + n) for n, s in zip(subsizes, starts, strict=True))]
        chosen = block.reshape(-1, order="C" if order == ORDER_C else "F")
        return self._placed(self, chosen * self.extent).Create_resized(0, len(places) * self.extent)

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """Return the same bytes under other bounds."""
        _check_type(self)
        _check_places([lb, extent])
        return Datatype(self._runs, lb, extent, self._atoms, base=self.base)

    def _copies(self, starts: Int64s) -> tuple[Int64s, Int64s, int, int]:
        """Return what copies of this type at `starts` are made of: runs, atoms, lower and upper bound."""
        _check_type(self)
        if not len(starts):
            return _NO_RUNS, _NO_ATOMS, _NOWHERE, -_NOWHERE
        at = np.column_stack([starts, np.zeros_like(starts)])
        runs = (self._runs[None] + at[:, None]).reshape(-1, 2)
        return (
            runs,
            np.tile(self._atoms, len(starts)),
            self.lb + int(starts.min()),
            self.ub + int(starts.max()),
        )

    @classmethod
    def _placed(cls, kind: Datatype, starts: Int64s) -> Datatype:
        """Return copies of one type at `starts` as one type."""
        return cls._merged([kind._copies(starts)], kind.base)

    @classmethod
    def _merged(cls, blocks: Sequence[tuple[Int64s, Int64s, int, int]], base: str) -> Datatype:
        """Return blocks, as `_copies` makes them, as one type."""
        lb = min((block[2] for block in blocks), default=_NOWHERE)
        ub = max((block[3] for block in blocks), default=-_NOWHERE)
        if lb > ub:
            lb = ub = 0
        runs = np.concatenate([_NO_RUNS, *(block[0] for block in blocks)])
        atoms = np.concatenate([_NO_ATOMS, *(block[1] for block in blocks)])
        return cls(_joined(runs), lb, ub - lb, atoms, base=base)

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
        if not is_whole(count) or count < 0:
            raise failure(ERR_ARG, f"a datatype cannot have {count!r} elements", value=count)


def _check_places(places: Iterable[int]) -> None:
    """Refuse displacements, strides and bounds that no memory has."""
    for place in places:
        if not is_whole(place) or abs(place) > _FARTHEST:
            raise failure(ERR_ARG, f"{place!r} is no whole number within {_FARTHEST}", value=place)


def _check_elements(count: int, kind: Datatype) -> None:
    """Refuse a type that would be more than memory holds: each basic element is kept."""
    elements = count * max(1, len(kind._atoms))
    if elements > MAX_ELEMENTS:
        raise failure(
            ERR_ARG, f"a datatype of {elements} basic elements; at most {MAX_ELEMENTS}", value=count
        )


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
