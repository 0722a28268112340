"""Tables that other processes write are read while they change."""

import mmap
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from emulator.board import REMARK
from emulator.remarks import remarked, remarks
from launch.jobtable import JobTable

_CELLS = 20_000
_SECONDS = 1.5


def test_ends_are_read_while_ranks_end(tmp_path: Path) -> None:
    """Fails on a build that lists the ended ranks from the shared memory itself: NumPy counts, then
    lists, and raises where the numbers differ. Seen once in 1,000 plans, in a rank's watching thread."""
    table = JobTable(_CELLS, tmp_path)
    writer = _flicker(table._ended)
    try:
        for _ in _for_a_while():
            _, ended = table.ends()
            assert len(ended) <= _CELLS
    finally:
        _end(writer)


def test_remarks_are_read_while_ranks_remark() -> None:
    """The same of what ranks say; the broken build raises in a deadlock's report."""
    cells = np.frombuffer(mmap.mmap(-1, 4096 * REMARK), np.uint8).reshape(4096, REMARK)
    board: Any = SimpleNamespace(remark=cells)
    writer = _flicker(cells[:, 0], ord("x"))
    try:
        for _ in _for_a_while():
            assert set(remarked(board, "x").values()) <= {""}
            assert remarks(board).count("other remarks") == 0
    finally:
        _end(writer)


def _for_a_while() -> Iterator[None]:
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        yield


def _flicker(cells: np.ndarray, value: int = 1) -> int:
    """Fork a process that sets and clears the cells, which are shared, until it is killed."""
    if pid := os.fork():
        return pid
    while True:
        cells[::2] = value
        cells[::2] = 0


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
