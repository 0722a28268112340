"""Pieces of a layer as one compiled call each (`native/*.c`), with the bits torch gives.

Plain torch says what a piece computes; short rows spend nine tenths of their time between its calls. A
compiled piece does the same arithmetic in the same order, with torch's own exponentials, and is used only
once proven in this process: the bits of plain torch on random rows (`rows.py`). Where there is no compiler,
on another processor or where a proof fails, torch is used, which costs time and changes nothing.

SUPERPOD_PLAIN_TORCH=1 leaves them out.
"""

import ctypes
import os
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["Attention", "head", "mlp", "norm", "router"]

Fused = Callable[..., tuple[torch.Tensor, ...]]
"""What a `RowFunction` computes, for any number of rows."""

_LANES = 16
_MOST_FLOATS = 1 << 16
"""Scratch values of a row times lanes that may lie on the stack."""


class _Library:
    """The compiled pieces, and the functions of torch's library they call."""

    def __init__(self, path: Path) -> None:
        pieces = ctypes.PyDLL(str(path))
        theirs = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        self.exp8 = _address_of(theirs.Sleef_expf8_u10avx2)
        self.exp = _address_of(theirs.vmsExp)
        pieces.fused_usable.restype = ctypes.c_int64
        if not pieces.fused_usable():
            raise OSError("this processor has no AVX2 or no fused multiply-add")
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        for name in ("fused_norm", "fused_head", "fused_mlp"):
            getattr(pieces, name).argtypes = [pointer, pointer, number, pointer]
        pieces.fused_route.argtypes = [pointer, pointer, number, pointer, pointer]
        pieces.fused_attention.argtypes = [pointer] * 5
        self.norm, self.head, self.mlp = pieces.fused_norm, pieces.fused_head, pieces.fused_mlp
        self.route, self.attention = pieces.fused_route, pieces.fused_attention


def _address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def _library() -> _Library | None:
    """The compiled pieces, or None where they were not built or cannot run."""
    path = Path(__file__).parent / "native" / "_fused.so"
    if os.environ.get("SUPERPOD_PLAIN_TORCH") or not path.exists():
        return None
    try:
        return _Library(path)
    except (OSError, AttributeError):  # another processor, or another build of torch
        return None


class _Numbers:
    """A structure of the compiled pieces, and the tensors it points to."""

    def __init__(self, layout: str, *values: int | float | torch.Tensor) -> None:
        self._tensors = [v for v in values if isinstance(v, torch.Tensor)]
        numbers = [v.data_ptr() if isinstance(v, torch.Tensor) else v for v in values]
        self._bytes = ctypes.create_string_buffer(struct.pack(layout, *numbers))
        self.address = ctypes.addressof(self._bytes)


def _fits(weights: list[torch.Tensor], *widths: int) -> bool:
    """Whether weights are float32 row by row, and scratch of these widths fits; widths are multiples of 8."""
    plain = all(w.dtype == torch.float32 and w.is_contiguous() for w in weights)
    return plain and sum(widths) * _LANES <= _MOST_FLOATS and all(w % 8 == 0 for w in widths)


def _row_by_row(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_contiguous() else x.contiguous()


def _of_rows(run: Any, numbers: _Numbers, width: int) -> Fused:
    """A piece that makes rows [n, width] of rows."""

    def piece(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = _row_by_row(x)
        rows = x.shape[0]
        out = torch.empty(rows, width)
        run(numbers.address, x.data_ptr(), rows, out.data_ptr())
        return (out,)

    return piece


def norm(weight: torch.Tensor, eps: float) -> Fused | None:
    """`RMSNorm` with a weight float32 [width]."""
    library, width = _library(), len(weight)
    if library is None or not _fits([weight], width):
        return None
    return _of_rows(library.norm, _Numbers("<qqqqd", width, 0, weight, 0, eps), width)


def head(norm_weight: torch.Tensor, eps: float, weights: torch.Tensor) -> Fused | None:
    """Norm, then the product with weights float32 [outputs, width], transposed."""
    library, (outputs, width) = _library(), weights.shape
    if library is None or not _fits([norm_weight, weights], width, outputs):
        return None
    return _of_rows(library.head, _Numbers("<qqqqd", width, outputs, norm_weight, weights, eps), outputs)


def mlp(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> Fused | None:
    """down(silu(gate(x)) · up(x)); gate and up float32 [width, hidden], down float32 [hidden, width]."""
    library, (width, hidden) = _library(), gate.shape
    if library is None or not _fits([gate, up, down], hidden, 3 * width):
        return None
    numbers = _Numbers("<qqqqqq", hidden, width, gate, up, down, library.exp8)
    return _of_rows(library.mlp, numbers, hidden)


def router(
    gate: torch.Tensor,
    bias: torch.Tensor,
    groups: tuple[int, int],
    top_k: int,
    normalise: bool,
    factor: float,
) -> Fused | None:
    """Sigmoid scores of normed rows and the choice of experts.

    Args:
        gate: float32 [experts, hidden]. bias: float32 [experts].
        groups: all, and those that stay open. top_k: experts chosen.
        normalise: whether weights are shares of their sum. factor: on the weights.
    """
    library, (experts, hidden) = _library(), gate.shape
    if library is None or not _fits([gate, bias], hidden, 2 * experts):
        return None
    sizes = hidden, experts, *groups, top_k, normalise
    numbers = _Numbers("<qqqqqqqqdq", *sizes, gate, bias, factor, library.exp8)
    run = library.route

    def piece(h: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = _row_by_row(h)
        rows = h.shape[0]
        chosen, weights = torch.empty(rows, top_k, dtype=torch.int64), torch.empty(rows, top_k)
        run(numbers.address, h.data_ptr(), rows, chosen.data_ptr(), weights.data_ptr())
        return chosen, weights

    return piece


class Attention:
    """Latent attention of one layer, residual included; see `attention.LatentAttention`.

    Args:
        sizes: hidden, heads, nope, rope, rank, value, inputs of the query product.
        weights: norm, q_a, q_norm (or None twice), q, kv_a, kv_norm, kv_b, o.
        eps: of the norm, and of the inner ones.
    """

    def __init__(self, library: _Library, sizes: tuple[int, ...], *rest: int | float | torch.Tensor) -> None:
        self._numbers = _Numbers("<" + "q" * 17 + "ddd", *sizes, *rest)
        self._run = library.attention

    @classmethod
    def made(
        cls,
        sizes: tuple[int, ...],
        interleave: bool,
        weights: list[torch.Tensor | None],
        eps: tuple[float, float],
        scale: float,
    ) -> "Attention | None":
        """One, or None where that cannot be."""
        library = _library()
        hidden, heads, nope, rope, rank, value, q_in = sizes
        there = [w for w in weights if w is not None]
        widths = hidden, q_in, rank, 2 * heads * (nope + rope), 2 * heads * (rank + value), 2 * (rank + rope)
        if library is None or heads > _LANES or rope % 2 or not _fits(there, *widths):
            return None
        pointers = [0 if w is None else w for w in weights]
        return cls(library, sizes, interleave, *pointers, library.exp, *eps, scale)

    def __call__(self, x: torch.Tensor, pages: torch.Tensor, step: int) -> torch.Tensor:
        """x float32 [rows, hidden] of the step at `plan.StepPlan.address`; writes pages."""
        x = _row_by_row(x)
        out = torch.empty_like(x)
        if self._run(self._numbers.address, step, x.data_ptr(), pages.data_ptr(), out.data_ptr()):
            raise MemoryError("attention: no memory for scores")
        return out
