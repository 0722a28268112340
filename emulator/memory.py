"""Payload bytes: they move on the host when an operation is posted and appear at their virtual time.

    put:  source -> slot in the TARGET's staging pool -> (delivery is final) -> target's heap
    get:  target's heap -> (the response leaves) -> slot in the READER's pool -> destination

The engine appends one entry to the target's apply log when a put is delivered and when a get's response
leaves,
in key order. Who executes the entries:

* the owner, whenever a blocking call returns: every entry up to its clock (an observation point);
* a poster that finds the pool full, on behalf of a target that is blocked, has exited or is dead. Entries
  of a blocked target are never later than the time it resumes at, so it finds exactly what it would have
  applied itself;
* the reader of a get does not touch a running owner's heap: it reads the heap and lays the older entries
  over what it read, so that the owner's view between two observation points stays as it was.

Design note, a full pool. Data may not be applied before it is final, and it may become final only after
the poster itself has gone on (sixty-four puts of 16 MB to a rank that waits for the poster's later
signal). A poster that slept until there is room could therefore sleep for ever, or would put the pool's
size into virtual time. So it spills: the bytes go to a file of the operation's own in shared memory, its
name carries the run's id, and it is unlinked when it is applied, or at the end. The pool bounds resident
memory in the usual case and never shows in virtual time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from emulator.board import CHUNK, SNAPSHOTS, Board, MemoryState
from emulator.engine.api import LOG_PUT, Engine, LogRef
from emulator.errors import UsageError
from emulator.transport import Area, Bytes, Transport

MPI_SEGMENTS = "OMPI_MCA_osc_sm_backing_directory"
"""Where MPI keeps its shared segments: a launcher sets it to the job's own directory, which it removes
however the job ends. Spill files go there too; without it, to `/dev/shm`."""


class LogEntry(NamedTuple):
    """An entry of an apply log as plain integers; the fields of `LOG_DTYPE`."""

    time_ps: int
    kind: int
    rank: int
    file_id: int
    file_offset: int
    offset: int
    nbytes: int
    op_id: int
    key: int
    a: int
    b: int


class Memory:
    """One rank's staging, apply log and spill files."""

    def __init__(self, transport: Transport, engine: Engine, board: Board) -> None:
        self._transport, self._engine, self._board = transport, engine, board
        self._me = transport.rank
        self._state = board.state
        self._next_op = 1
        self._spills: set[str] = set()
        self._folder = os.environ.get(MPI_SEGMENTS, "/dev/shm")
        self._gets: dict[int, tuple[int, LogRef]] = {}

    # --- observation points -----------------------------------------------------------------------------

    def enter(self) -> None:
        """About to block: from now on others may apply for me."""
        self._state[self._me] = MemoryState.BLOCKED

    def leave(self) -> None:
        """Back from a blocking call: my heap is mine again, and shows everything up to now."""
        self._state[self._me] = MemoryState.RUNNING
        if self._board.posted[self._me] != self._board.applied[self._me]:
            self._apply(self._me, self._engine.now_ps)

    def exited(self) -> None:
        """I run no more; whoever needs room may apply for me."""
        self._state[self._me] = MemoryState.EXITED

    def _apply(self, target: int, until_ps: int | None) -> None:
        self._engine.log_lock(target)
        try:
            self._apply_locked(target, until_ps)
        finally:
            self._engine.log_unlock(target)

    def _apply_locked(self, target: int, until_ps: int | None) -> None:
        done = 0
        for entry in self._entries(target):
            if until_ps is not None and entry.time_ps > until_ps:
                break
            if entry.kind == LOG_PUT:
                self._execute_put(target, entry)
            else:
                self._execute_snapshot(target, entry)
            done += 1
        if done:
            self._engine.log_advance(target, done)
            self._board.applied[target] += done

    def _entries(self, target: int) -> Iterator[LogEntry]:
        return map(LogEntry._make, self._engine.log_view(target).tolist())

    def _execute_put(self, target: int, entry: LogEntry) -> None:
        data = self._staged(target, entry)
        self._transport.write(target, Area.HEAP, entry.offset, data)
        self._release(entry.file_id, entry.file_offset, entry.nbytes)

    def _execute_snapshot(self, target: int, entry: LogEntry) -> None:
        wanted = self._board.snapshot[entry.rank]
        if wanted[entry.op_id % SNAPSHOTS] != entry.op_id:
            return  # the reader helped itself
        data = np.empty(entry.nbytes, np.uint8)
        self._transport.read(target, Area.HEAP, entry.offset, data)
        if entry.file_id >= 0:
            self._transport.write(entry.file_id, Area.STAGING, entry.file_offset, data)
        else:
            with open(self._spill_path(-entry.file_id - 1, entry.file_offset), "r+b") as file:
                file.write(data.data)
        wanted[entry.op_id % SNAPSHOTS] = -entry.op_id

    # --- put --------------------------------------------------------------------------------------------

    def stage(self, target: int, offset: int, data: Bytes) -> LogRef:
        """Copy `data` (uint8, contiguous) to the target's pool, or to a file, for a put to `offset` of
        its heap."""
        op_id = self._number()
        slot = self._reserve(target, data.size, True)
        if slot is not None:
            self._transport.write(target, Area.STAGING, slot, data)
            return LogRef(target, slot, offset, data.size, op_id)
        self._spill(op_id, data)
        return LogRef(-self._me - 1, op_id, offset, data.size, op_id)

    def _number(self) -> int:
        self._next_op += 1
        return self._next_op - 1

    def _reserve(self, target: int, nbytes: int, logged: bool) -> int | None:
        """Take a slot of the target's pool; None when it is full. `logged`: an entry for the target's log
        follows."""
        self._engine.log_lock(target)
        try:
            if logged:
                self._announce(target)
            slot = self._first_fit(target, nbytes)
            if slot is None and self._is_applicable(target):
                self._apply_locked(target, None)
                slot = self._first_fit(target, nbytes)
            return slot
        finally:
            self._engine.log_unlock(target)

    def _announce(self, target: int) -> None:
        board, limit = self._board, self._engine.config.log_entries
        if board.posted[target] - board.applied[target] >= limit and self._is_applicable(target):
            self._apply_locked(target, None)
        if board.posted[target] - board.applied[target] >= limit:
            raise UsageError(
                f"{limit} puts and gets to rank {target} are under way or not yet observed by it; "
                f"complete some with quiet(), let it observe, or raise log_entries"
            )
        board.posted[target] += 1

    def _is_applicable(self, target: int) -> bool:
        return bool(self._state[target] != MemoryState.RUNNING) or target in self._engine.dead_ranks()

    def _first_fit(self, target: int, nbytes: int) -> int | None:
        chunks, pool = -(-nbytes // CHUNK), self._board.pool[target]
        if chunks > pool.size:
            return None
        found = pool.tobytes().find(bytes(chunks))
        if found < 0:
            return None
        pool[found : found + chunks] = 1
        return int(found) * CHUNK

    def _release(self, file_id: int, at: int, nbytes: int) -> None:
        """Give a slot back (under the lock of the pool's owner), or unlink a spill file."""
        if file_id >= 0:
            self._board.pool[file_id, at // CHUNK : -(-(at + nbytes) // CHUNK)] = 0
            return
        path = self._spill_path(-file_id - 1, at)
        self._spills.discard(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def _staged(self, target: int, entry: LogEntry) -> Bytes:
        """The bytes of an undelivered put, wherever they are."""
        file_id, at, nbytes = entry.file_id, entry.file_offset, entry.nbytes
        if file_id < 0:
            return np.fromfile(self._spill_path(-file_id - 1, at), np.uint8, nbytes)
        if self._transport.kind == "shared":
            return self._transport.mapped(Area.STAGING)[target, at : at + nbytes]
        data = np.empty(nbytes, np.uint8)
        self._transport.read(target, Area.STAGING, at, data)
        return data

    # --- get --------------------------------------------------------------------------------------------

    def start_get(self, source: int, offset: int, nbytes: int, charged: int) -> int:
        """Post a get of `nbytes` at `offset` of the source's heap; returns the engine's handle."""
        if len(self._gets) >= SNAPSHOTS:
            raise UsageError(f"{SNAPSHOTS} gets of rank {self._me} are under way; wait for some first")
        op_id = self._number()
        while self._board.snapshot[self._me, op_id % SNAPSHOTS]:
            op_id = self._number()
        ref = self._place_for(source, offset, nbytes, op_id)
        self._board.snapshot[self._me, op_id % SNAPSHOTS] = op_id
        handle = self._engine.get(source, charged, ref)
        self._gets[handle] = (source, ref)
        return handle

    def _place_for(self, source: int, offset: int, nbytes: int, op_id: int) -> LogRef:
        self._engine.log_lock(source)
        try:
            self._announce(source)
        finally:
            self._engine.log_unlock(source)
        slot = self._reserve(self._me, nbytes, False)
        if slot is not None:
            return LogRef(self._me, slot, offset, nbytes, op_id)
        self._spill(op_id, np.zeros(nbytes, np.uint8))
        return LogRef(-self._me - 1, op_id, offset, nbytes, op_id)

    def finish_get(self, handle: int) -> Bytes:
        """Fetch the bytes of a get whose response is in."""
        source, ref = self._gets.pop(handle)
        self._engine.log_lock(source)
        try:
            captured = self._board.snapshot[self._me, ref.op_id % SNAPSHOTS] == -ref.op_id
            data = self._captured(ref) if captured else self._overlaid(source, ref)
            self._board.snapshot[self._me, ref.op_id % SNAPSHOTS] = 0
        finally:
            self._engine.log_unlock(source)
        self._engine.log_lock(self._me)
        try:
            self._release(ref.file_id, ref.file_offset, ref.nbytes)
        finally:
            self._engine.log_unlock(self._me)
        return data

    def _captured(self, ref: LogRef) -> Bytes:
        if ref.file_id < 0:
            return np.fromfile(self._spill_path(self._me, ref.file_offset), np.uint8, ref.nbytes)
        return self._transport.own(Area.STAGING)[ref.file_offset : ref.file_offset + ref.nbytes].copy()

    def _overlaid(self, source: int, ref: LogRef) -> Bytes:
        """The source's memory as it was when the response left: its heap with the older entries laid over."""
        data = np.empty(ref.nbytes, np.uint8)
        self._transport.read(source, Area.HEAP, ref.offset, data)
        for entry in self._entries(source):
            if entry.op_id == ref.op_id and entry.rank == self._me:
                break
            if entry.kind != LOG_PUT:
                continue
            low = max(ref.offset, entry.offset)
            high = min(ref.offset + ref.nbytes, entry.offset + entry.nbytes)
            if low < high:
                piece = self._staged(source, entry)
                data[low - ref.offset : high - ref.offset] = piece[low - entry.offset : high - entry.offset]
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

    def close(self) -> None:
        """Unlink the spill files nobody applied."""
        for path in self._spills:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._spills.clear()


def as_bytes(array: npt.NDArray[Any]) -> Bytes:
    """View a contiguous array of any dtype as uint8[nbytes], in memory order (as mpi4py sends it)."""
    return array.reshape(-1, order="A").view(np.uint8) if array.size else np.empty(0, np.uint8)
