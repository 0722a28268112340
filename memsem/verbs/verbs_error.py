"""Errors of the verbs calls, split as `pyverbs.pyverbs_error` splits them.

They are for what the caller did wrong at a call. What the other side or the network did arrives as the status
of a completion, never as an exception from a post.
"""

from __future__ import annotations

import errno
from typing import Any

from emulator.errors import StateError, UsageError

__all__ = ["CQOverrunError", "PyverbsError", "PyverbsRDMAError", "PyverbsUserError", "QPStateError"]


class PyverbsError(UsageError):
    """Root of the verbs errors. Fields: rank, now_ps, value, as every misuse."""


class PyverbsUserError(PyverbsError):
    """Input that no device was asked about: wrong types, wrong counts."""


class PyverbsRDMAError(PyverbsError):
    """A verbs call returned an error number. Fields: `error_code` (errno), rank, now_ps, value."""

    def __init__(self, message: str, error_code: int = errno.EINVAL, **fields: Any) -> None:
        fields.setdefault("error_code", error_code)
        super().__init__(message, **fields)


class QPStateError(PyverbsRDMAError, StateError):
    """The queue pair is in a state in which the call is not allowed (EINVAL)."""


class CQOverrunError(PyverbsRDMAError):
    """The completion queue lost completions: its depth was exceeded, and it is of no use any more (EIO)."""
