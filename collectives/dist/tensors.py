"""Tensors as the arrays the collectives move: views of the same memory, packed lists, names of operations.

Nothing here touches the machine. An array shares its tensor's storage wherever the tensor is contiguous;
a tensor that is not gets an array of its own, which `Landing.settle` copies back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.distributed import ReduceOp

from emulator.errors import DtypeError, SizeError, UsageError

Array = npt.NDArray[Any]
Tensors = Sequence[torch.Tensor]
OPS: dict[Any, str] = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "avg",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}
_BOOL_OPS = {
    "sum": "max",
    "prod": "min",
    "min": "min",
    "max": "max",
    "band": "min",
    "bor": "max",
    "bxor": "bxor",
}
_NUMPY = {
    getattr(torch, name): np.dtype(name)
    for name in (
        *("float16", "float32", "float64", "complex64", "complex128"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
} | {torch.bfloat16: np.dtype(np.uint16)}


def kind_of(tensor: torch.Tensor) -> str | None:
    """Return the name the collectives need beside the array's dtype: "bfloat16", or None."""
    return "bfloat16" if tensor.dtype == torch.bfloat16 else None


def array_of(tensor: torch.Tensor) -> Array:
    """View a CPU tensor's memory as an array of the same shape (one axis for a scalar).

    bfloat16 is seen as uint16, bool as uint8, 8-bit floats as uint8: same bytes.

    Raises:
        UsageError: not a dense tensor on the CPU, or one with a pending conjugation or negation.
    """
    if not tensor.is_cpu or tensor.layout != torch.strided:
        raise UsageError(
            f"superpod: a {tensor.layout} tensor on {tensor.device}; the backend takes dense tensors on cpu"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise UsageError(
            "superpod: a tensor with a pending conjugation or negation; call resolve_conj() first"
        )
    kind = _NUMPY.get(tensor.dtype) or (np.dtype(np.uint8) if tensor.element_size() == 1 else None)
    if kind is None:
        raise DtypeError(f"superpod: no collective moves {tensor.dtype}")
    plain = tensor if tensor.ndim else tensor.reshape(1)
    return _memory(plain, kind) if plain.numel() else np.empty(plain.shape, kind)


def _memory(tensor: torch.Tensor, kind: np.dtype[Any]) -> Array:
    """A tensor's memory as an array that keeps the tensor. (`Tensor.numpy` does the same, but forbids for
    ever that the storage changes its size, as sharded parameters of FSDP do.)"""
    shape = tensor.shape
    if tensor.is_contiguous():
        held = _bytes_of(tensor.numel() * kind.itemsize).from_address(tensor.data_ptr())
        held.tensor = tensor
        whole: Array = np.frombuffer(held, kind)
        return whole if len(shape) == 1 else whole.reshape(shape)
    strides = tensor.stride()
    reach = 1 + sum((count - 1) * step for count, step in zip(shape, strides, strict=True))
    held = _bytes_of(reach * kind.itemsize).from_address(tensor.data_ptr())
    held.tensor = tensor
    return np.ndarray(tuple(shape), kind, held, 0, tuple(step * kind.itemsize for step in strides))


@lru_cache(maxsize=1024)
def _bytes_of(count: int) -> Any:
    return ctypes.c_ubyte * count


@dataclass(slots=True)
class Landing:
    """Where a result arrives: a C-contiguous array, and what brings it home when it is not the tensors' own.

    Attributes:
        array: flat, contiguous.
        homes: parts of it, in order, to be copied to these arrays by `settle`.
    """

    array: Array
    homes: Sequence[Array] = ()

    def settle(self) -> None:
        """Copy the result home."""
        at = 0
        for home in self.homes:
            home[...] = self.array[at : at + home.size].reshape(home.shape)
            at += home.size


class Rows:
    """Where a gather of several tensors' bytes arrives: one row of bytes a rank.

    Attributes:
        array: uint8 [size * row_bytes].
    """

    def __init__(self, size: int, row_bytes: int, outputs: Tensors, inputs: Tensors) -> None:
        self.array = np.empty(size * row_bytes, np.uint8)
        self._table, self._parts = self.array.reshape(size, row_bytes), list[tuple[Landing, int]]()
        for output, tensor in zip(outputs, inputs, strict=True):
            check_count("all_gather", "an output", output.numel(), size * tensor.numel())
            one_dtype([output, tensor])
            self._parts.append((landing([output]), tensor.numel() * tensor.element_size()))

    def settle(self) -> None:
        """Cut the rows and bring the pieces home."""
        at = 0
        for place, width in self._parts:
            place.array.view(np.uint8).reshape(len(self._table), width)[...] = self._table[:, at : at + width]
            place.settle()
            at += width


def landing(tensors: Tensors, load: bool = False) -> Landing:
    """Return one flat place for the results of `tensors`: their own memory when it is one contiguous tensor.

    Args:
        load: the place holds the tensors' present values.
    """
    arrays = [array_of(tensor) for tensor in tensors]
    if len(arrays) == 1 and arrays[0].flags.c_contiguous:
        return Landing(arrays[0] if arrays[0].ndim == 1 else arrays[0].reshape(-1))
    if load:
        return Landing(joined(arrays), arrays)
    dtype = one_dtype(tensors)
    return Landing(np.empty(sum(a.size for a in arrays), dtype), arrays)


def flat(tensor: torch.Tensor) -> Array:
    """Return the values of a tensor as a flat contiguous array: its own memory where that is so."""
    array = array_of(tensor)
    return array if array.ndim == 1 and array.flags.c_contiguous else np.ascontiguousarray(array).reshape(-1)


def packed(tensors: Tensors) -> Array:
    """Return the values of tensors behind each other, in a flat contiguous array."""
    one_dtype(tensors)
    return joined([array_of(tensor) for tensor in tensors])


def joined(arrays: Sequence[Array]) -> Array:
    return np.ascontiguousarray(arrays[0]).reshape(-1) if len(arrays) == 1 else np.concatenate(
        [array.reshape(-1) for array in arrays]
    )  # fmt: skip


def one_dtype(tensors: Tensors) -> np.dtype[Any]:
    """Return the array dtype all tensors share. Raises DtypeError."""
    check_dtypes(tensors)
    return array_of(tensors[0]).dtype


def check_dtypes(tensors: Tensors) -> None:
    """Raises DtypeError unless all tensors, at least one, have the same dtype."""
    kinds = {tensor.dtype for tensor in tensors}
    if len(kinds) != 1:
        names = ", ".join(sorted(str(kind) for kind in kinds)) or "no tensors"
        raise DtypeError(f"superpod: one dtype in a list, not {names}")


def raw(tensors: Tensors) -> Array:
    """Return the bytes of tensors of any dtypes behind each other, uint8."""
    return joined([flat(tensor).view(np.uint8) for tensor in tensors])


# --- operations -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reduction:
    """A reduction as the collectives know it: its name, and a factor each value is multiplied with first."""

    op: str
    factor: float | torch.Tensor | None = None

    def scaled(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.factor is None else tensor.detach() * self.factor


def reduction(op: Any, tensors: Tensors) -> Reduction:
    """Return what torch's ReduceOp asks for.

    On bool, a sum is "any" and a product "all", as torch has them.

    Raises:
        UsageError: an unknown operation, or one the dtype has not (8-bit floats have none, bool no average).
    """
    kind = getattr(op, "op", op)
    name = "sum" if kind == ReduceOp.PREMUL_SUM else OPS.get(kind)
    if name is None:
        raise UsageError(f"superpod: reduction {op}: choose one of {', '.join(sorted(OPS.values()))}")
    for tensor in tensors:
        if tensor.dtype == torch.bool:
            if name not in _BOOL_OPS:
                raise DtypeError(f"superpod: {name} of bool: choose one of {', '.join(sorted(_BOOL_OPS))}")
            name = _BOOL_OPS[name]
        elif tensor.element_size() == 1 and tensor.is_floating_point():
            raise DtypeError(f"superpod: {name} of {tensor.dtype}: convert to bfloat16 or float32 first")
    return Reduction(name, op.factor if kind == ReduceOp.PREMUL_SUM else None)


# --- sizes ----------------------------------------------------------------------------------------------


def counts_of(tensor: torch.Tensor, splits: Sequence[int], size: int, what: str) -> list[int]:
    """Return how many elements of `tensor` belong to each of `size` ranks, cut along the first axis.

    Args:
        splits: rows for each rank; empty for equal parts.
        what: "input" or "output", for messages.

    Raises:
        SizeError: the splits do not add up to the rows, or the rows cannot be cut evenly.
    """
    if not splits:
        check_even(tensor, size, what)
        return [tensor.numel() // size] * size
    rows = tensor.shape[0] if tensor.ndim else 1
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise SizeError(
            f"all_to_all_single: {what} split sizes {list(splits)} for {size} ranks and {rows} rows"
        )
    row = tensor.numel() // rows if rows else 0
    return [split * row for split in splits]


def check_even(tensor: torch.Tensor, size: int, what: str) -> None:
    """Raises SizeError unless the rows of `tensor` ("input" or "output") are equally many for each rank."""
    rows = tensor.shape[0] if tensor.ndim else 1
    if rows % size:
        raise SizeError(f"all_to_all_single: {rows} rows of {what} among {size} ranks; give split sizes")


def equal_sizes(tensors: Tensors) -> bool:
    """Return whether all tensors have the same number of elements."""
    return len({tensor.numel() for tensor in tensors}) <= 1


def one(tensors: Any, call: str) -> torch.Tensor:
    """Return the one tensor of a list, as the calls of a process group are given it. Raises UsageError."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise UsageError(f"{call}: one tensor a rank, got {len(tensors)}")
    tensor: torch.Tensor = tensors[0]
    return tensor


def check_count(call: str, what: str, have: int, need: int) -> None:
    """Raises SizeError unless `have` elements (or tensors) of `what` are `need`."""
    if have != need:
        raise SizeError(f"{call}: {what} has {have}, needs {need}")
