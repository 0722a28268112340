"""Payload bytes: they move on the host when an operation is posted and appear at their virtual time.

    put:  source -> slot in the TARGET's staging pool -> (delivery is final) -> target's heap
    get:  target's heap -> (the response leaves) -> slot in the READER's pool -> destination

The engine appends one entry to the target's apply log when a put is delivered and when a get's response
leaves, in key order; an atomic on an element is a get that changes what it read (`emulator.rmw`), and what
was staged and never appeared leaves an entry that only frees its place. Who executes the entries:

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

from emulator import rmw
from emulator.board import SNAPSHOTS, Board, MemoryState
from emulator.engine.api import LOG_DROP, LOG_PUT, LOG_RMW, LOG_SNAPSHOT, Engine, LogRef
from emulator.errors import InternalError, UsageError
from emulator.staging import Staging
from emulator.transport import Area, Bytes, Transport


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


class Memory(Staging):
    """One rank's staging, apply log and spill files."""

    def __init__(self, transport: Transport, engine: Engine, board: Board) -> None:
        super().__init__(transport, engine, board)
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
        done = announced = 0
        for entry in self._entries(target):
            if until_ps is not None and entry.time_ps > until_ps:
                break
            if entry.kind == LOG_PUT:
                self._execute_put(target, entry)
            elif entry.kind == LOG_SNAPSHOT:
                self._execute_snapshot(target, entry)
            elif entry.kind == LOG_RMW:
                self._execute_rmw(target, entry)
            else:
                self._execute_drop(entry)
            done += 1
            announced += entry.kind != LOG_DROP or was_announced(entry)
        if done:
            self._engine.log_advance(target, done)
            self._board.applied[target] += announced

    def _entries(self, target: int) -> Iterator[LogEntry]:
        return map(LogEntry._make, self._engine.log_view(target).tolist())

    def _execute_put(self, target: int, entry: LogEntry) -> None:
        if entry.nbytes:
            data = self._staged(target, entry.file_id, entry.file_offset, entry.nbytes)
            self._transport.write(target, Area.HEAP, entry.offset, data)
            self._release(entry.file_id, entry.file_offset, entry.nbytes)

    def _execute_drop(self, entry: LogEntry) -> None:
        """Free what was staged for an operation that ended without effect; a reader frees its own place."""
        if entry.nbytes and not (was_announced(entry) and rmw.takes_bytes(entry.b or entry.a)):
            self._release(entry.file_id, entry.file_offset, entry.nbytes)

    def _execute_snapshot(self, target: int, entry: LogEntry) -> None:
        wanted = self._board.snapshot[entry.rank, entry.op_id % SNAPSHOTS]
        if wanted != entry.op_id:
            return  # the reader helped itself
        data = np.empty(entry.nbytes, np.uint8)
        self._transport.read(target, Area.HEAP, entry.offset, data)
        self._hand_back(entry, data)

    def _execute_rmw(self, target: int, entry: LogEntry) -> None:
        element = np.empty(entry.nbytes, np.uint8)
        self._transport.read(target, Area.HEAP, entry.offset, element)
        before = rmw.apply(entry.op_id, element, entry.a, entry.b)
        if self._transport.kind == "shared":
            self._transport.write(target, Area.HEAP, entry.offset, element)
        else:
            self._check_answer(target, entry, before)
        if self._board.snapshot[entry.rank, entry.op_id % SNAPSHOTS] == entry.op_id:
            self._hand_back(entry, before)

    def _check_answer(self, target: int, entry: LogEntry, before: Bytes) -> None:
        """Let MPI carry out the atomic; it must find what the log says is there."""
        operation = rmw.operation_of(entry.op_id)
        answer = self._transport.atomic(target, entry.offset, entry.nbytes, operation, entry.a, entry.b)
        if answer.tobytes() != before.tobytes():
            raise InternalError(
                f"rank {target}: an atomic at byte {entry.offset} found {answer.tobytes().hex()}, "
                f"the apply log says {before.tobytes().hex()}"
            )

    def _hand_back(self, entry: LogEntry, data: Bytes) -> None:
        """Put what a get or atomic read where its poster looks for it."""
        if entry.file_id >= 0:
            self._transport.write(entry.file_id, Area.STAGING, entry.file_offset, data)
        else:
            with open(self._spill_path(-entry.file_id - 1, entry.file_offset), "r+b") as file:
                file.write(data.data)
        self._board.snapshot[entry.rank, entry.op_id % SNAPSHOTS] = -entry.op_id

    # --- put --------------------------------------------------------------------------------------------

    def stage(self, target: int, offset: int, data: Bytes) -> LogRef:
        """Copy `data` (uint8, contiguous) to the target's pool, or to a file, for a put to `offset` of
        its heap."""
        file_id, at, op_id = self.stage_one(target, data, 1)
        return LogRef(file_id, at, offset, data.size, op_id)

    # --- get and atomic ---------------------------------------------------------------------------------

    def start_get(self, source: int, offset: int, nbytes: int, charged: int) -> int:
        """Post a get of `nbytes` at `offset` of the source's heap; returns the engine's handle."""
        ref = self.expect(source, offset, nbytes)
        handle = self._engine.get(source, charged, ref)
        self.expected(handle, source, ref)
        return handle

    def expect(self, source: int, offset: int, nbytes: int, operation: int = 0) -> LogRef:
        """Make room for the bytes that a get, or the atomic `operation`, will bring from the source's heap,
        and announce its entry. Raises: UsageError, too many are under way."""
        if len(self._gets) >= SNAPSHOTS:
            raise UsageError(f"{SNAPSHOTS} gets of rank {self._me} are under way; wait for some first")
        op_id = self._number()
        while self._board.snapshot[self._me, op_id % SNAPSHOTS]:
            op_id = self._number()
        ref = self._place_for(source, offset, nbytes, op_id)._replace(op_id=rmw.marked(op_id, operation))
        self._board.snapshot[self._me, op_id % SNAPSHOTS] = ref.op_id
        return ref

    def expected(self, handle: int, source: int, ref: LogRef) -> None:
        """Note under which handle the operation of `expect` was posted."""
        self._gets[handle] = (source, ref)

    def is_expected(self, handle: int) -> bool:
        """Whether a get or atomic of mine was posted under that handle and its bytes were not fetched."""
        return handle in self._gets

    def _place_for(self, source: int, offset: int, nbytes: int, op_id: int) -> LogRef:
        self._engine.log_lock(source)
        try:
            self._announce(source)
        finally:
            self._engine.log_unlock(source)
        slot = self._reserve(self._me, nbytes, 0)
        if slot is not None:
            return LogRef(self._me, slot, offset, nbytes, op_id)
        self._spill(op_id, np.zeros(nbytes, np.uint8))
        return LogRef(-self._me - 1, op_id, offset, nbytes, op_id)

    def finish_get(self, handle: int, wanted: bool = True) -> Bytes:
        """Fetch the bytes of a get whose response is in, or what an atomic found.

        Args:
            wanted: False for one that failed: only its place is freed, and there are no bytes.
        """
        source, ref = self._gets.pop(handle)
        data = np.empty(0, np.uint8)
        self._engine.log_lock(source)
        try:
            if wanted:
                data = self._bytes_of(source, ref)
            self._board.snapshot[self._me, ref.op_id % SNAPSHOTS] = 0
        finally:
            self._engine.log_unlock(source)
        self._engine.log_lock(self._me)
        try:
            self._release(ref.file_id, ref.file_offset, ref.nbytes)
        finally:
            self._engine.log_unlock(self._me)
        return data

    def _bytes_of(self, source: int, ref: LogRef) -> Bytes:
        slot = ref.op_id % SNAPSHOTS
        if self._board.snapshot[self._me, slot] != -ref.op_id and self._state[source] != MemoryState.RUNNING:
            self._apply_locked(source, None)  # shorter than laying the entries over, again for each reader
        if self._board.snapshot[self._me, slot] == -ref.op_id:
            return self._captured(ref)
        return self._overlaid(source, ref)

    def _captured(self, ref: LogRef) -> Bytes:
        if ref.file_id < 0:
            return np.fromfile(self._spill_path(self._me, ref.file_offset), np.uint8, ref.nbytes)
        return self._transport.own(Area.STAGING)[ref.file_offset : ref.file_offset + ref.nbytes].copy()

    def _overlaid(self, source: int, ref: LogRef) -> Bytes:
        """The source's memory as it was when the response left: its heap with the older entries laid over.

        Read from one multiple of 8 to another, so that elements the older atomics changed are whole."""
        first, last = ref.offset // 8 * 8, -(-(ref.offset + ref.nbytes) // 8) * 8
        data = np.empty(last - first, np.uint8)
        self._transport.read(source, Area.HEAP, first, data)
        for entry in self._entries(source):
            if entry.op_id == ref.op_id and entry.rank == self._me and rmw.takes_bytes(entry.kind):
                break
            low, high = max(first, entry.offset), min(last, entry.offset + entry.nbytes)
            if low >= high or not rmw.changes_bytes(entry.kind):
                continue
            piece = data[low - first : high - first]
            if entry.kind == LOG_PUT:
                staged = self._staged(source, entry.file_id, entry.file_offset, entry.nbytes)
                piece[:] = staged[low - entry.offset : high - entry.offset]
            else:
                rmw.apply(entry.op_id, piece, entry.a, entry.b)
        return data[ref.offset - first : ref.offset - first + ref.nbytes]

    def close(self) -> None:
        """Unlink the spill files nobody applied."""
        for path in self._spills:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._spills.clear()


def was_announced(drop: LogEntry) -> bool:
    """Whether a dropped operation had announced an entry; the payload of a message has not."""
    return bool(drop.a or drop.b) and drop.offset >= 0


def as_bytes(array: npt.NDArray[Any]) -> Bytes:
    """View a contiguous array of any dtype as uint8[nbytes], in memory order (as mpi4py sends it)."""
    return array.reshape(-1, order="A").view(np.uint8) if array.size else np.empty(0, np.uint8)
