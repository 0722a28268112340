"""A rank that is refused a call does not come to it: what was wrong is told to those who wait for it, in the
report that ends their wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from collectives.agreement import CollectiveMismatchError
from emulator import Device
from emulator.errors import UsageError
from emulator.remarks import remark

P = ParamSpec("P")
R = TypeVar("R")


def refused(device: Device, error: UsageError) -> UsageError:
    """Remark an error for the others' reports; returns it."""
    if not isinstance(error, CollectiveMismatchError):  # which all have
        text = f"refused at {device.now_ps} ps: {error.message}"
        remark(device.board, device.rank, text)
    return error


def told_in_making(make: Callable[P, None]) -> Callable[P, None]:
    """The same `__init__`, in which misuse is remarked: making is a call of all ranks. The second argument is
    a device or has one, or is None (`emulator.device()`)."""

    @wraps(make)
    def remarked(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            make(*args, **kwargs)
        except UsageError as error:
            whose: Any = args[1] if len(args) > 1 else next(iter(kwargs.values()), None)
            device = whose if isinstance(whose, Device) else getattr(whose, "device", None)
            if isinstance(device, Device):
                refused(device, error)
            raise

    return remarked


def told(call: Callable[P, R]) -> Callable[P, R]:
    """The same call, in which misuse is remarked. Its first argument has a `device`."""

    @wraps(call)
    def remarked(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except UsageError as error:
            whose: Any = args[0] if args else kwargs["group"]
            refused(whose.device, error)
            raise

    return remarked
