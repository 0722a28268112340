"""Give memory that is not needed any more back to the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
returners: list[Callable[[], object]] = []
"""For launchers: what else they know to give back for a process."""


def give_back() -> None:
    """Return what the C library keeps of freed memory (2 MB a rank after start-up), and what a launcher can.

    Takes a few milliseconds; worth it after the first steps of a program.
    """
    if _trim is not None:
        _trim(0)
    for returner in returners:
        returner()
