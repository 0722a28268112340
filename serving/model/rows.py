"""Batch invariance: the result of a row never depends on how many rows, or which, share its call.

A float32 matrix product may sum in another order when it gets another number of rows: on a CPU, one with 1 to
3 rows differs in the last bits from one with 4 or more. So every function of rows has one *ground truth*: a
call on a tile of exactly `TILE` rows, padded with zeros. Calls of other sizes are a speed-up, allowed only
once they are **proven** in this process: the same function on random rows must give the bits of the tiles,
row by row. A size which fails is not used, which costs time and changes nothing. The tile itself is proven to
be blind to a row's place in it; if it is not (no machine seen so far), rows are computed one by one.

Proofs belong to a function's name and shapes: the order in which a kernel sums does not depend on the values,
and another order shows in the last bit of about every other sum. What differs rarely, by value, is not left
to them (`elementwise.py`).
"""

from collections.abc import Callable

import torch

from emulator.errors import InternalError

__all__ = ["SIZES", "TILE", "Proofs", "RowFunction", "bits_equal"]

TILE = 8
SIZES = (4, 8, 16, 24, 32, 48, 64, 256)
"""Row counts a function may be called with: the tile, and what may be proven equal to it."""

_WORTH_PADDING = 160
"""More rows than this are padded to the largest size; up to the second largest, to the next size."""

_SAMPLE_ROWS = 32  # at least; a multiple of the tile and of every size below it

_FUSED_ROWS = (1, 5, 27, 64)  # every way of the compiled calls to hold rows

Rows = tuple[torch.Tensor, ...]
RowsFunction = Callable[..., Rows]


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two float32 or integer tensors hold the same bits (so -0.0 differs from 0.0)."""
    if a.dtype == torch.float32:
        a, b = a.contiguous().view(torch.int32), b.contiguous().view(torch.int32)
    return torch.equal(a, b)


def _preferred(remaining: int) -> tuple[int, ...]:
    """Sizes for the next call, best first; the tile, which needs no proof here, is among them."""
    if remaining > _WORTH_PADDING:
        return SIZES[::-1]
    ordinary = SIZES[:-1]
    if remaining > ordinary[-1]:
        return ordinary[::-1]
    larger = tuple(size for size in ordinary if size >= remaining)
    return larger + tuple(size for size in reversed(ordinary) if size < remaining) + (TILE,)


def _samples(size: int, rows: Rows) -> Rows:
    """Random rows of these shapes, some calls of `size` rows."""
    generator = torch.Generator().manual_seed(size)
    count = -(-_SAMPLE_ROWS // size) * size
    return tuple(torch.randn((count, *tensor.shape[1:]), generator=generator) for tensor in rows)


def _one_row(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone() if len(tensor) else tensor.new_zeros((1, *tensor.shape[1:]))


class Proofs:
    """What has been proven in this process, by (name, shapes, size), and zeros to pad with. One per model."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], bool] = {}
        self._zeros: dict[tuple[object, ...], torch.Tensor] = {}

    def holds(self, key: tuple[object, ...], prove: Callable[[], bool]) -> bool:
        """The remembered verdict for `key`; `prove` is run the first time."""
        verdict = self._known.get(key)
        if verdict is None:
            verdict = self._known[key] = prove()
        return verdict

    def zeros(self, count: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Zero rows to pad with, float32 [count, *shape]; kept, never written."""
        found = self._zeros.get((count, shape))
        if found is None:
            found = self._zeros[count, shape] = torch.zeros((count, *shape))
        return found

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
        truth: what the results must equal where `function` computes only some columns of a product: the whole
            product's, cut out. It takes the function's place unless they are proven equal.
        fused: the same as one compiled call for any number of rows, used once proven (`fused.py`); or None.
    """

    def __init__(
        self,
        name: str,
        function: RowsFunction,
        proofs: Proofs,
        truth: RowsFunction | None = None,
        fused: RowsFunction | None = None,
    ) -> None:
        self._name = name
        self._function = function
        self._proofs = proofs
        self._truth = truth
        self._fused = fused
        self._trusted: bool | None = None if fused else False
        self._allowed: dict[int, bool] = {}
        self._sizes: dict[int, tuple[int, ...]] = {}

    def __call__(self, *rows: torch.Tensor) -> Rows:
        """Apply to rows [n, …] (n ≥ 0). Returns tensors [n, …]."""
        if self._trusted is None:
            self._trusted = self._is_fused_proven(rows)
        if self._trusted and self._fused is not None:
            return self._fused(*rows)
        return self._in_tiles(*rows)

    def _in_tiles(self, *rows: torch.Tensor) -> Rows:
        count = rows[0].shape[0]
        sizes = self._sizes.get(count)
        if sizes is None:
            sizes = self._sizes[count] = self._plan(count, rows)
        if len(sizes) == 1:
            return self._call(rows, count, sizes[0])
        pieces: list[Rows] = []
        start = 0
        for size in sizes:
            given = min(size, count - start)
            pieces.append(self._call(tuple(tensor[start : start + given] for tensor in rows), given, size))
            start += given
        return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))

    def _call(self, rows: Rows, given: int, size: int) -> Rows:
        """One call on `size` rows, of which `given` are given and the others zeros."""
        if size == 1:  # the last resort: always the same call, down to the alignment
            return tuple(out[:given] for out in self._function(*(_one_row(tensor) for tensor in rows)))
        if given == size:
            return self._function(*rows)
        padded = [torch.cat((tensor, self._proofs.zeros(size - given, tensor.shape[1:]))) for tensor in rows]
        return tuple(out[:given] for out in self._function(*padded))

    def _plan(self, count: int, rows: Rows) -> tuple[int, ...]:
        """Sizes of the calls that cover `count` rows: the largest proven ones that are filled well enough."""
        if not self._is_proven(TILE, rows):
            return (1,) * max(count, 1)
        sizes: list[int] = []
        remaining = max(count, 1)
        while remaining > 0:
            sizes.append(next(size for size in _preferred(remaining) if self._is_proven(size, rows)))
            remaining -= sizes[-1]
        return tuple(sizes)

    def _is_proven(self, size: int, rows: Rows) -> bool:
        allowed = self._allowed.get(size)
        if allowed is None:
            shapes = tuple((tuple(tensor.shape[1:]), tensor.dtype) for tensor in rows)
            if any(dtype != torch.float32 for _, dtype in shapes):
                raise InternalError(f"row function {self._name}: rows must be float32, got {shapes}")
            self._settle(shapes, rows)
            allowed = self._proofs.holds((self._name, shapes, size), lambda: self._prove(size, rows))
            self._allowed[size] = allowed
        return allowed

    def _settle(self, shapes: tuple[object, ...], rows: Rows) -> None:
        """Compute the truth from now on unless the function has its bits: of tiles whose rows' places have no
        effect, from which everything else is proven."""
        truth, self._truth = self._truth, None
        if truth is None:
            return
        function = self._function

        def is_true() -> bool:
            tiles = list(zip(*(torch.split(t, TILE) for t in _samples(TILE, rows)), strict=True))
            return all(self._blind_to_place(tile) for tile in tiles) and all(
                bits_equal(a, b) for tile in tiles for a, b in zip(function(*tile), truth(*tile), strict=True)
            )

        if not self._proofs.holds((self._name, shapes, "part"), is_true):
            self._name, self._function = f"{self._name}.whole", truth

    def _is_fused_proven(self, rows: Rows) -> bool:
        shapes = tuple((tuple(tensor.shape[1:]), tensor.dtype) for tensor in rows)
        return self._proofs.holds((self._name, shapes, "fused"), lambda: self._prove_fused(rows))

    def _prove_fused(self, rows: Rows) -> bool:
        """Whether the compiled call gives the bits of this function for each of these numbers of rows."""
        if self._fused is None:
            return False
        generator = torch.Generator().manual_seed(0)
        for count in _FUSED_ROWS:
            samples = [torch.randn((count, *tensor.shape[1:]), generator=generator) for tensor in rows]
            pairs = zip(self._fused(*samples), self._in_tiles(*samples), strict=True)
            if not all(bits_equal(a, b) for a, b in pairs):
                return False
        return True

    def _prove(self, size: int, rows: Rows) -> bool:
        samples = _samples(size, rows)
        if size == TILE:
            return all(
                self._blind_to_place(tile)
                for tile in zip(*(torch.split(t, TILE) for t in samples), strict=True)
            )
        if not self._is_proven(TILE, rows):
            return False
        wanted = self._by_size(samples, TILE)
        return all(bits_equal(a, b) for a, b in zip(self._by_size(samples, size), wanted, strict=True))

    def _by_size(self, rows: Rows, size: int) -> Rows:
        parts = zip(*(torch.split(tensor, size) for tensor in rows), strict=True)
        return tuple(torch.cat(outs) for outs in zip(*(self._function(*part) for part in parts), strict=True))

    def _blind_to_place(self, rows: Rows) -> bool:
        """Whether rolling the rows of a tile, to the next place and by half a tile, rolls its results."""
        wanted = self._function(*rows)
        for shift in (1, TILE // 2):
            rolled = self._function(*(tensor.roll(shift, 0) for tensor in rows))
            if not all(bits_equal(a, b.roll(shift, 0)) for a, b in zip(rolled, wanted, strict=True)):
                return False
        return True
