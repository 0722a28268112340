"""The process that forks the ranks of one job on one host, tells their stubs how they ended, and ends with
the job.

The fork server forks one template per job. It takes on the job's environment, does once what every rank
would do alike (registers MPI's parameters, maps the board of the accelerated start), and keeps the link
between each stub and its rank: a stub that is gone means a rank killed, a signal a stub received is the
rank's, a rank's end is told to its stub.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any, NoReturn

from emulator import spare
from emulator.transport import open_mpi_told
from launch import board, dense, image, osproc, wire
from launch.jobtable import JobTable
from launch.lost_start import LostStart
from launch.mpihook import PreloadedMpi
from launch.rankmain import become_program, inherit_from, reset_signals

MAX_MESSAGE = wire.HEADER.size + wire.MAX_BODY + 4
_ABANDONED_S = 5.0  # no rank left and no further stub came: the missing ones were killed on their way
_SM_DIRECTORY = "OMPI_MCA_btl_sm_backing_directory"
_STUB_PID = struct.Struct("<i")


def hand_down(channel: socket.socket, message: bytes, stub: socket.socket, files: list[int]) -> None:
    """Pass a stub, its hello and its files from the server to a template. Raises OSError when the template
    is gone."""
    credentials = stub.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = struct.unpack("3i", credentials)[0]
    socket.send_fds(channel, [_STUB_PID.pack(pid) + message], [stub.fileno(), *files])


@dataclass
class _Rank:
    pid: int
    stub: socket.socket
    stub_pid: int
    local: int


def prepare(hello: wire.Hello, table: JobTable, shm: str, num_local: int) -> bool:
    """Take on a job's environment and do once what all of its ranks would do, in the process to fork from.

    Returns:
        whether the job's start is accelerated.
    """
    _take_environment(hello, shm)
    accelerated = _set_up_mpi(hello, table)
    sys._clear_type_cache()  # else each rank writes to every name it evicts
    if num_local > 1:
        _make_ahead(hello)
    dense.fill_holes()
    gc.collect()
    gc.freeze()
    gc.disable()
    if image.take():
        spare.returners[:] = [image.give_back]
    osproc.collapse_heap()  # again: what the set-up has written was split into small pages
    return accelerated


def _set_up_mpi(hello: wire.Hello, table: JobTable) -> bool:
    env = {os.fsdecode(k): os.fsdecode(v) for k, v in hello.environment.items()}
    num_ranks = hello.number("OMPI_COMM_WORLD_SIZE", 1)
    parts = board.parts_for(env) if "PMIX_NAMESPACE" in env and num_ranks > 1 else ""
    if parts:
        board.create(num_ranks, env["PMIX_NAMESPACE"], parts, os.environ[_SM_DIRECTORY])
    table.set_accelerated(bool(parts))
    if env.get("SUPERPOD_ACCELERATE", "1") != "0" and "PMIX_NAMESPACE" in env:
        mpi = ctypes.CDLL("libmpi.so.40", os.RTLD_NOLOAD | os.RTLD_NOW)
        with open_mpi_told():  # options are read here, once for all ranks
            mpi.MPI_T_init_thread(0, ctypes.byref(ctypes.c_int()))
    return bool(parts)


def _take_environment(hello: wire.Hello, shm: str) -> None:
    osproc.replace_environment(hello.environment)
    for component in ("btl_sm", "osc_sm", "osc_rdma"):
        os.environ.setdefault(f"OMPI_MCA_{component}_backing_directory", shm)


def serves_replay(hello: wire.Hello) -> bool:
    """Whether a job's ranks serve a replay, whose common parts can be made ahead."""
    argv = [os.fsdecode(a) for a in hello.argv]
    return argv[:2] == ["-m", "serving"] and len(argv) == 3


def _make_ahead(hello: wire.Hello) -> None:
    """Make once what every rank would make: a replay's common parts, the parts of torch that a program
    imports. What fails here fails again, and visibly, in the ranks."""
    if serves_replay(hello):
        directory = os.path.join(os.fsdecode(hello.cwd), os.fsdecode(hello.argv[2]))
        with contextlib.suppress(Exception):
            importlib.import_module("serving.rehearsal").make_ready(directory)
        return
    argv = [os.fsdecode(a) for a in hello.argv]
    with contextlib.suppress(Exception):
        importlib.import_module("launch.ahead").import_ahead(argv, os.fsdecode(hello.cwd))


class Template:
    """State of one job's template.

    Args:
        channel: SEQPACKET socket on which the server hands stubs down.
        accelerated: what `prepare` has returned, here or in the process this one was forked from.
        table: the job's counters, shared with the server and the ranks.
        shm: the job's directory in /dev/shm.
        num_local: ranks of the job on this host.
        own_stdin: rank 0 reads the standard input we have, not the one mpirun offers.
    """

    def __init__(
        self,
        channel: socket.socket,
        accelerated: bool,
        table: JobTable,
        shm: str,
        num_local: int,
        own_stdin: bool,
    ) -> None:
        self.channel = channel
        self.table = table
        self.lost_start = LostStart(table)
        self.shm = shm
        self.own_stdin = own_stdin
        self.missing = num_local
        self.ranks: dict[int, _Rank] = {}  # by descriptor of the stub's connection
        self.by_pid: dict[int, _Rank] = {}
        self.pid = os.getpid()
        self.mpirun = 0
        self.came: set[int] = set()
        self.accelerated = accelerated
        self.wake_r, self.wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.epoll = select.epoll()
        self.epoll.register(channel, select.EPOLLIN)
        self.epoll.register(self.wake_r, select.EPOLLIN)

    def run(self) -> None:
        more, last = True, time.monotonic()
        while more or self.ranks:
            events = self.epoll.poll(self._patience_s())
            if not events and time.monotonic() - last >= _ABANDONED_S:
                if not self.ranks:
                    return
                if self.missing and not self._stubs_on_their_way():
                    self._note_missing()
                    more = False
            for fd, _ in events:
                last = time.monotonic()
                if fd == self.wake_r:
                    self._reap()
                elif fd == self.channel.fileno():
                    more = self._take_stub()
                elif fd in self.ranks:
                    self._hear_stub(self.ranks[fd])
            stuck = self.lost_start.stuck()
            for rank in self.ranks.values():
                if rank.local in stuck:
                    _kill_group(rank.pid, signal.SIGKILL)

    def _patience_s(self) -> float:
        patience_s = self.lost_start.patience_s
        if not self.missing and self.ranks:
            return patience_s
        return _ABANDONED_S if patience_s < 0 or not self.ranks else min(patience_s, _ABANDONED_S)

    def _stubs_on_their_way(self) -> bool:
        """Whether mpirun has living children that have not come here."""
        known = {rank.stub_pid for rank in self.ranks.values()}
        return any(osproc.is_alive(pid) for pid in osproc.children([self.mpirun]) if pid not in known)

    def _note_missing(self) -> None:
        """Ranks whose stubs were killed on their way here have ended."""
        for local in set(range(self.table.num_local)) - self.came:
            self.table.ended(local)
            self.lost_start.note_end(local)
        self.missing = 0
        self.epoll.unregister(self.channel)

    def _take_stub(self) -> bool:
        """Fork the rank of the next stub handed down; return whether more may come."""
        message, files, _, _ = socket.recv_fds(self.channel, MAX_MESSAGE, 4)
        if not message:
            self.epoll.unregister(self.channel)
            return False
        stub = socket.socket(fileno=files[0])
        stub_pid = _STUB_PID.unpack_from(message)[0]
        hello = wire.parse_hello(message[_STUB_PID.size :])
        pid = os.fork()
        if pid == 0:
            self._be_rank(hello, stub, stub_pid, files[1:])
        for f in files[1:]:
            os.close(f)
        local = _place(hello)
        rank = self.ranks[stub.fileno()] = self.by_pid[pid] = _Rank(pid, stub, stub_pid, local)
        self.came.add(local)
        self.mpirun = osproc.parent_of(stub_pid) or self.mpirun
        wire.send_note(stub, wire.DIRECTORY, os.fsencode(self.shm))
        wire.send_note(stub, wire.STARTED, pid)
        self.epoll.register(rank.stub, select.EPOLLIN)
        self.missing -= 1
        if not self.missing:
            self.epoll.unregister(self.channel)
        return self.missing > 0

    def _hear_stub(self, rank: _Rank) -> None:
        try:
            note = rank.stub.recv(wire.NOTE.size, socket.MSG_DONTWAIT)
        except BlockingIOError:  # the event was that of a stub which had this descriptor until just now
            return
        except OSError:
            note = b""
        if len(note) < wire.NOTE.size:  # the stub is gone, so mpirun wants the rank gone
            self._hear_no_more(rank)
            _kill_group(rank.pid, signal.SIGKILL)
            return
        kind, value = wire.NOTE.unpack(note)
        if kind == wire.SIGNAL:
            _kill_group(rank.pid, value)

    def _reap(self) -> None:
        os.read(self.wake_r, 65536)
        while self.by_pid:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            rank = self.by_pid.pop(pid)
            del self.ranks[rank.stub.fileno()]
            if self.accelerated:
                self.table.set_board(board.answers(), board.refuted())
            self.table.ended(rank.local)
            self.lost_start.note_end(rank.local)
            wire.send_note(rank.stub, wire.ENDED, os.waitstatus_to_exitcode(status))
            self._hear_no_more(rank)
            rank.stub.close()

    def _hear_no_more(self, rank: _Rank) -> None:
        """Closing is not enough: a rank just forked has the connection open too, and events would come on,
        for whoever gets the descriptor."""
        with contextlib.suppress(FileNotFoundError):  # its stub has gone before
            self.epoll.unregister(rank.stub)

    def _be_rank(self, hello: wire.Hello, stub: socket.socket, stub_pid: int, files: list[int]) -> NoReturn:
        """In the forked child: let go of what is the template's, and become the program."""
        try:
            osproc.die_with_parent(self.pid)
            os.setpgid(0, 0)  # as mpirun does, so that what the rank starts can be killed with it
            reset_signals()
            self.epoll.close()
            for c in (self.channel, stub, *(r.stub for r in self.ranks.values())):
                c.close()
            os.close(self.wake_r)
            os.close(self.wake_w)
            _take_environment(hello, self.shm)
            own_stdin = self.own_stdin and hello.number("OMPI_COMM_WORLD_RANK", 0) == 0
            inherit_from(stub_pid, hello, files, own_stdin)
            local = _place(hello)
            if self.accelerated:
                board.enter(hello.number("PMIX_RANK", 0))
            mpi: Any = sys.modules["mpi4py.MPI"]
            sys.modules["numpy"].random.seed()
            gc.enable()
            become_program(hello, PreloadedMpi(mpi, self.table, local), lambda: self.table.entered(local))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)


def _place(hello: wire.Hello) -> int:
    """A rank's place in the job's table: its number where all ranks are on this host, as who watches for
    deaths reads it. (mpirun counts local ranks as it maps them, by default in turns over sockets.)"""
    here, all_ = (hello.number(f"OMPI_COMM_WORLD_{which}SIZE", 1) for which in ("LOCAL_", ""))
    return hello.number("OMPI_COMM_WORLD_RANK" if here == all_ else "OMPI_COMM_WORLD_LOCAL_RANK", 0)


def _kill_group(pid: int, signum: int) -> None:
    """Signal a rank and what it started. (It may not have made its group yet.)"""
    try:
        os.killpg(pid, signum)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
