"""What all windows of a rank share: operations under way, what `quiet` has to finish, the checker's file.

One object a device, because order and completion are properties of a rank's traffic,
not of a window. A rank's device and windows belong to one thread; calls from another are refused.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from emulator import Device
from emulator.engine.posts import DONE_ALWAYS, IN_NOTE, Posts
from emulator.errors import UsageError, misuse
from emulator.fabric import Shape, Transaction
from emulator.memory import as_bytes
from emulator.posting import OWNER_WINDOWS, InboxRecord
from emulator.tracing import Op
from memsem.checkfile import CHECK_DTYPE, CheckFile, Kind

if TYPE_CHECKING:
    from memsem.team import World

OWNER = OWNER_WINDOWS << 56
"""`user_b` of the posts of windows that bring records."""
IMM_WORD = 1 << 20
"""Word the race checker takes an immediate for: the wait for one is after the write that left it."""
MAX_TRACKED = 1024
"""Puts whose completion is reported one by one; of further ones `Pending.wait` waits for all. The engine's
ring of records is a few times as large."""
MAX_ATOMICS = 96
"""Gets and atomics nobody has waited for; one more finishes the oldest. The machine has room for 256."""
PLAIN = Shape()


class Immediate(NamedTuple):
    """What `Window.write_imm` left at its target: who wrote, the immediate, and when it came."""

    rank: int
    value: int
    time_ps: int


class Watched(NamedTuple):
    """The source of a non-blocking put, to be checked for changes (`check_races`)."""

    array: npt.NDArray[Any]
    checksum: int
    record: int
    home: int
    low: int


class Pending:
    """A started operation; complete after `wait` or after `quiet` of its rank.

    Attributes:
        is_done: known to be complete at my last observation point.
        record: its number in the race checker's file, -1 without.
        result: a get's array, a fetching atomic's old value; None before, and for puts.
    """

    def __init__(self, operations: Operations, record: int = -1) -> None:
        self._operations, self.record = operations, record
        self.is_done = False
        self.result: Any = None
        self.finish: Callable[[], Any] | None = None
        self.handle = -1
        """Sequence number of a put whose completion is reported, or the handle of a get; -1 neither."""

    def wait(self) -> Any:
        """Wait until the operation is complete; returns `result`. Blocks.

        Completion: a put's bytes are in the target's memory, a get's are in `out`; the source may change.
        """
        if not self.is_done:
            self._operations.complete(self)
        return self.result


class Operations:
    """State of one rank's windows; get it with `Operations.of`."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._thread = threading.get_ident()
        self._windows = 0
        self._tracked: dict[int, Pending] = {}
        self._untracked: weakref.WeakSet[Pending] = weakref.WeakSet()  # of those that somebody still holds
        self._gets: dict[int, Pending] = {}
        self._sources: list[Watched] = []
        self._shapes: dict[tuple[Any, ...], Shape] = {}
        self._streams: dict[int, int] = {}
        self.immediates: dict[int, list[InboxRecord]] = {}
        self.world: World | None = None
        config = device.config
        self.check = CheckFile(str(config.trace), device.rank) if config.check_races else None
        device.register_inbox(OWNER_WINDOWS, self._arrived)
        device.after_barrier.append(self._met)

    @classmethod
    def of(cls, device: Device) -> Operations:
        """Return the device's, made at the first call."""
        found = device.library.get(cls)
        if found is None:
            found = device.library[cls] = cls(device)
        assert isinstance(found, Operations)
        return found

    def next_window(self) -> int:
        """A number for a new window, alike on all ranks, since all make them in one order."""
        self._windows += 1
        return self._windows

    def enter(self, calls: int = 1) -> None:
        """Begin calls into windows: count them. Raises: UsageError, another thread than the first one's."""
        device = self.device
        if threading.get_ident() != self._thread:
            message = "window: a rank's windows belong to the thread that made the first one"
            where = {"rank": device.rank, "now_ps": device.now_ps}
            raise misuse(UsageError, message, value=threading.current_thread().name, **where)
        device.ledger.call("mem", calls)

    # --- what the fabric is told ------------------------------------------------------------------------

    def shape(self, call: str, home: int, nbytes: int, engine: str | None, cores: int | None) -> Shape:
        """Shape of a "put" or "get" of so many charged bytes; by the run's default engine without one."""
        device = self.device
        if not isinstance(engine, str | None) or not isinstance(cores, int | None):
            message = f"window: engine {engine!r} must be a name, and cores {cores!r} an integer"
            where = {"rank": device.rank, "now_ps": device.now_ps}
            raise misuse(UsageError, message, value=(engine, cores), **where)
        key = (call, device.engine.link_class(home), nbytes, engine or device.config.engine_default, cores)
        found = self._shapes.get(key)
        if found is None:
            if len(self._shapes) > 4096:
                self._shapes.clear()
            found = self._shapes[key] = self._priced(call, *key[1:])
        return found

    def _priced(self, call: str, *arguments: Any) -> Shape:
        device = self.device
        try:
            shape: Shape = getattr(device.fabric, call)(*arguments)
        except UsageError as error:
            where = {"rank": device.rank, "now_ps": device.now_ps}
            raise misuse(UsageError, f"window: {error.message}", value=arguments[2], **where) from None
        return shape

    def atomic_shape(self, home: int) -> Shape:
        """Shape of an atomic on an element."""
        return self.device.fabric.atomic(self.device.engine.link_class(home))

    def stream(self, home: int) -> int:
        """The stream whose completions towards `home` are reported in order."""
        if home not in self._streams:
            self._streams[home] = self.device.new_stream()
        return self._streams[home]

    def count(self, shape: Shape, signals: int, posts: int = 1) -> None:
        """Count the transactions of `posts` operations."""
        if shape.unit >= 0:
            self.device.ledger.add("mem", Transaction.DESCRIPTOR, posts)
        if signals:
            self.device.ledger.add("mem", Transaction.FLAG, signals)

    # --- operations under way ---------------------------------------------------------------------------

    def post(self, posts: Posts, data: npt.NDArray[np.uint8] | None, track: bool = False) -> int:
        """Post puts after my last fence; returns the sequence number of the first, or -1 when it was to be
        tracked and cannot be."""
        tracked = track and len(self._tracked) < MAX_TRACKED
        if tracked:
            posts["done"], posts["user_b"] = DONE_ALWAYS, OWNER
        for name, value in self.device.fence_fields().items():
            posts[name] |= value
        first = self.device.post(posts, data, Op.PUT)
        return first if tracked or not track else -1

    def started(self, seq: int, record: int, data: npt.NDArray[Any], home: int, low: int) -> Pending:
        """A non-blocking put has been posted: `seq` as `post` returned it, `record` its check record."""
        pending = Pending(self, record)
        pending.handle = seq
        if seq >= 0:
            self._tracked[seq] = pending
        else:
            self._untracked.add(pending)
        if self.check is not None:
            self._sources.append(Watched(data, self._checksum(data), record, home, low))
        return pending

    def started_get(self, handle: int, record: int, finish: Callable[[], Any]) -> Pending:
        """A get or fetching atomic is under way; `finish` waits for it and returns its result."""
        self.device.posting.unquiet = True
        pending = self._gets[handle] = Pending(self, record)
        pending.handle, pending.finish = handle, finish
        return pending

    def make_room(self) -> None:
        """Before one more get or atomic: finish the oldest where many are under way."""
        while len(self._gets) >= MAX_ATOMICS:
            self._finish_get(next(iter(self._gets.values())))

    def _checksum(self, array: npt.NDArray[Any]) -> int:
        return int(self.device.rows.checksum(as_bytes(array)))

    def complete(self, pending: Pending) -> None:
        """Wait for one operation."""
        self.enter()
        device = self.device
        if pending.finish is not None:
            self._finish_get(pending)
        elif pending.handle < 0:
            self.quiet()
        else:
            while not pending.is_done:
                device.wait_inbox(device.inbox_seen)
        if pending.record >= 0:
            self._check_sources(pending.record)
            self.note(Kind.DONE, index=pending.record)

    def _finish_get(self, pending: Pending) -> None:
        assert pending.finish is not None
        self._gets.pop(pending.handle, None)
        pending.result, pending.is_done = pending.finish(), True

    def _arrived(self, record: InboxRecord) -> None:
        if record.kind == IN_NOTE:
            self.immediates.setdefault(record.user_a, []).append(record)
            return
        pending = self._tracked.pop(record.seq, None)
        if pending is not None:
            pending.is_done = True

    # --- order and completion ---------------------------------------------------------------------------

    def fence(self) -> None:
        """Order my puts, signals and atomics to each target."""
        self.device.fence()
        self.note(Kind.FENCE)

    def quiet(self) -> None:
        """Complete everything of mine. Blocks."""
        self.device.quiet()
        self._completed()

    def _completed(self) -> None:
        for pending in list(self._gets.values()):
            self._finish_get(pending)
        for pending in (*self._tracked.values(), *self._untracked):
            pending.is_done = True
        self._tracked.clear()
        self._untracked.clear()
        self._check_sources(None)
        self.note(Kind.QUIET)

    def _met(self) -> None:
        """A barrier has ended, which completes what I posted; or an exchange, which completes nothing."""
        if not self.device.posting.unquiet:
            self._completed()
        self.note(Kind.BARRIER)

    def _check_sources(self, record: int | None) -> None:
        rest = []
        for watched in self._sources:
            if record is not None and watched.record != record:
                rest.append(watched)
            elif self._checksum(watched.array) != watched.checksum:
                high = watched.low + watched.array.nbytes
                self.note(Kind.SOURCE, index=watched.record, home=watched.home, low=watched.low, high=high)
        self._sources = rest

    # --- the race checker's records ---------------------------------------------------------------------

    def note(self, kind: Kind, **fields: int) -> int:
        """Record what I do, if anybody looks; returns the record's number, -1 without."""
        return -1 if self.check is None else self.check.add(kind, self.device.now_ps, **fields)

    def note_many(self, kind: Kind, count: int, **fields: npt.ArrayLike) -> int:
        """Record `count` accesses at once; fields are scalars or arrays [count]."""
        if self.check is None or not count:
            return -1
        records = np.zeros(count, CHECK_DTYPE)
        records["kind"], records["time_ps"], records["word"] = kind, self.device.now_ps, -1
        for name, values in fields.items():
            records[name] = values
        return self.check.append(records)
