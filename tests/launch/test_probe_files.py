"""What Open MPI tries out in /dev/shm when it starts would stay there if a rank were killed just then."""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from ranks import run_ranks

pytestmark = pytest.mark.multirank
_CREATED, _NONBLOCK, _HEAD = 0x100, 0o4000, struct.Struct("iIII")


@contextmanager
def created_in(directory: str) -> Iterator[list[str]]:
    """Names of what is made in a directory meanwhile; filled at the end."""
    libc, names = ctypes.CDLL(None), list[str]()
    fd = libc.inotify_init1(_NONBLOCK)
    libc.inotify_add_watch(fd, os.fsencode(directory), _CREATED)
    yield names
    events, at = os.read(fd, 1 << 16), 0
    os.close(fd)
    while at < len(events):
        *_, size = _HEAD.unpack_from(events, at)
        at += _HEAD.size + size
        names.append(os.fsdecode(events[at - size : at].rstrip(b"\0")))


@pytest.mark.parametrize("launcher", ["fork", "rank", "plain"])
def test_no_kind_of_segment_is_tried_out(launcher: str) -> None:
    """Shown to fail without `OMPI_MCA_shmem`: each rank makes and removes an open_mpi.NNNN."""
    for _ in range(5):  # programs of mpi4py alone, in tests beside this one, do make some
        with created_in("/dev/shm") as names:
            run_ranks(2, "import emulator; emulator.init()", launcher=launcher)
        assert names
        if not any(name.startswith("open_mpi") for name in names):
            return
    pytest.fail(f"made in /dev/shm: {names}")
