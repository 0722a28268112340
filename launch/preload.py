"""What a fork server imports, so that every rank finds it done; and what tells when that is out of date."""

import contextlib
import importlib
import os
import pkgutil
import sys
import weakref
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from launch import paths
from launch.rankmain import OWN_PACKAGES

_NOT_FOR_RANKS = ("emulator.testing", "serving.api", "serving.bench")
"""What no rank wants: fixtures, with pytest behind them; the HTTP server with its libraries; its load."""


def preload() -> None:
    """Import what ranks would, so that they find it done. MPI is loaded but not initialised."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    import numpy
    import numpy.random  # noqa: F401
    import torch
    from mpi4py import MPI  # noqa: F401

    torch.set_num_threads(1)
    for name in OWN_PACKAGES:
        _import_all(name)
    _read_packaged_files()
    mpi4py.rc.initialize, mpi4py.rc.finalize = True, None
    _drop_exit_finalizers()


def _drop_exit_finalizers() -> None:
    """Take back what imports want done at exit by `weakref.finalize`; what a program registers itself is
    still done.

    Torch takes its operator libraries apart there, which in a forked rank copies 27 MB and takes 23 ms
    (measured) for a process that ends the next moment.
    """
    registry: dict[Any, Any] = getattr(weakref.finalize, "_registry", {})
    for finalizer in list(registry):
        finalizer.atexit = False


def _read_packaged_files() -> None:
    """Parse the machine profile and the price list nearly every rank wants; both modules keep the result."""
    with contextlib.suppress(Exception):  # a rank that needs them will say what is wrong
        from emulator.profile import load_profile
        from serving.pricing import PricedModel

        PricedModel.load("deepseek-r1", load_profile())


def _import_all(name: str) -> None:
    """Import a package of ours and its modules; what fails here fails again, and visibly, in the rank that
    needs it."""
    with contextlib.suppress(Exception):
        package = importlib.import_module(name)
        for module in _submodules(package):
            with contextlib.suppress(Exception):
                importlib.import_module(module)


def _submodules(package: ModuleType) -> Iterable[str]:
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not info.name.startswith(_NOT_FOR_RANKS) and not info.name.endswith(".__main__"):
            yield info.name


def fingerprint() -> tuple[tuple[str, int], ...]:
    """Return what tells the code we have loaded from what is on disk now."""
    found = []
    for name in sorted(set(_own_files())):
        try:
            found.append((name, os.stat(name).st_mtime_ns))
        except OSError:
            found.append((name, 0))
    return tuple(found)


def _own_files() -> Iterable[str]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in (*OWN_PACKAGES, "launch") and getattr(module, "__file__", None):
            yield str(module.__file__)
    yield str(paths.BOARD)
    yield str(paths.IMAGE)
