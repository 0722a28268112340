"""Arrays at the face: torch tensors or NumPy arrays in, the same kind out; NumPy inside.

bfloat16 is float32 inside (exact); as a NumPy array it is uint16 with its bits. E4M3 is uint8 codes.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.ep.wire import from_bfloat16, to_bfloat16
from emulator.errors import DtypeError, UsageError

Array = npt.NDArray[Any]
WHOLE = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
Float32 = npt.NDArray[np.float32]


class Values(NamedTuple):
    """Rows of a call: float32 [n, hidden] values, or codes and scales of fp8 ones; what they were given as.

    kind: "float32", "bfloat16" or "fp8", how they travel. torch: given as tensors.
    """

    values: Float32
    codes: npt.NDArray[np.uint8] | None
    kind: str
    torch: bool


def is_torch(x: Any) -> bool:
    """Is it a tensor? (torch is looked at only where the caller has imported it.)"""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def numbers(x: Any, dtype: Any = np.int64) -> Array:
    """An array of whole numbers, or of float32, from a tensor or an array, contiguous; nothing is rounded.

    Raises:
        UsageError: it is neither. DtypeError: it holds numbers of another type.
    """
    type_ = str(getattr(x, "dtype", "")).removeprefix("torch.")
    exact = ("float32",) if dtype == np.float32 else WHOLE
    if type_ and type_ not in exact:
        raise DtypeError(
            f"numbers of {type_}; use {'float32' if dtype == np.float32 else 'int64'}", value=type_
        )
    if is_torch(x):
        x = x.detach().cpu().numpy()
    if not isinstance(x, np.ndarray):
        raise UsageError(f"expected a tensor or an array, got {type(x).__name__}")
    return np.ascontiguousarray(x.astype(dtype, copy=False))


def rows_of(x: Any) -> Values:
    """Rows [n, hidden] as given to a call: bfloat16, float32, or a pair (E4M3 codes, scales).

    Raises:
        UsageError: another shape. DtypeError: another type.
    """
    if isinstance(x, (tuple, list)):
        codes, scales = x
        torch = is_torch(codes)
        raw = codes.detach().view(sys.modules["torch"].uint8).numpy() if torch else codes
        return Values(numbers(scales, np.float32), np.ascontiguousarray(raw.view(np.uint8)), "fp8", torch)
    torch = is_torch(x)
    if torch and str(x.dtype) == "torch.bfloat16":
        raw = x.detach().contiguous().view(sys.modules["torch"].int16).numpy()
        return Values(from_bfloat16(raw.view(np.uint16)), None, "bfloat16", True)
    array = x.detach().numpy() if torch else x
    if not isinstance(array, np.ndarray):
        raise UsageError(f"rows must be a tensor or an array, got {type(x).__name__}")
    if array.dtype == np.uint16:
        return Values(from_bfloat16(np.ascontiguousarray(array)), None, "bfloat16", torch)
    if array.dtype != np.float32:
        raise DtypeError(
            f"rows of {array.dtype}; use bfloat16, float32 or (fp8, scales)", value=str(array.dtype)
        )
    return Values(np.ascontiguousarray(array), None, "float32", torch)


def give(values: Float32, kind: str, torch: bool) -> Any:
    """Values as the caller wants them: a tensor or an array, float32 or bfloat16."""
    if kind == "bfloat16":
        bits = to_bfloat16(values)
        if not torch:
            return bits
        lib = sys.modules["torch"]
        return lib.from_numpy(bits.view(np.int16)).view(lib.bfloat16)
    return plain(np.ascontiguousarray(values), torch)


def give_codes(codes: npt.NDArray[np.uint8], torch: bool) -> Any:
    """E4M3 codes as a tensor of float8_e4m3fn, or as they are."""
    if not torch:
        return codes
    lib = sys.modules["torch"]
    return lib.from_numpy(codes).view(lib.float8_e4m3fn)


def plain(array: Array, torch: bool) -> Any:
    """An array as a tensor or as it is."""
    return sys.modules["torch"].from_numpy(array) if torch else array


def fill(target: Any, values: Array) -> None:
    """Write an array into a tensor or an array of the same shape."""
    if is_torch(target):
        target.copy_(sys.modules["torch"].from_numpy(np.ascontiguousarray(values)))
    else:
        target[...] = values


def add_into(target: Any, values: Array) -> None:
    """Add an array to a tensor or an array of the caller's."""
    if is_torch(target):
        target += sys.modules["torch"].from_numpy(np.ascontiguousarray(values)).to(target.dtype)
    else:
        target += values.astype(target.dtype)


class EventOverlap:
    """What DeepEP returns for CUDA's sake: `time_ps` is when the operation was over."""

    def __init__(self, time_ps: int) -> None:
        self.time_ps = time_ps

    def current_stream_wait(self) -> None:
        """Nothing is left to wait for: calls are over when they return, or when their hook does."""

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_: object) -> None:
        self.current_stream_wait()
