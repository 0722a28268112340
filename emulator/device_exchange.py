"""The calls of a device in which all ranks take part: exchanges and the barrier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.engine.api import ChainStep, Engine, ExchangeResult
from emulator.errors import UsageError
from emulator.posting import Posting
from emulator.tracing import Op, RankTrace

BARRIER_CHANNEL = 0
META_BYTES = 32


class ExchangeCalls(ABC):
    """Part of `emulator.device.Device`.

    Attributes:
        after_barrier: called at the end of each barrier and exchange of mine.
    """

    engine: Engine
    trace: RankTrace
    posting: Posting
    after_barrier: list[Callable[[], None]]
    _meet: Callable[[], int]
    _exchange_tags: Callable[..., Any]

    @abstractmethod
    def quiet(self) -> None: ...

    @abstractmethod
    def renew(self) -> None: ...

    _inside = False

    @abstractmethod
    def _enter(self) -> None: ...

    @abstractmethod
    def _blocking(self, op: Op, call: Callable[..., Any], *arguments: Any) -> Any: ...

    def exchange(
        self,
        channel: int,
        counts: npt.NDArray[np.int32] | None,
        row_bytes: int,
        meta_bytes: int = META_BYTES,
        pull_start_ps: int = 0,
        record_ps: int = 0,
        chain: Sequence[ChainStep] = (),
        offsets: npt.NDArray[np.int32] | None = None,
        tag: int = 0,
        record_bytes: npt.NDArray[np.int64] | None = None,
    ) -> ExchangeResult:
        """Take part in the next exchange of a channel; see `Engine.exchange`."""
        result: ExchangeResult = self._blocking(
            Op.EXCHANGE, self.engine.exchange,
            channel, counts, row_bytes, meta_bytes, pull_start_ps, record_ps, chain, offsets, tag,
            record_bytes,
        )  # fmt: skip
        self._after_barrier()
        return result

    def exchange_tags(self, channel: int, record_bytes: int | npt.NDArray[np.int64], tag: int) -> int:
        """Take part in the next exchange of a channel, without rows; returns the sum of all ranks' tags.

        As `exchange(channel, None, 0, record_bytes, tag=tag)`, times and trace too, in less host time.

        Args:
            record_bytes: of my record to everybody, or int64 [g] to each of the channel's group.
            tag: 64 bits, given to everybody.

        Returns:
            the sum modulo 2**64, as a signed number.
        """
        total: int | None = self._exchange_tags(channel, record_bytes, tag)
        if total is None:
            sizes = record_bytes if isinstance(record_bytes, np.ndarray) else None
            nbytes = 0 if isinstance(record_bytes, np.ndarray) else record_bytes
            return int(self.exchange(channel, None, 0, nbytes, tag=tag, record_bytes=sizes).tags.sum())
        self.exchange_ended()
        return total

    def exchange_ended(self) -> None:
        """What follows each exchange of a compiled call."""
        if self.posting.owners:
            self.posting.dispatch()
        self._after_barrier()

    def exchange_post(
        self,
        channel: int,
        counts: npt.NDArray[np.int32] | None,
        row_bytes: int,
        meta_bytes: int = META_BYTES,
        offsets: npt.NDArray[np.int32] | None = None,
        tag: int = 0,
        record_bytes: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Announce only, without blocking; see `Engine.exchange_post`."""
        start = self.engine.now_ps
        self.engine.exchange_post(channel, counts, row_bytes, meta_bytes, offsets, tag, record_bytes)
        self.trace.add(Op.EXCHANGE_POST, start, self.engine.now_ps, channel, row_bytes)

    def exchange_wait(self, channel: int, pull_start_ps: int = 0, record_ps: int = 0) -> ExchangeResult:
        """Wait for the exchange I announced; see `Engine.exchange_wait`."""
        result: ExchangeResult = self._blocking(
            Op.EXCHANGE, self.engine.exchange_wait, channel, pull_start_ps, record_ps
        )
        self._after_barrier()
        return result

    def open_group(self, channel: int, members: npt.NDArray[np.int32]) -> None:
        """My exchanges of a channel are among `members` from now on; see `Engine.open_group`.

        Raises:
            UsageError: it is the barrier's channel, or one of the engine's reasons.
        """
        if channel == BARRIER_CHANNEL:
            raise UsageError(
                f"open_group: channel {channel} is the barrier's, of all ranks; take one of 1 to "
                f"{self.engine.config.channels - 1}",
                rank=self.engine.rank,
            )
        self.engine.open_group(channel, members)

    def barrier(self) -> None:
        """Complete my puts, then wait for all ranks (after deaths that I was told of: for the living): a
        32-byte record to everyone, and theirs."""
        self.renew()
        if self.posting.unquiet:
            self.quiet()
        self._enter()
        try:
            met = self._meet()
        finally:
            self._inside = False
        if not met:
            self.exchange(BARRIER_CHANNEL, None, 0)
            return
        self.exchange_ended()

    def _after_barrier(self) -> None:
        for call in self.after_barrier:
            call()
