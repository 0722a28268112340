"""What a call of the process group returns: a handle to wait for, with the future torch's own libraries use.

`wait` is where virtual time passes and where the result lands in the tensors. A future cannot be completed by
a process that sleeps in `wait` of that future, and a rank has one thread: so `get_future` waits first and
returns a completed one. (DistributedDataParallel asks for futures; FSDP2 and tensor parallelism wait.)
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

PS_PER_MICROSECOND = 1_000_000
_NO_TIMEOUT = timedelta(0)
"""What torch passes where the caller gave no time-out."""


def timeout_ps(timeout: timedelta | None) -> int | None:
    """Return a time-out in picoseconds; None where torch's value says there is none."""
    if timeout is None or timeout <= _NO_TIMEOUT:
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
        self._future: Future[list[torch.Tensor]] | None = None

    @abstractmethod
    def _finish(self, limit_ps: int | None) -> None:
        """Block until the result is in the tensors."""

    @abstractmethod
    def _poll(self) -> bool:
        """Return whether `_finish` would return at once."""

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
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
                raise
            self._complete = True
        return True

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether it has ended by now, with or without success; a look in vain costs a poll."""
        if not self._complete and self._failure is None and self._poll():
            self.wait()
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

    def get_future(self) -> Future[list[torch.Tensor]]:
        """Wait, and return the completed future of the result tensors."""
        if self._future is None:
            self.wait()
            self._future = Future()
            self._future.set_result(self.results)
        return self._future


class GroupWork(Handle):
    """A collective.

    Args:
        inner: the work of `collectives.coll`; None when there was nothing to do.
        settle: copies the result home.
    """

    def __init__(
        self, inner: Any, results: Sequence[torch.Tensor], settle: Callable[[], None] | None = None
    ) -> None:
        super().__init__(results)
        self._inner, self._settle = inner, settle

    def _finish(self, limit_ps: int | None) -> None:
        if self._inner is not None:
            self._inner.wait(limit_ps)
        if self._settle is not None:
            self._settle()
        self._inner = self._settle = None

    def _poll(self) -> bool:
        """Return True: a collective makes its way while a member waits, so a look at it is a wait. (A program
        that looks until it is complete would never end otherwise.)"""
        return True
