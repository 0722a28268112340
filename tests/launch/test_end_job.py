"""When a fork server takes a job for ended, and when it leaves."""

import os
import signal
import socket
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from launch import forkserver, osproc


def template(left_behind: bool) -> int:
    """A process that leads a session, and has ended; a child of it may go on."""
    pid = os.fork()
    if not pid:
        os.setsid()
        if left_behind and not os.fork():
            time.sleep(60)
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def end_one_of_two() -> bool:
    """Whether a server whose two templates end at once, one with a process left, hears of both."""
    osproc.become_subreaper()
    server = object.__new__(forkserver.Server)
    server.wake_r, wake_w = os.pipe()
    server.jobs, server.private, server.shm, server.owner = {}, set(), None, None
    server._send_status = lambda job: None
    first, second = template(True), template(False)
    server.templates = {
        pid: SimpleNamespace(template=pid, namespace=str(pid), shm="/nowhere", session="")
        for pid in (first, second)
    }
    os.waitpid(first, 0)
    server._end_job(server.templates.pop(first))
    os.write(wake_w, b"x")
    server._reap()
    return not server.templates and not list(osproc.descendants(os.getpid()))


def leave_after_a_run(place: Path) -> bool:
    """Whether an idle server stays until the private server that it has forked has ended."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place / "sock"))
    listener.listen()
    path, lock = str(place / "sock"), str(place / "lock")
    fd = listener.detach()
    server = forkserver.Server(Namespace(listen_fd=fd, path=path, lock=lock, owner_fd=None, shm=None))
    server.idle_s = 0.5
    private = os.fork()
    if not private:
        time.sleep(2)
        os._exit(0)
    server.private.add(private)
    server.run()
    return not server.private


def in_child(what: Callable[..., bool], *arguments: object) -> bool:
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        ok = False
        try:
            ok = what(*arguments)
        finally:
            os._exit(0 if ok else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_two_templates_end_at_once():
    """Shown to fail where the end of a job reaps any child (`waitpid(-1)`): the server took the other job for
    running for ever, kept its files and never left."""
    assert in_child(end_one_of_two)


def test_a_server_with_a_run_under_way_is_not_idle(tmp_path):
    """Shown to fail where only jobs of its own count (`or self.private` left out of `run`): a run longer than
    SUPERPOD_IDLE_S made the next one import everything anew."""
    assert in_child(leave_after_a_run, tmp_path)
