"""A view of my own array that tells the race checker what is read and written through it.

`Window.local` is one with `check_races`. Taking a slice says nothing yet; elements, arithmetic and numpy
functions do. What leaves it as plain memory (`np.asarray`, the buffer protocol) is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from memsem.checkfile import Kind

Note = Callable[[Kind, int, int], None]
"""Called with what was done and the first address and the one past the last."""


class CheckedView(np.ndarray[Any, np.dtype[Any]]):
    """An ndarray that reports accesses; made by `checked`."""

    _note: Note | None = None

    def __array_finalize__(self, obj: Any) -> None:
        self._note = getattr(obj, "_note", None)

    def __getitem__(self, item: Any) -> Any:
        found = super().__getitem__(item)
        if not isinstance(found, CheckedView) or not np.may_share_memory(_plain(found), _plain(self)):
            self._tell(Kind.LOAD, item)
        return found

    def __setitem__(self, item: Any, value: Any) -> None:
        self._tell(Kind.STORE, item)
        super().__setitem__(item, value)

    def tolist(self) -> Any:
        """The elements as Python objects; a read of all."""
        self._tell(Kind.LOAD, ...)
        return self.view(np.ndarray).tolist()

    def _tell(self, kind: Kind, item: Any) -> None:
        """Report the bytes of `self[item]`, or of everything where it is no plain slice."""
        plain = self.view(np.ndarray)
        whole = item if isinstance(item, tuple) else (item,)
        part = plain[item] if any(i is ... for i in whole) else plain[(*whole, ...)]
        if not np.may_share_memory(part, plain):
            part = plain
        if self._note is not None and part.size:
            self._note(kind, *byte_bounds(part))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        _tell_all(Kind.LOAD, inputs)
        _tell_all(Kind.STORE, out)
        if out:
            options["out"] = tuple(_plain(array) for array in out)
        return getattr(ufunc, method)(*map(_plain, inputs), **options)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        _tell_all(Kind.LOAD, args)
        del types
        plain = [_plain_inside(argument) for argument in args]
        return func(*plain, **{key: _plain(value) for key, value in kwargs.items()})


def checked(array: np.ndarray[Any, np.dtype[Any]], note: Note) -> CheckedView:
    """Return a view of `array` that reports to `note`."""
    view = array.view(CheckedView)
    view._note = note
    return view


def _tell_all(kind: Kind, arguments: Iterable[Any]) -> None:
    for argument in arguments:
        if isinstance(argument, CheckedView):
            argument._tell(kind, ...)
        elif isinstance(argument, list | tuple):
            _tell_all(kind, argument)


def _plain(argument: Any) -> Any:
    return argument.view(np.ndarray) if isinstance(argument, CheckedView) else argument


def _plain_inside(argument: Any) -> Any:
    if isinstance(argument, list | tuple):
        return type(argument)(map(_plain_inside, argument))
    return _plain(argument)
