"""The fork server: one process per host that has torch, numpy and mpi4py imported and from which ranks are
forked.

    python -P -m launch.forkserver --listen-fd FD --path SOCKET [--lock FILE] [--owner-fd FD --shm DIR]

It accepts stubs (wire.py), forks a template per job (template.py), and cleans up after each job. Two ways
of life:

* owned (`superpod run`): `--owner-fd` is a socket to the command. Status goes up it as JSON lines; when it
  closes, however the command ended, every rank is killed, the run's directories are removed and the server
  ends;
* shared (a user's own mpirun): started by the first stub on the host, it serves any number of jobs and
  leaves when idle. A server whose code has changed on disk hands its socket to a fresh successor before the
  next job.
"""

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch import board, image, osproc, paths, warm, wire
from launch.address import give_up_address, mpirun_of, refuse, sweep_jobs
from launch.jobtable import JobTable
from launch.preload import fingerprint, preload
from launch.template import MAX_MESSAGE, Template, hand_down, prepare, serves_replay

_STATUS_EVERY_S = 0.1
_HELLO_TIMEOUT_S = 10.0


@dataclass
class _Job:
    namespace: str
    template: int
    channel: socket.socket
    missing: int
    table: JobTable
    shm: Path
    session: str


class Server:
    """The accept loop and the jobs it serves; see the module's text for the two ways of life."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.listener: socket.socket | None = socket.socket(fileno=args.listen_fd)
        self.listener.set_inheritable(False)
        self.listener.setblocking(False)
        self.path = Path(args.path)
        self.lock = args.lock
        self.owner = socket.socket(fileno=args.owner_fd) if args.owner_fd is not None else None
        self.shm = args.shm
        self.command: socket.socket | None = None  # of whom asked for this server, where it was forked
        self.idle_s = warm.idle_seconds(os.environ)
        self.jobs: dict[str, _Job] = {}  # that still gather stubs, by namespace
        self.templates: dict[int, _Job] = {}
        self.private: set[int] = set()  # servers forked for runs that go on
        self.sessions: dict[int, str] = {}  # directories of mpiruns whose jobs have ended, by pidfd
        self.fingerprint = fingerprint()
        self.sent = ""
        self.wake_r, self.wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector = selectors.DefaultSelector()
        for f in (self.listener, self.owner, self.wake_r):
            if f is not None:
                self.selector.register(f, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the owner is gone, or nothing is left to do."""
        idle_since = time.monotonic()
        while True:
            busy = bool(self.templates)
            for key, _ in self.selector.select(_STATUS_EVERY_S if busy and self.owner else 1.0):
                if key.fileobj is self.listener:
                    self._accept()
                elif key.fileobj is self.owner:
                    if not self._hear_owner():
                        return self._shut_down()
                elif key.fd in self.sessions:
                    self._remove_session(key.fd)
                else:
                    self._reap()
            self._report()
            if busy or self.templates or self.private or self.sessions or self.owner:
                idle_since = time.monotonic()
            if self.listener is None and not self.templates and not self.sessions:
                return None
            if time.monotonic() - idle_since > self.idle_s and self._leave():
                return None

    # -- stubs --

    def _accept(self) -> bool:
        """Take the next stub; return whether there was one."""
        assert self.listener is not None
        try:
            stub, _ = self.listener.accept()
        except BlockingIOError:
            return False
        if not self.jobs and self.owner is None and fingerprint() != self.fingerprint:
            self._hand_over(stub)
        else:
            self.take(stub)
        return self.listener is not None

    def take(self, stub: socket.socket) -> None:
        """Read what an accepted stub sends and give it to its job's template."""
        stub.settimeout(_HELLO_TIMEOUT_S)
        with contextlib.suppress(wire.WireError, OSError):  # a stub that dies on its way is mpirun's affair
            message, files = wire.receive_hello(stub)
            stub.settimeout(None)
            try:
                if wire.wants_server(message):
                    self._fork_private(message, stub, files)
                else:
                    self._route(message, stub, files)
            finally:
                for f in files:
                    os.close(f)
        stub.close()

    def _fork_private(self, message: bytes, command: socket.socket, files: list[int]) -> None:
        """Fork the private server of a run (warm.py): it lives on its own, and as long as its command."""
        pid = os.fork()
        if pid:
            self.private.add(pid)
            wire.send_note(command, wire.STARTED, pid)
            return
        try:
            signal.set_wakeup_fd(-1)
            for f in (self.listener, self.selector, *(j.channel for j in self.jobs.values())):
                if f is not None:
                    f.close()
            for fd in (self.wake_r, self.wake_w, *self.sessions):
                os.close(fd)
            server = Server(warm.become_private(message, files))
            server.command = command
            server.run()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _route(self, message: bytes, stub: socket.socket, files: list[int]) -> None:
        hello = wire.parse_hello(message)
        namespace = hello.get("PMIX_NAMESPACE", f"single-{stub.fileno()}-{time.monotonic_ns()}")
        job = self.jobs.get(namespace) or self._start_job(namespace, hello, [stub.fileno(), *files])
        try:
            hand_down(job.channel, message, stub, files)
        except OSError as e:
            wire.send_note(stub, wire.FAILED, f"the job's template process has ended ({e.strerror})".encode())
        job.missing -= 1
        if job.missing == 0:
            self.jobs.pop(namespace).channel.close()

    def _start_job(self, namespace: str, hello: wire.Hello, foreign: list[int]) -> _Job:
        num_local = hello.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1)
        shm = (
            Path(self.shm) if self.shm else paths.SHM / f"superpod-{os.getuid()}-{self.path.stem}-{namespace}"
        )
        held = paths.hold(paths.private_directory(shm))  # by the template and its ranks
        table = JobTable(num_local, shm)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_MESSAGE)
        accelerated = self._prepare_here(hello, table, shm, num_local)
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._be_template(server, theirs, ours, hello, table, shm, num_local, foreign, accelerated)
        theirs.close()
        os.close(held)
        job = _Job(namespace, pid, ours, num_local, table, shm, hello.get("PMIX_SERVER_TMPDIR"))
        self.jobs[namespace] = self.templates[pid] = job
        return job

    def _prepare_here(self, hello: wire.Hello, table: JobTable, shm: Path, num_local: int) -> bool | None:
        """Prepare the replay of a server that serves one run, so that template and server share its memory
        (120 MB); None where the template is to do it."""
        if self.owner is None or self.templates or not serves_replay(hello):
            return None
        try:
            return prepare(hello, table, str(shm), num_local)
        except Exception:
            return None

    def _be_template(
        self, server: int, channel: socket.socket, ours: socket.socket, hello: wire.Hello, *job: Any
    ) -> None:
        table, shm, num_local, foreign, accelerated = job
        try:
            osproc.die_with_parent(server)
            os.setsid()  # marks every process of the job, see _end_job
            signal.set_wakeup_fd(-1)
            for f in (
                self.listener,
                self.owner,
                self.command,
                self.selector,
                ours,
                *(j.channel for j in self.jobs.values()),
            ):
                if f is not None:
                    f.close()
            for fd in (self.wake_r, self.wake_w, *self.sessions, *foreign):
                os.close(fd)
            if accelerated is None:
                accelerated = prepare(hello, table, str(shm), num_local)
            own_stdin = self.owner is not None
            Template(channel, accelerated, table, str(shm), num_local, own_stdin).run()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    # -- ends --

    def _reap(self) -> None:
        os.read(self.wake_r, 65536)
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.private.discard(pid)
            if pid in self.templates:
                self._end_job(self.templates.pop(pid))

    def _end_job(self, job: _Job) -> None:
        """Kill what outlived the job's template (all in its session, adopted by us), then remove the job's
        files."""
        self._send_status(job)
        if self.jobs.get(job.namespace) is job:
            self.jobs.pop(job.namespace).channel.close()
        while left := [p for p in osproc.descendants(os.getpid()) if osproc.session_of(p) == job.template]:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in left:  # these alone: whoever else has ended, say another job's template, is `_reap`'s
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.002)
        if not self.shm:
            shutil.rmtree(job.shm, ignore_errors=True)
            self._await_mpirun(job.session)

    def _await_mpirun(self, session: str) -> None:
        """Remove the session directory when its mpirun has ended: one that was killed has left it. The job's
        end may be noticed while the kernel still takes that process apart, or before its parent has asked."""
        if not (pid := mpirun_of(session)):
            return
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            shutil.rmtree(session, ignore_errors=True)
        else:
            self.sessions[fd] = session
            self.selector.register(fd, selectors.EVENT_READ)

    def _remove_session(self, fd: int) -> None:
        self.selector.unregister(fd)
        os.close(fd)
        shutil.rmtree(self.sessions.pop(fd), ignore_errors=True)

    def _hear_owner(self) -> bool:
        assert self.owner is not None
        try:
            return bool(self.owner.recv(4096))
        except OSError:
            return False

    def _shut_down(self) -> None:
        """The owner is gone: end every job, then remove the run's directories."""
        for job in list(self.templates.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.template, signal.SIGKILL)
        for pid in list(self.templates):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            self._end_job(self.templates.pop(pid))
        paths.remove_run(self.path.parent)
        paths.sweep()  # a replay that was killed has a directory of its own

    def _leave(self) -> bool:
        """Leave when idle, under the lock and only if no stub is on its way; return whether we may."""
        if self.listener is None or self.lock is None:
            return not self.templates
        if not give_up_address(str(self.path), self.lock, wait=False):
            return False
        while self._accept():  # stubs that connected just before
            pass
        self._stop_listening()
        return not self.templates

    def _stop_listening(self) -> None:
        if self.listener is None:
            return
        self.selector.unregister(self.listener)
        self.listener.close()
        self.listener = None

    def _hand_over(self, stub: socket.socket) -> None:
        """Let a successor with today's code take over the socket and this stub; finish the running jobs
        only."""
        assert self.listener is not None
        fds = (self.listener.fileno(), stub.fileno())
        command = _command("--listen-fd", str(fds[0]), "--path", str(self.path), "--lock", self.lock)
        subprocess.Popen([*command, "--first-fd", str(fds[1])], pass_fds=fds, start_new_session=True)
        stub.close()
        self._stop_listening()

    # -- status --

    def _report(self) -> None:
        """Tell the owner what has changed in the run's main job."""
        if self.owner is not None and self.templates:
            self._send_status(max(self.templates.values(), key=lambda j: j.table.num_local))

    def _send_status(self, job: _Job) -> None:
        text = json.dumps({"template": job.template, **dataclasses.asdict(job.table.status())})
        if self.owner is not None and text != self.sent:
            self.sent = text
            with contextlib.suppress(OSError):
                self.owner.sendall(text.encode() + b"\n", socket.MSG_NOSIGNAL)


def _command(*args: str) -> list[str]:
    return [sys.executable, "-P", "-m", "launch.forkserver", *args]


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m launch.forkserver")
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--path", required=True)
    parser.add_argument("--lock")
    parser.add_argument("--owner-fd", type=int)
    parser.add_argument("--shm")
    parser.add_argument("--first-fd", type=int)
    return parser.parse_args(argv)


def _start_over(argv: list[str]) -> None:
    """Start over with the native parts loaded first (the board in front of PMIx, the image in front of
    Python) and symbols bound early, unless that is done or there are none."""
    parts = [paths.IMAGE] if paths.IMAGE.exists() else []
    if not board.why_not():
        parts.insert(0, paths.BOARD)
    if not parts or "SUPERPOD_PRELOADED" in os.environ:
        return
    preload_list = " ".join(filter(None, [*map(str, parts), os.environ.get("LD_PRELOAD", "")]))
    env = {**os.environ, "LD_PRELOAD": preload_list, "LD_BIND_NOW": "1", "SUPERPOD_PRELOADED": "1"}
    os.execve(sys.executable, _command(*argv), env)


def main(argv: list[str] | None = None) -> int:
    """Run a fork server; see the module's text."""
    argv = sys.argv[1:] if argv is None else argv
    args = _parse(argv)
    _start_over(argv)
    osproc.set_timer_slack(osproc.STARTING_SLACK_NS)
    osproc.become_subreaper()
    image.use()
    try:
        warm.idle_seconds(os.environ)
        preload()
    except Exception as e:
        traceback.print_exc()
        if args.lock:
            give_up_address(args.path, args.lock, wait=True)
        refuse(socket.socket(fileno=args.listen_fd), f"{type(e).__name__}: {e}")
        return 1
    gc.collect()
    gc.freeze()
    gc.disable()
    osproc.collapse_heap()
    if args.lock:
        sweep_jobs(Path(args.path).stem)
    server = Server(args)
    if args.first_fd is not None:
        server.take(socket.socket(fileno=args.first_fd))
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
