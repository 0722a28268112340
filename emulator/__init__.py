"""The machine: clock and event engine, topology and prices, memory and ports of one NPU die per process.

The functions below are loaded when the first of them is used, with numpy and the engine behind them: commands
that only need `emulator.errors` or `emulator.config` start in a third of the time.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from emulator import errors

if TYPE_CHECKING:
    from emulator.context import (
        barrier,
        compute,
        device,
        finalize,
        init,
        now,
        now_ps,
        num_ranks,
        rank,
        sleep_ps,
        start_clock,
    )
    from emulator.device import Device

__all__ = [
    "Device",
    "barrier",
    "compute",
    "device",
    "errors",
    "finalize",
    "init",
    "now",
    "now_ps",
    "num_ranks",
    "rank",
    "sleep_ps",
    "start_clock",
]


class _Machine(ModuleType):
    """This package: `emulator.device` is the function, not the module of that name, whatever is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "device" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in __all__:
            there = f"; it is emulator.errors.{name}" if hasattr(errors, name) else ""
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{there}")
        context = importlib.import_module("emulator.context")
        value = getattr(context, name)  # Device too: context makes them
        super().__setattr__(name, value)
        return value


sys.modules[__name__].__class__ = _Machine
