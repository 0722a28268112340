"""Futures of works: complete when the work is waited for, by whoever asks first.

A rank has one thread, and a work passes only while that thread waits. torch's own `Future.wait` sleeps until
another thread completes it, which here nobody would. So these futures, and those made of them by `then`,
finish their works when they are waited for or looked at from Python. C++ waits in three places: the reducer
of DistributedDataParallel at the end of a backward pass, for which futures asked for *during* one finish in
a callback of the autograd engine that comes before the reducer's (`at_end_of_backward`); the reducer again
where it asks and waits in one go (the first pass of a static graph) or hands out futures of its own (to ranks
that have joined), so works finish there when they are asked for their futures; and
`torch.futures.collect_all`. The latter two are wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.futures
from torch._C import _distributed_c10d as c10d

_Base: Any = torch.futures.Future


class WorkFuture(_Base):  # type: ignore[misc]
    """A future that completes itself.

    Args:
        finish: waits for what completes it; raises nothing (a failure is the future's exception).
        look: finishes if that takes no waiting.
    """

    def __init__(self, finish: Callable[[], None], look: Callable[[], None]) -> None:
        super().__init__()
        self._finish, self._look = finish, look

    def wait(self) -> Any:
        """Finish, and return the value. Raises: what ended the work otherwise."""
        self._finish()
        return super().wait()

    def done(self) -> bool:
        """Return whether it is complete; like `Work.is_completed`, a look at a collective waits for it."""
        self._look()
        return bool(super().done())

    def then(self, callback: Callable[[Any], Any]) -> WorkFuture:
        """Return a future of what `callback(self)` returns once this one is complete."""
        child = WorkFuture(self._finish, self._look)

        def follow(_: Any) -> None:
            try:
                child.set_result(callback(self))
            except Exception as error:
                child.set_exception(error)

        self.add_done_callback(follow)
        return child


class _Waiting:
    """Whether C++ waits for futures as soon as it has them."""

    at_once = False


def waits_at_once() -> bool:
    """Whether who asks for a future now will wait for it in C++, where nobody could finish it."""
    return _Waiting.at_once


def _finishing(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, in which works finish when they are asked for their futures."""

    def at_once(*arguments: Any) -> Any:
        _Waiting.at_once = True
        try:
            return call(*arguments)
        finally:
            _Waiting.at_once = False

    return at_once


def at_end_of_backward(finish: Callable[[], None]) -> bool:
    """Call `finish` before this backward pass ends; False if none is going on."""
    engine: Any = torch.autograd.Variable._execution_engine
    try:
        engine.queue_callback(finish)
    except RuntimeError:  # "Final callbacks can only be installed during backward pass."
        return False
    return True


_collect: Callable[[Any], Any] = torch.futures.collect_all


def collect_all(futures: Any) -> Any:
    """As torch's: a future of the list of completed futures; works among them finish when it is asked."""
    works = [future for future in futures if isinstance(future, WorkFuture)]
    whole = _collect(futures)
    if not works:
        return whole

    def finish() -> None:
        for future in works:
            future._finish()

    def look() -> None:
        for future in works:
            future._look()

    mine = WorkFuture(finish, look)
    whole.add_done_callback(lambda _: mine.set_result(list(futures)))
    return mine


def wait_all(futures: Any) -> list[Any]:
    """As torch's: the values of all, or the first failure."""
    return [future.wait() for future in collect_all(futures).wait()]


torch.futures.collect_all, torch.futures.wait_all = collect_all, wait_all
for _name in ("_delay_all_reduce", "_run_allreduce_hook", "_run_comm_hook"):
    setattr(c10d.Reducer, _name, _finishing(getattr(c10d.Reducer, _name)))
