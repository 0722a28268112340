"""What a call of the process group returns: a handle to wait for, with the future torch's own libraries use.

`wait` is where virtual time passes and where the result lands in the tensors; whoever waits for the future
waits for the work (`collectives.dist.future`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from collectives.dist.future import WorkFuture, at_end_of_backward, waits_at_once

PS_PER_MICROSECOND = 1_000_000
NO_TIMEOUT = timedelta(0)
"""What torch passes where the caller gave no time-out."""


def timeout_ps(timeout: timedelta | None) -> int | None:
    """Return a time-out in picoseconds; None where torch's value says there is none."""
    if timeout is None or timeout <= NO_TIMEOUT:
        return None
    return timeout // timedelta(microseconds=1) * PS_PER_MICROSECOND


_Base: Any = Work


class Handle(_Base):  # type: ignore[misc]
    """Base of both kinds of work.

    Attributes:
        results: tensors that hold the result once it is complete.
    """

    def __init__(self, results: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.results = list(results)
        self._complete = False
        self._failure: BaseException | None = None
        self._future: WorkFuture | None = None

    @abstractmethod
    def _finish(self, limit_ps: int | None) -> None:
        """Block until the result is in the tensors."""

    @abstractmethod
    def _poll(self) -> bool:
        """Return whether `_finish` would return at once."""

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait for the end; the result is in the tensors then.

        Args:
            timeout: virtual time; by default the group's.

        Raises:
            whatever ended it otherwise, at this call and at each later one.
        """
        if self._failure is not None:
            raise self._failure
        if not self._complete:
            try:
                self._finish(timeout_ps(timeout))
            except Exception as error:
                self._failure = error
                self._settle_future()
                raise
            self._complete = True
            self._settle_future()
        return True

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether it has ended by now, with or without success; a look in vain costs a poll."""
        if not self._complete and self._failure is None and self._poll():
            self._finish_quietly()
        return self._complete or self._failure is not None

    def is_success(self) -> bool:
        """Return whether it has ended well."""
        return self._complete

    def exception(self) -> BaseException | None:
        """Return what ended it otherwise."""
        return self._failure

    def result(self) -> list[torch.Tensor]:
        """Return the tensors with the result."""
        return self.results

    def get_future(self) -> WorkFuture:
        """Return the future of the result tensors; complete when the work has been waited for.

        Asked for in a backward pass, it is complete when the pass ends, where DistributedDataParallel waits.
        """
        if self._future is None:
            self._future = WorkFuture(self._finish_quietly, self._look)
            if self._complete or self._failure is not None:
                self._settle_future()
            elif waits_at_once():
                self._finish_quietly()
            else:
                at_end_of_backward(self.synchronize)
        return self._future

    def _look(self) -> None:
        self.is_completed()

    def _finish_quietly(self) -> None:
        """Wait; a failure goes to the future."""
        with suppress(Exception):
            self.wait()

    def _settle_future(self) -> None:
        future = self._future
        if future is None:
            return
        if self._failure is None:
            future.set_result(self.results)
        else:
            future.set_exception(self._failure)


class GroupWork(Handle):
    """A collective.

    Args:
        inner: the work of `collectives.coll`; None when there was nothing to do.
        settle: copies the result home.
        limit_ps: longest it may take, virtual time, where `wait` says nothing; None: the group's.
    """

    def __init__(
        self,
        inner: Any,
        results: Sequence[torch.Tensor],
        settle: Callable[[], None] | None = None,
        limit_ps: int | None = None,
    ) -> None:
        super().__init__(results)
        self._inner, self._settle, self._limit_ps = inner, settle, limit_ps

    @classmethod
    def ended(cls) -> GroupWork:
        """Return one that is complete and has no results."""
        work = cls(None, [])
        work._complete = True
        return work

    def _finish(self, limit_ps: int | None) -> None:
        if self._inner is not None:
            self._inner.wait(self._limit_ps if limit_ps is None else limit_ps)
        if self._settle is not None:
            self._settle()
        self._inner = self._settle = None

    def _poll(self) -> bool:
        """Return True: a collective makes its way while a member waits, so a look at it is a wait. (A program
        that looks until it is complete would never end otherwise.)"""
        return True
