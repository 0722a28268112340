"""What a job's template hears of its stubs when descriptors are used again."""

import os
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from launch.jobtable import JobTable
from launch.template import Template, _Rank


def test_a_closed_connection_that_a_rank_still_has_is_heard_no_more() -> None:
    """A rank forked just before has the connection open, so its end is no end for epoll. Shown to fail where
    the connection is only closed: its hang-up is taken for that of the stub which has the descriptor now.
    A process of its own: a template takes note of every child that ends."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def _use_a_descriptor_again(place: Path) -> None:
    (channel, _other) = socket.socketpair()
    template = Template(channel, False, JobTable(2, place), str(place), 2, False)
    first = _listened(template, local=0)
    copy = os.dup(template.ranks[first].stub.fileno())
    theirs = template.ranks[first].theirs  # type: ignore[attr-defined]
    os.waitid(os.P_PID, template.ranks[first].pid, os.WEXITED | os.WNOWAIT)
    os.write(template.wake_w, b"\0")
    template._reap()
    assert _listened(template, local=1) == first
    theirs.close()
    assert not [fd for fd, _ in template.epoll.poll(0) if fd == first]
    os.close(copy)
    os.waitpid(template.ranks[first].pid, 0)


def _listened(template: Template, local: int) -> int:
    """The descriptor of a stub whose rank has ended."""
    ours, theirs = socket.socketpair()
    rank = _Rank(os.posix_spawn("/bin/true", ["true"], {}), ours, 0, local)
    rank.theirs = theirs  # type: ignore[attr-defined]
    template.ranks[ours.fileno()] = template.by_pid[rank.pid] = rank
    template.epoll.register(ours, select.EPOLLIN)
    return ours.fileno()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        _use_a_descriptor_again(Path(folder))
