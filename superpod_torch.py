"""Make `torch.distributed` know the backend "superpod": what `import torch` calls, see `docs/torch.md`.

torch loads every entry point of the group `torch.backends` at its own import, in any program of this
environment. So this module is small, has a name of its own (a user's `launch.py` must not stand in its way)
and imports the project only where a program asks for the backend.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

NAME = "superpod"
_LAUNCHERS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


def register() -> None:
    """Register the backend, and let `env://` find rank and world size where mpirun started the process.

    Completion: `init_process_group("superpod")` works. Calling it again changes nothing. A torch without
    `torch.distributed` is left as it is.
    """
    import torch.distributed as dist

    if not dist.is_available() or NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
    handlers: Any = importlib.import_module("torch.distributed.rendezvous")._rendezvous_handlers
    usual: Any = handlers["env"]

    def env(url: str, **options: Any) -> Any:
        place = place_of(os.environ)
        if place is None or "MASTER_ADDR" in os.environ:  # another launcher, or the user's own server
            return usual(url, **options)
        from collectives.dist.store import meet

        return meet(url, *place)

    handlers["env"] = env


def create(options: Any, backend_options: Any) -> Any:
    """Make the process group of torch's `_DistributedBackendOptions`."""
    from collectives.dist.process_group import SuperpodProcessGroup

    return SuperpodProcessGroup.from_options(options)


def place_of(environ: Any) -> tuple[int, int] | None:
    """Return rank and world size as the environment of an MPI launcher gives them; None without."""
    for rank, size in _LAUNCHERS:
        if rank in environ and size in environ:
            return int(environ[rank]), int(environ[size])
    return None
