"""Cartesian communicators: ranks laid out on a grid, with neighbours by dimension.

    grid = comm.Create_cart(MPI.Compute_dims(comm.size, 2), periods=[True, False])
    below, above = grid.Shift(0, 1)         # whom to receive from, whom to send to

Row-major order, as MPI prescribes; a neighbour beyond an edge that does not wrap is PROC_NULL.
Left out: graph topologies, neighbourhood collectives, reordering (`reorder` is accepted and changes nothing).

Source: MPI 4.1, sections 8.5.1 (`Create_cart`), 8.5.2 (`Compute_dims`), 8.5.5 and 8.5.6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from memsem.datatypes import UNDEFINED
from memsem.message import Comm
from memsem.mpi_errors import ERR_ARG, ERR_DIMS, failure
from memsem.status import PROC_NULL
from memsem.whole import is_whole


def Compute_dims(nnodes: int, dims: int | Sequence[int]) -> list[int]:
    """Return a grid for `nnodes` ranks that is as square as can be, larger dimensions first.

    Args:
        dims: how many dimensions; or their sizes, 0 where one is to be chosen.

    Raises:
        Exception: ERR_DIMS, the given sizes do not divide `nnodes` or are negative.
    """
    given = [0] * dims if isinstance(dims, int) else list(dims)
    if not all(map(is_whole, (nnodes, *given))):
        raise failure(ERR_DIMS, f"{nnodes!r} ranks on a grid of {given}: whole numbers", value=nnodes)
    fixed = math.prod(d for d in given if d)
    free = given.count(0)
    if min(given, default=0) < 0 or nnodes < 1 or nnodes % fixed or (not free and fixed != nnodes):
        raise failure(ERR_DIMS, f"{nnodes} ranks do not fill a grid of {given}", value=nnodes)
    chosen = iter(_squarest(nnodes // fixed, free))
    return [d or next(chosen) for d in given]


def _squarest(number: int, parts: int) -> list[int]:
    """Split a number into factors that do not rise and whose first is as small as can be."""
    if parts <= 1:
        return [number] * parts
    for first in range(1, number + 1):
        if number % first == 0 and first**parts >= number:
            rest = _squarest(number // first, parts - 1)
            if rest[0] <= first:
                return [first, *rest]
    raise AssertionError("a number divides itself")


class Intracomm(Comm):
    """A communicator that can be laid out on a grid."""

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None, reorder: bool = False
    ) -> Cartcomm:
        """Return a communicator of the first prod(dims) ranks on a grid; null for the others. Collective.

        Args:
            periods: which dimensions wrap; one value for all, none by default.

        Raises:
            Exception: ERR_ARG, more places than ranks; ERR_DIMS, negative sizes or lists of unequal length.
        """
        wraps = (
            [int(bool(periods))] * len(dims)
            if isinstance(periods, bool | None)
            else [int(bool(p)) for p in periods]
        )
        if not all(is_whole(d) and d >= 0 for d in dims) or len(wraps) != len(dims):
            raise failure(ERR_DIMS, f"dims {list(dims)} with periods {wraps}", value=tuple(dims))
        places = math.prod(dims)
        if places > self.size:
            raise failure(ERR_ARG, f"{places} places for {self.size} ranks", value=places)
        inside = self.Split(0 if self.rank < places else UNDEFINED, self.rank)
        grid = Cartcomm(self.endpoint if inside else None, inside.ident, inside.members)
        grid.dims, grid.periods = list(dims), wraps
        return grid


class Cartcomm(Intracomm):
    """Ranks on a grid.

    Attributes:
        dims: size of each dimension. periods: 1 where it wraps.
    """

    dims: list[int]
    periods: list[int]

    @property
    def ndim(self) -> int:
        """Dimensions of the grid."""
        return len(self.dims)

    @property
    def coords(self) -> list[int]:
        """My place."""
        return self.Get_coords(self.rank)

    @property
    def topo(self) -> tuple[list[int], list[int], list[int]]:
        """Sizes, which wrap, and my place."""
        return self.dims, self.periods, self.coords

    def Get_dim(self) -> int:
        """Return the dimensions of the grid."""
        return self.ndim

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        """Return sizes, which wrap, and my place."""
        return self.topo

    def Get_coords(self, rank: int) -> list[int]:
        """Return the place of a rank. Raises: Exception (ERR_RANK)."""
        self._check_rank(rank)
        place = []
        for size in reversed(self.dims):
            rank, at = divmod(rank, size)
            place.append(at)
        return place[::-1]

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """Return the rank at a place; coordinates beyond an edge wrap where the dimension does.

        Raises:
            Exception: ERR_ARG, beyond an edge that does not wrap, or another number of coordinates.
        """
        if len(coords) != self.ndim:
            raise failure(
                ERR_ARG, f"{len(coords)} coordinates in {self.ndim} dimensions", value=tuple(coords)
            )
        rank = 0
        for at, size, wraps in zip(coords, self.dims, self.periods, strict=True):
            if not wraps and not 0 <= at < size:
                raise failure(ERR_ARG, f"coordinate {at} of a dimension of {size}", value=at)
            rank = rank * size + at % size
        return rank

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return the ranks `disp` places before and after me along a dimension, PROC_NULL beyond an edge.

        Raises:
            Exception: ERR_DIMS, no such dimension.
        """
        if not 0 <= direction < self.ndim:
            raise failure(ERR_DIMS, f"dimension {direction} of {self.ndim}", value=direction)
        return self._beside(direction, -disp), self._beside(direction, disp)

    def _beside(self, direction: int, disp: int) -> int:
        place, size = self.coords, self.dims[direction]
        place[direction] += disp
        if not self.periods[direction] and not 0 <= place[direction] < size:
            return PROC_NULL
        return self.Get_cart_rank(place)

    def Dup(self, info: object = None) -> Self:
        """Return a grid of the same shape whose messages never meet this one's. Collective."""
        copy = super().Dup(info)
        copy.dims, copy.periods = list(self.dims), list(self.periods)
        return copy

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """Return the grid of those who share my place in the dimensions that do not remain. Collective."""
        keep = [bool(r) for r in remain_dims]
        color = key = 0
        for at, size, kept in zip(self.coords, self.dims, keep, strict=True):
            color, key = (color, key * size + at) if kept else (color * size + at, key)
        part = self.Split(color, key)
        part.dims = [d for d, kept in zip(self.dims, keep, strict=True) if kept]
        part.periods = [p for p, kept in zip(self.periods, keep, strict=True) if kept]
        return part
