"""Batch invariance: the result of a row never depends on how many rows, or which, share its call.

A float32 matrix product may sum in another order when it gets another number of rows: on a CPU, one with 1 to
3 rows differs in the last bits from one with 4 or more. So every function of rows has one *ground truth*: a
call on a tile of exactly `TILE` rows, padded with zeros. Calls of other sizes are a speed-up, allowed only
once they are **proven** in this process: the same function on random rows must give the bits of the tiles,
row by row. A size which fails is not used, which costs time and changes nothing. The tile itself is proven to
be blind to a row's place in it; if it is not (no machine seen so far), rows are computed one by one.

Proofs belong to a function's name and shapes: the order in which a kernel sums does not depend on the values.
"""

from collections.abc import Callable

import torch

from emulator.errors import InternalError

__all__ = ["SIZES", "TILE", "Proofs", "RowFunction", "bits_equal"]

TILE = 8
SIZES = (4, 8, 16, 32, 64)
"""Row counts a function may be called with: the tile, and what may be proven equal to it."""

Rows = tuple[torch.Tensor, ...]
RowsFunction = Callable[..., Rows]


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two float32 or integer tensors hold the same bits (so -0.0 differs from 0.0)."""
    if a.dtype == torch.float32:
        a, b = a.contiguous().view(torch.int32), b.contiguous().view(torch.int32)
    return torch.equal(a, b)


class Proofs:
    """What has been proven in this process, by (name, shapes, size). One per loaded model."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], bool] = {}

    def holds(self, key: tuple[object, ...], prove: Callable[[], bool]) -> bool:
        """The remembered verdict for `key`; `prove` is run the first time."""
        verdict = self._known.get(key)
        if verdict is None:
            verdict = self._known[key] = prove()
        return verdict

    def verdicts(self) -> dict[tuple[object, ...], bool]:
        """A copy of all verdicts so far."""
        return dict(self._known)


class RowFunction:
    """`function` of row tensors, applied to any number of rows bit for bit independently of their company.

    Args:
        name: what the function computes; with the shapes it keys the proofs. Functions of one name must run
            the same kernels on the same shapes (the experts of all layers share one).
        function: takes tensors [s, …] that share their first extent s, returns a tuple of such tensors. Row i
            of the results may depend on row i of the arguments only.
        proofs: where verdicts are kept.
    """

    def __init__(self, name: str, function: RowsFunction, proofs: Proofs) -> None:
        self._name = name
        self._function = function
        self._proofs = proofs
        self._allowed: dict[int, bool] = {}

    def __call__(self, *rows: torch.Tensor) -> Rows:
        """Apply to rows [n, …] (n ≥ 0). Returns tensors [n, …]."""
        count = rows[0].shape[0]
        if count in SIZES and self._is_proven(count, rows):
            return self._function(*rows)
        return self._in_pieces(rows, count)

    def _in_pieces(self, rows: Rows, count: int) -> Rows:
        if count and count <= SIZES[-1]:
            size = self._next_size(count, rows)
            if size >= count:
                return tuple(out[:count] for out in self._padded(rows, size))
        pieces: list[Rows] = []
        start = 0
        while start < count or not pieces:
            size = self._next_size(count - start, rows)
            stop = min(start + size, count)
            outs = self._padded(tuple(tensor[start:stop] for tensor in rows), size)
            pieces.append(tuple(out[: stop - start] for out in outs))
            start = stop
        return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))

    def _padded(self, rows: Rows, size: int) -> Rows:
        given = rows[0].shape[0]
        if given == size:
            return self._function(*rows)
        if size == 1:  # the tile is not blind to places: an empty call still has to give the output shapes
            return self._function(*(tensor.new_zeros((1, *tensor.shape[1:])) for tensor in rows))
        tiles = []
        for tensor in rows:
            tile = tensor.new_zeros((size, *tensor.shape[1:]))
            tile[:given] = tensor
            tiles.append(tile)
        return self._function(*tiles)

    def _next_size(self, remaining: int, rows: Rows) -> int:
        """The proven size to use next: the largest that the remaining rows fill well enough."""
        if not self._is_proven(TILE, rows):
            return 1
        for size in reversed(SIZES):
            fills = remaining >= size // 2 + max(1, size // 8) or (size == SIZES[0] and remaining > 0)
            if fills and self._is_proven(size, rows):
                return size
        return TILE

    def _is_proven(self, size: int, rows: Rows) -> bool:
        allowed = self._allowed.get(size)
        if allowed is None:
            shapes = tuple((tuple(tensor.shape[1:]), tensor.dtype) for tensor in rows)
            if any(dtype != torch.float32 for _, dtype in shapes):
                raise InternalError(f"row function {self._name}: rows must be float32, got {shapes}")
            allowed = self._proofs.holds((self._name, shapes, size), lambda: self._prove(size, rows))
            self._allowed[size] = allowed
        return allowed

    def _prove(self, size: int, rows: Rows) -> bool:
        generator = torch.Generator().manual_seed(size)
        count = max(size, TILE) * (2 if size < TILE else 1)
        samples = tuple(torch.randn((count, *tensor.shape[1:]), generator=generator) for tensor in rows)
        if size == TILE:
            return self._blind_to_place(samples)
        if not self._is_proven(TILE, rows):
            return False
        wanted = self._by_size(samples, TILE)
        return all(bits_equal(a, b) for a, b in zip(self._by_size(samples, size), wanted, strict=True))

    def _by_size(self, rows: Rows, size: int) -> Rows:
        parts = zip(*(torch.split(tensor, size) for tensor in rows), strict=True)
        return tuple(torch.cat(outs) for outs in zip(*(self._function(*part) for part in parts), strict=True))

    def _blind_to_place(self, rows: Rows) -> bool:
        """Whether rolling the rows of a tile rolls its results, for every shift."""
        wanted = self._function(*rows)
        for shift in range(1, TILE):
            rolled = self._function(*(tensor.roll(shift, 0) for tensor in rows))
            if not all(bits_equal(a, b.roll(shift, 0)) for a, b in zip(rolled, wanted, strict=True)):
                return False
        return True
