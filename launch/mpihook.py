"""Make a preloaded mpi4py behave in a forked rank as a fresh import would, and notice MPI's start and end.

The fork server loads `mpi4py.MPI` without initialising MPI, since `MPI_Init` is each rank's own. A program
that says `from mpi4py import MPI` expects MPI to be running after that line (unless it set
`mpi4py.rc.initialize = False`), so the module is hidden after the fork and this finder gives it back,
initialised, at the first import.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from launch.jobtable import JobTable
from launch.osproc import RUNNING_SLACK_NS, STARTING_SLACK_NS, set_timer_slack

_NAME = "mpi4py.MPI"
_LONGEST_PAUSE_S = 0.1
_LEVELS = {"single": 0, "funneled": 1, "serialized": 2, "multiple": 3}


class PreloadedMpi(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder and loader for the one module `mpi4py.MPI`, already loaded as `module`.

    Args:
        module: the loaded, uninitialised `mpi4py.MPI`.
        table: the job's table.
        local_rank: this rank's place in it.
    """

    def __init__(self, module: ModuleType, table: JobTable, local_rank: int) -> None:
        self.module: Any = module
        self._spec = module.__spec__
        self.table = table
        self.local_rank = local_rank
        self._auto_finalize = False
        self._pid = 0

    def install(self) -> None:
        import mpi4py

        self._pid = os.getpid()
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
        """Do at the program's end what mpi4py does at exit; a process that the program forked is no rank."""
        mpi, is_rank = self.module, os.getpid() == self._pid
        if is_rank and self._auto_finalize and mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.Finalize()

    def _starting(self, init: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            set_timer_slack(STARTING_SLACK_NS)
            self.table.starting(self.local_rank, 1)
            try:
                return init(*args, **kwargs)
            finally:
                set_timer_slack(RUNNING_SLACK_NS)
                self.table.ready(self.local_rank)
                self.table.starting(self.local_rank, -1)

        return wrapped

    def _ending(self, finalize: Callable[[], None]) -> Callable[[], None]:
        def wrapped() -> None:
            set_timer_slack(STARTING_SLACK_NS)
            try:
                if self._meet_at_the_end():
                    finalize()
                    self.table.finalized(self.local_rank)
            finally:
                set_timer_slack(RUNNING_SLACK_NS)

        return wrapped

    def _meet_at_the_end(self) -> bool:
        """Wait, mostly asleep, until the other ranks here finalise too or have ended; return whether
        MPI_Finalize can end.

        It cannot when a rank was lost and the survivors go on (`--keep-going`, mpirun --continuous): Open
        MPI would wait for it for ever. They then end without MPI_Finalize, which mpirun accepts in that
        mode.
        """
        self.table.ending(self.local_rank)
        pause_s = 0.005
        while not self.table.all_ending():
            self.module.COMM_WORLD.Iprobe()  # a peer may need our progress to complete what we have sent
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return not self.table.any_lost()
