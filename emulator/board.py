"""The board: what ranks tell each other outside virtual time, in shared memory beside the engine's block.

State of each rank's memory, maps of the staging pools, symmetric-allocation checks, the digests of the
end. Nothing here decides a virtual time. A field is either written by its own rank only, or under the
apply lock of the rank it is about.
"""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.ledger import LEDGER_SIZE

CHUNK = 1024
"""Unit of the staging pools, bytes."""
SNAPSHOTS = 256
"""Gets a rank may have under way; a power of two."""
ALIGNMENT = 4096
REMARK = 192
"""Longest remark of a rank, bytes."""


class MemoryState(enum.IntEnum):
    """Who may change a rank's heap: only itself, or whoever holds its apply lock."""

    RUNNING = 0
    BLOCKED = 1
    EXITED = 2


def _fields(
    num_ranks: int, staging_bytes: int, num_faults: int = 0
) -> list[tuple[str, str, tuple[int, ...]]]:
    return [
        ("header", "i8", (16,)),
        ("state", "u1", (num_ranks,)),
        ("finished", "u1", (num_ranks,)),
        ("dead", "u1", (num_ranks,)),
        ("posted", "i8", (num_ranks,)),
        ("applied", "i8", (num_ranks,)),
        ("digest", "u1", (num_ranks, 32)),
        ("end_ps", "i8", (num_ranks,)),
        ("cpu_us", "i8", (num_ranks,)),
        ("spilled", "i8", (num_ranks,)),
        ("allocation", "i8", (num_ranks, 2, 4)),
        ("snapshot", "i8", (num_ranks, SNAPSHOTS)),
        ("ledger", "i8", (num_ranks, LEDGER_SIZE)),
        ("pool", "u1", (num_ranks, staging_bytes // CHUNK)),
        ("wall", "i8", (num_ranks, 8)),
        ("faults", "i8", (num_faults, 4)),
        ("silent_ps", "i8", (num_ranks if num_faults else 0,)),
        ("remark", "u1", (num_ranks, REMARK)),
    ]


class Board:
    """Views of one board.

    Attributes:
        header: int64 [16]; see `HEADER_JOB`, `HEADER_DONE`.
        state: uint8 [n], a `MemoryState`.
        finished: uint8 [n], 1 once the rank waits for the end or is dead.
        dead: uint8 [n], 1 once the rank is known to be dead.
        posted, applied: int64 [n], entries for the rank's apply log that were posted and taken off.
        digest: uint8 [n, 32], hash of the rank's record stream.
        end_ps, cpu_us, spilled: int64 [n], last virtual time, host CPU used, operations spilled to files.
        allocation: int64 [n, 2, 4], what the rank's last two symmetric allocations were, by parity.
        snapshot: int64 [n, SNAPSHOTS], operation number of a get under way, negated once its bytes are
            captured. ledger: int64 [n, LEDGER_SIZE], see `emulator.ledger`. pool: uint8 [n, chunks], how many
            pieces of staged data touch a chunk of the rank's pool; 0 where it is free. faults: int64
            [faults, 4], log of the plan's faults, see `emulator.faults.injector`. silent_ps: int64 [n] under
            a plan, since when a rank that it has ended did nothing, 0 for the others. wall: int64 [n, 8],
            what the rank found out about its host, see `emulator.wall`. remark: uint8 [n, REMARK], text of a
            rank for others' reports, see `emulator.remarks`.
    """

    header: npt.NDArray[np.int64]
    state: npt.NDArray[np.uint8]
    finished: npt.NDArray[np.uint8]
    dead: npt.NDArray[np.uint8]
    posted: npt.NDArray[np.int64]
    applied: npt.NDArray[np.int64]
    digest: npt.NDArray[np.uint8]
    end_ps: npt.NDArray[np.int64]
    cpu_us: npt.NDArray[np.int64]
    spilled: npt.NDArray[np.int64]
    allocation: npt.NDArray[np.int64]
    snapshot: npt.NDArray[np.int64]
    ledger: npt.NDArray[np.int64]
    pool: npt.NDArray[np.uint8]
    faults: npt.NDArray[np.int64]
    silent_ps: npt.NDArray[np.int64]
    wall: npt.NDArray[np.int64]
    remark: npt.NDArray[np.uint8]

    HEADER_JOB = 0
    HEADER_DONE = 1

    def __init__(
        self, memory: npt.NDArray[np.uint8], num_ranks: int, staging_bytes: int, num_faults: int = 0
    ) -> None:
        at = 0
        for name, dtype, shape in _fields(num_ranks, staging_bytes, num_faults):
            size = _size(dtype, shape)
            view: npt.NDArray[Any] = memory[at : at + size].view(dtype).reshape(shape)
            setattr(self, name, view)
            at += -(-size // 64) * 64


def board_bytes(num_ranks: int, staging_bytes: int, num_faults: int = 0) -> int:
    """Bytes a board takes, a multiple of a page."""
    fields = _fields(num_ranks, staging_bytes, num_faults)
    total = sum(-(-_size(dtype, shape) // 64) * 64 for _, dtype, shape in fields)
    return -(-total // ALIGNMENT) * ALIGNMENT


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize
