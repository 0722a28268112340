"""Sleeping on a 32-bit word of shared memory: Linux futexes, not private, because addresses differ per
process."""

from __future__ import annotations

import ctypes
import platform

import numpy as np
import numpy.typing as npt

_WAIT, _WAKE = 0, 1
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_FUTEX, _LIBC = _NUMBERS[platform.machine()], ctypes.CDLL(None)


def wait_while(word: npt.NDArray[np.int32], value: int) -> None:
    """Sleep until `word[0]` is no longer `value`; a wake-up without a change goes back to sleep."""
    address = ctypes.c_void_p(word.__array_interface__["data"][0])
    while word[0] == value:
        _LIBC.syscall(_FUTEX, address, _WAIT, ctypes.c_int(value), None, None, 0)


def wake_all(word: npt.NDArray[np.int32]) -> None:
    """Wake everyone who sleeps on `word`."""
    address = ctypes.c_void_p(word.__array_interface__["data"][0])
    _LIBC.syscall(_FUTEX, address, _WAKE, ctypes.c_int(2**31 - 1), None, None, 0)
