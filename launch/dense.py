"""Fill the holes of this process's heaps, so that what a forked child allocates lies side by side.

Imports leave thousands of freed blocks, spread over all their pages. A forked child would reuse them: every
one it writes is a page copied, and hundreds of ranks copy thousands of pages each. Blocks taken here and kept
make its allocations start on fresh pages instead.
"""

import ctypes
import os
import re
import sys
import tempfile

from launch.osproc import LIBC

_kept: list[object] = []
_CLASS = re.compile(rb"^\s*\d+\s+(\d+)\s+\d+\s+\d+\s+(\d+)\s*$", re.MULTILINE)
_UNUSED = re.compile(rb"(\d+) unused pools \* (\d+) bytes")
_BYTES_OVERHEAD = sys.getsizeof(b"")
_LARGEST, _FINE, _SMALLEST, _STEP = 1 << 16, 2048, 24, 16
_MOST_BLOCKS = 1 << 18


def fill_holes() -> None:
    """Take every free block of Python's allocator and of the C library's, for good."""
    _fill_python()
    if hasattr(LIBC, "malloc_trim"):  # glibc
        _fill_c()


def _statistics() -> bytes:
    """What `sys._debugmallocstats` writes to the standard error file."""
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            sys._debugmallocstats()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        file.seek(0)
        return file.read()


def _fill_python() -> None:
    text = _statistics()
    free = [(int(size), int(count)) for size, count in _CLASS.findall(text)]
    for size, count in free:
        payload = size - _BYTES_OVERHEAD
        if payload > 1:  # the shortest bytes objects are shared ones
            _kept.append([bytes(payload) for _ in range(count)])
        elif size >= object().__sizeof__():
            _kept.append([object() if size == object().__sizeof__() else float(i) for i in range(count)])
    largest = max((size for size, _ in free), default=0)
    for pools, pool_bytes in _UNUSED.findall(text):
        count = int(pools) * (int(pool_bytes) // largest) if largest else 0
        _kept.append([bytes(largest - _BYTES_OVERHEAD) for _ in range(count)])


def _fill_c() -> None:
    """Take blocks, large sizes first, for as long as they come from below the end of what is in use."""
    malloc, free, sbrk = LIBC.malloc, LIBC.free, LIBC.sbrk
    malloc.restype = sbrk.restype = ctypes.c_void_p
    malloc.argtypes = sbrk.argtypes = [ctypes.c_size_t]
    free.argtypes = [ctypes.c_void_p]
    size, before = _LARGEST, sbrk(0)
    while sbrk(0) == before:  # the block that makes the heap grow lies beyond all holes
        end = malloc(size)
    free(end)
    for _ in range(_MOST_BLOCKS):
        block = malloc(size)
        if block < end:
            continue
        free(block)
        size = size // 2 if size > _FINE else size - _STEP
        if size < _SMALLEST:
            return
