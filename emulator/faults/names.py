"""Nearest names, for messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the name most like `name`."""
    known = list(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return close[0] if close else known[0]


def choice(what: str, name: object, names: Iterable[str]) -> None:
    """Raise ValueError, with the nearest name, if `name` is none of `names`."""
    known = list(names)
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}; nearest: {nearest(str(name), known)}")
