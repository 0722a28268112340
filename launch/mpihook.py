"""Make a preloaded mpi4py behave in a forked rank as a fresh import would, and notice MPI's start and end.

The fork server loads `mpi4py.MPI` without initialising MPI, since `MPI_Init` is each rank's own. A program
that says `from mpi4py import MPI` expects MPI to be running after that line (unless it set
`mpi4py.rc.initialize = False`), so the module is hidden after the fork and this finder gives it back,
initialised, at the first import.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from launch.osproc import RUNNING_SLACK_NS, STARTING_SLACK_NS, set_timer_slack

_NAME = "mpi4py.MPI"
_LEVELS = {"single": 0, "funneled": 1, "serialized": 2, "multiple": 3}


class PreloadedMpi(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder and loader for the one module `mpi4py.MPI`, already loaded as `module`.

    Args:
        module: the loaded, uninitialised `mpi4py.MPI`.
        on_ready: called once, after MPI was initialised.
    """

    def __init__(self, module: ModuleType, on_ready: Callable[[], None]) -> None:
        self.module: Any = module
        self._spec = module.__spec__
        self._on_ready = on_ready
        self._auto_finalize = False

    def install(self) -> None:
        import mpi4py

        del sys.modules[_NAME]
        if hasattr(mpi4py, "MPI"):
            delattr(mpi4py, "MPI")
        for name in ("Init", "Init_thread"):
            setattr(self.module, name, self._starting(getattr(self.module, name)))
        self.module.Finalize = self._ending(self.module.Finalize)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == _NAME else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module: ModuleType = self.module
        return module

    def exec_module(self, module: ModuleType) -> None:
        import mpi4py

        module.__spec__ = self._spec
        rc = mpi4py.rc
        self._auto_finalize = bool(rc.initialize if rc.finalize is None else rc.finalize)
        if rc.initialize and not self.module.Is_initialized():
            if rc.threads:
                self.module.Init_thread(_LEVELS[rc.thread_level])
            else:
                self.module.Init()

    def finalize(self) -> None:
        """Do at the program's end what mpi4py does at exit."""
        mpi = self.module
        if self._auto_finalize and mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.Finalize()

    def _starting(self, init: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            set_timer_slack(STARTING_SLACK_NS)
            try:
                return init(*args, **kwargs)
            finally:
                set_timer_slack(RUNNING_SLACK_NS)
                self._on_ready()

        return wrapped

    def _ending(self, finalize: Callable[[], None]) -> Callable[[], None]:
        def wrapped() -> None:
            set_timer_slack(STARTING_SLACK_NS)
            try:
                finalize()
            finally:
                set_timer_slack(RUNNING_SLACK_NS)

        return wrapped
