"""Which process is which rank: a file for people and tools that kill one by hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

FILE = "pids.bin"


def note_pid(directory: str | Path, rank: int) -> None:
    """Write this process's id as the rank's."""
    fd = os.open(Path(directory) / FILE, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(fd, np.int64(os.getpid()).tobytes(), 8 * rank)
    finally:
        os.close(fd)


def read_pids(directory: str | Path) -> list[int]:
    """The process ids by rank, 0 of a rank that has not begun to serve; empty before any has."""
    path = Path(directory) / FILE
    raw = path.read_bytes() if path.exists() else b""
    pids: list[int] = np.frombuffer(raw[: len(raw) // 8 * 8], np.int64).tolist()
    return pids
