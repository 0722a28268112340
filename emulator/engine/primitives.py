"""What an implementation of the engine provides; arguments were checked, errors come back as codes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from emulator.engine.api import ChainStep, EngineConfig, ExchangeResult, Int32Array, Int64Array, LogRef
from emulator.engine.posts import Inbox, Posts
from emulator.engine.schedules import Sends, Steps


class Waiter(dict[str, Any]):
    """One blocked rank of a report: rank, operation, since_ps, detail, waits_for (ranks or None)."""


class Primitives(ABC):
    """Calls return 0, a FATAL_ code, or (exchanges) minus the first negative count's index + 1."""

    config: EngineConfig
    rank: int
    num_ranks: int
    _result: int
    _seq: int
    _slot: int

    remarks: Callable[[], str] | None = None
    """What ranks have remarked outside virtual time, for reports; see `emulator.remarks`."""

    @abstractmethod
    def _compute(self, ps: int, kind: int, publish: bool) -> int: ...

    @abstractmethod
    def _put(self, dst: int, nbytes: int, log: LogRef | None, op: int, word: int, value: int) -> None: ...

    @abstractmethod
    def _get(self, src: int, nbytes: int, log: LogRef | None) -> int: ...

    _checks_posts = False
    """Whether `_post_all` checks its rows itself: it then returns minus (the first bad row + 1) and does
    nothing."""

    @abstractmethod
    def _post_all(self, posts: Posts, step_ps: int) -> int: ...

    _done: int
    """How many steps of the last schedule were carried out."""

    @abstractmethod
    def _schedule(self, steps: Steps, sends: Sends, step_ps: int, timeout_ps: int) -> int:
        """Also returns minus (the first bad step, or send after all steps, + 1), with nothing done."""

    @abstractmethod
    def _retire(self, stream: int) -> None: ...

    @abstractmethod
    def _take_inbox(self) -> Inbox: ...

    @abstractmethod
    def _atomic(self, dst: int, word: int, op: int, value: int, compare: int) -> int: ...

    @abstractmethod
    def _fence(self) -> None: ...

    @abstractmethod
    def _flush(self) -> int: ...

    @abstractmethod
    def _wait(self, conditions: list[tuple[int, int, int]], any_: bool, timeout_ps: int) -> int: ...

    @abstractmethod
    def _enter_wait(self, wait: int, a: int, b: int, c: int) -> int: ...

    @abstractmethod
    def _exchange(
        self,
        channel: int,
        counts: Int32Array | None,
        offsets: Int32Array | None,
        row_bytes: int,
        meta_bytes: int,
        tag: int,
        pull_start_ps: int,
        record_ps: int,
        chain: Sequence[ChainStep],
    ) -> int: ...

    @abstractmethod
    def _exchange_post(
        self,
        channel: int,
        counts: Int32Array | None,
        offsets: Int32Array | None,
        row_bytes: int,
        meta_bytes: int,
        tag: int,
    ) -> int: ...

    @abstractmethod
    def _take_sizes(self, sizes: Int64Array) -> int:
        """Keep the sizes for the row I post next (the array stays mine until then); minus (the index of the
        first bad one + 1), or 0."""

    @abstractmethod
    def _open_group(self, channel: int, members: Int32Array, check: int) -> int:
        """1, or 0 while an older exchange of the channel is under way."""

    @abstractmethod
    def _exchange_wait(self, channel: int, slot: int, pull_start_ps: int, record_ps: int) -> int: ...

    @abstractmethod
    def _exchanged(self) -> ExchangeResult: ...

    @abstractmethod
    def _measure(self) -> None:
        """Measured compute begins; the next call charges it."""

    @abstractmethod
    def _pace(self) -> int:
        """Sleep until my clock's instant."""

    @abstractmethod
    def _start_clock(self, hold: bool) -> int: ...

    @abstractmethod
    def _wall(self, rank: int) -> tuple[Int64Array, Int64Array]: ...

    @abstractmethod
    def _finish(self) -> None: ...

    @abstractmethod
    def _mark_dead(self, rank: int) -> None: ...

    @abstractmethod
    def lost(self) -> Int64Array: ...

    @abstractmethod
    def dead_ranks(self) -> list[int]: ...

    @abstractmethod
    def _hashes(self, rank: int) -> Int64Array: ...

    @abstractmethod
    def _culprit(self) -> int: ...

    @abstractmethod
    def _reason(self) -> str: ...

    @abstractmethod
    def _waiters(self) -> list[Waiter]: ...

    @abstractmethod
    def _running(self) -> list[int]: ...
