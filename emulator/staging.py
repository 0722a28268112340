"""Staged payload bytes: slots of the targets' pools, and files for what does not fit.

A payload is copied when it is posted, into a slot of the TARGET's pool in shared memory, and taken from
there when it appears. Who applies the entries of a target's log, and in what order, is the business of
`emulator.memory`.

A batch of small payloads takes one slot: its pieces lie 8 bytes aligned one after another, and the pool
counts for each chunk how many pieces touch it. A chunk is free when the count is 0.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from emulator.board import CHUNK, Board, MemoryState
from emulator.engine.api import Engine
from emulator.errors import UsageError
from emulator.transport import Area, Bytes, Transport

MPI_SEGMENTS = "OMPI_MCA_osc_sm_backing_directory"
"""Where MPI keeps its shared segments: a launcher sets it to the job's own directory, which it removes
however the job ends. Spill files go there too; without it, to `/dev/shm`."""
Int64 = npt.NDArray[np.int64]


class Places(NamedTuple):
    """Where the pieces of a batch are staged; int64 [count] each. See `LogRef`."""

    file_ids: Int64
    file_offsets: Int64
    op_ids: Int64


class Staging:
    """One rank's hand on the pools of all ranks, and its own spill files."""

    def __init__(self, transport: Transport, engine: Engine, board: Board) -> None:
        self._transport, self._engine, self._board = transport, engine, board
        self._me = transport.rank
        self._state = board.state
        self._next_op = 1
        self._spills: set[str] = set()
        self._folder = os.environ.get(MPI_SEGMENTS, "/dev/shm")

    def _apply_locked(self, target: int, until_ps: int | None) -> None:
        """Apply what is final, to make room; `target`'s apply lock is held."""
        raise NotImplementedError

    def _number(self, count: int = 1) -> int:
        """Take operation numbers; returns the first."""
        self._next_op += count
        return self._next_op - count

    def _is_applicable(self, target: int) -> bool:
        return bool(self._state[target] != MemoryState.RUNNING) or target in self._engine.dead_ranks()

    def _announce(self, target: int, count: int = 1) -> None:
        """Say that entries for the target's log follow; its apply lock is held. Raises: UsageError."""
        board, limit = self._board, self._engine.config.log_entries
        if board.posted[target] - board.applied[target] + count > limit and self._is_applicable(target):
            self._apply_locked(target, None)
        if board.posted[target] - board.applied[target] + count > limit:
            raise UsageError(
                f"{limit} puts and gets to rank {target} are under way or not yet observed by it; "
                f"complete some with quiet(), let it observe, or raise log_entries"
            )
        board.posted[target] += count

    # --- slots ------------------------------------------------------------------------------------------

    def stage_one(self, target: int, data: Bytes, logged: int) -> tuple[int, int, int]:
        """Copy one payload to the target's pool, or to a file.

        Args:
            logged: 1 if an entry for the target's log follows, 0 if not.

        Returns:
            file_id, file_offset and op_id; see `LogRef`. Raises: UsageError, as `stage_pieces`.
        """
        op_id = self._number()
        slot = self._reserve(target, data.size, logged)
        if slot is not None:
            self._transport.write(target, Area.STAGING, slot, data)
            return target, slot, op_id
        self._spill(op_id, data)
        return -self._me - 1, op_id, op_id

    def stage_pieces(self, target: int, data: Bytes, sizes: Int64, logged: int) -> Places:
        """Copy the payloads of several operations on one target, all under one lock.

        Args:
            target: whose pool; a payload that does not fit goes to a file.
            data: uint8, the payloads one after another.
            sizes: int64 [count], bytes of each, their sum being `data.size`.
            logged: how many entries for the target's log follow.

        Raises:
            UsageError: more entries than the log holds, or no room for a file.
        """
        first, count = self._number(sizes.size), sizes.size
        op_ids = np.arange(first, first + count, dtype=np.int64)
        ends = np.cumsum(-(-sizes // 8) * 8)
        starts = ends - (-(-sizes // 8) * 8)
        slot = self._reserve_pieces(target, _touched(starts, sizes), logged)
        if slot is not None:
            self._transport.write(target, Area.STAGING, slot, _padded(data, sizes, starts, int(ends[-1])))
            return Places(np.full(count, target, np.int64), np.where(sizes, starts + slot, 0), op_ids)
        if count == 1:
            self._spill(first, data)
            return Places(np.array([-self._me - 1]), op_ids, op_ids)
        half, cut = count // 2, int(sizes[: count // 2].sum())
        parts = (
            self.stage_pieces(target, data[:cut], sizes[:half], 0),
            self.stage_pieces(target, data[cut:], sizes[half:], 0),
        )
        return Places(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _reserve(self, target: int, nbytes: int, logged: int) -> int | None:
        """Take a slot for one payload; see `_reserve_pieces`."""
        return self._reserve_pieces(target, np.ones(-(-nbytes // CHUNK), np.uint8), logged)

    def _reserve_pieces(self, target: int, pieces: npt.NDArray[np.uint8], logged: int) -> int | None:
        """Take a slot of the target's pool; None when it is full.

        Args:
            pieces: uint8 [chunks of the slot], how many pieces touch each.
            logged: how many entries for the target's log follow.
        """
        self._engine.log_lock(target)
        try:
            if logged:
                self._announce(target, logged)
            slot = self._first_fit(target, pieces)
            if slot is None and self._is_applicable(target):
                self._apply_locked(target, None)
                slot = self._first_fit(target, pieces)
            return slot
        finally:
            self._engine.log_unlock(target)

    def _first_fit(self, target: int, pieces: npt.NDArray[np.uint8]) -> int | None:
        pool = self._board.pool[target]
        if pieces.size > pool.size:
            return None
        found = pool.tobytes().find(bytes(pieces.size))
        if found < 0:
            return None
        pool[found : found + pieces.size] = pieces
        return int(found) * CHUNK

    def _release(self, file_id: int, at: int, nbytes: int) -> None:
        """Give a piece back (under the lock of the pool's owner), or unlink a spill file."""
        if file_id >= 0:
            self._board.pool[file_id, at // CHUNK : -(-(at + nbytes) // CHUNK)] -= 1
            return
        path = self._spill_path(-file_id - 1, at)
        self._spills.discard(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def _staged(self, target: int, file_id: int, at: int, nbytes: int) -> Bytes:
        """The bytes of an operation on `target` that has not appeared, wherever they are."""
        if nbytes == 0:
            return np.empty(0, np.uint8)
        if file_id < 0:
            return np.fromfile(self._spill_path(-file_id - 1, at), np.uint8, nbytes)
        if self._transport.kind == "shared":
            return self._transport.mapped(Area.STAGING)[target, at : at + nbytes]
        data = np.empty(nbytes, np.uint8)
        self._transport.read(target, Area.STAGING, at, data)
        return data

    def take(self, file_id: int, file_offset: int, nbytes: int) -> Bytes:
        """Copy out a payload that was staged for me, a message's for instance, and free its place.

        Returns: uint8 [nbytes].
        """
        self._engine.log_lock(self._me)
        try:
            data = self._staged(self._me, file_id, file_offset, nbytes).copy()
            if nbytes:
                self._release(file_id, file_offset, nbytes)
        finally:
            self._engine.log_unlock(self._me)
        return data

    # --- spill files ------------------------------------------------------------------------------------

    def _spill_path(self, poster: int, op_id: int) -> str:
        return f"{self._folder}/superpod-{self._board.header[Board.HEADER_JOB]:016x}-spill-{poster}-{op_id}"

    def _spill(self, op_id: int, data: Bytes) -> None:
        path = self._spill_path(self._me, op_id)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        self._spills.add(path)
        self._board.spilled[self._me] += 1
        try:
            if data.size:
                os.posix_fallocate(descriptor, 0, data.size)
            view = memoryview(data.data)
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError as error:
            raise UsageError(
                f"rank {self._me}: staging is full and {data.size} bytes do not fit {self._folder}: "
                f"{error.strerror}"
            ) from None
        finally:
            os.close(descriptor)


def _touched(starts: Int64, sizes: Int64) -> npt.NDArray[np.uint8]:
    """How many of the pieces at `starts` touch each chunk; at most 129, as pieces are 8 bytes apart."""
    first, last = starts // CHUNK, -(-(starts + sizes) // CHUNK)
    if sizes.size == 1:
        return np.ones(int(last[0]), np.uint8)
    steps = np.zeros(int(last.max(initial=0)) + 2, np.int64)
    some = sizes > 0
    np.add.at(steps, first[some], 1)
    np.add.at(steps, last[some], -1)
    return np.cumsum(steps)[: int(last[some].max(initial=0))].astype(np.uint8)


def _padded(data: Bytes, sizes: Int64, starts: Int64, total: int) -> Bytes:
    """The pieces with each begin at a multiple of 8."""
    if data.size == total or sizes.size == 1:
        return data
    out = np.zeros(total, np.uint8)
    if (sizes == sizes[0]).all():
        size = int(sizes[0])
        out.reshape(sizes.size, -1)[:, :size] = data.reshape(sizes.size, size)
        return out
    for start, size, end in zip(starts.tolist(), sizes.tolist(), np.cumsum(sizes).tolist(), strict=True):
        out[start : start + size] = data[end - size : end]
    return out
