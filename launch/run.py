"""Run one job: a private fork server and an mpirun, watched from start to end, with nothing left behind.

    command (this process) ──┬── fork server ── template ── ranks
                             └── mpirun ── stubs

What ends with what: a rank's end is its stub's, so mpirun sees it; a stub's end kills its rank; mpirun is
killed with this process (parent-death signal) and stubs with mpirun; templates and ranks are killed with
the fork server; the server notices the end of this process (its socket closes), however it came, kills what
runs and removes the run's directories.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from emulator.config import environment_config
from emulator.engine.native_library import why_unusable
from emulator.errors import UsageError
from launch import limits, mpirun, osproc, outputs, paths, tracefile, warm
from launch.jobtable import JobStatus
from launch.memory import PssSampler
from launch.mpirun_end import Overdue
from launch.notices import StderrRelay
from launch.progress import StartProgress

_TICK_S = 0.1
_CLEAN_UP_S = 30.0
_STDERR_S = 5.0
_LAST_SIGNAL = 64
_FROM_KERNEL = (
    0x80  # si_code of a signal from the terminal: mpirun, in the same process group, has had it too
)
_WATCHED = {signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}


@dataclass(frozen=True)
class JobResult:
    """How a job went.

    Attributes:
        exit_code: mpirun's exit status, 128 + signal if a signal ended mpirun.
        ranks: ranks asked for.
        ranks_up: ranks whose program started.
        startup_wall_s: from the start of the command to the last rank in user code with MPI up (without
            MPI: to the last program's first line); None if some rank never came so far.
        wall_s: the whole run.
        pss_gb: peak of the sum of PSS over every process of the run, GB; 0.0 if not sampled.
        accelerated: the board of the accelerated start was in use.
        board_answers: look-ups it answered.
        board_refuted: an answer of it was found wrong, so it was given up.
    """

    exit_code: int
    ranks: int
    ranks_up: int
    startup_wall_s: float | None
    wall_s: float
    pss_gb: float
    accelerated: bool
    board_answers: int
    board_refuted: bool


def command_start_s() -> float:
    """Return when this process started, the moment `startup_wall_s` counts from in a command."""
    return osproc.start_time_s()


class _SignalsHeld:
    """Signals are waited for instead of handled; children get the mask from before."""

    def __enter__(self) -> "_SignalsHeld":
        self.before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)

    def in_child(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let signals act as they did before."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self.before)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)


class _Job:
    """The processes of one run and what has been heard of them."""

    def __init__(self, num_ranks: int, progress: StartProgress, memory: bool) -> None:
        self.num_ranks = num_ranks
        self.progress = progress
        self.directory = paths.RunDirectory()
        self.status: JobStatus | None = None
        self.memory = memory
        self.sampler: PssSampler | None = None
        self._text = b""
        self.server: subprocess.Popen[bytes] | warm.BorrowedServer | None = None
        self.mpirun: subprocess.Popen[bytes] | None = None
        self.relay: StderrRelay | None = None
        self.signals: set[int] = set()

    def start_server(self, held: _SignalsHeld, environment: Mapping[str, str]) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.directory.socket_path))
            listener.listen(4096)
            self.owner, theirs = socket.socketpair()
            with theirs:
                fds = (listener.fileno(), theirs.fileno(), self.directory.lock_fd)
                if warm.wanted(environment):
                    with held.released():
                        self.server = warm.borrow(
                            self.directory.socket_path, self.directory.shm, fds, environment
                        )
                    self.owner.setblocking(False)
                    return
                arguments = ("--listen-fd", str(fds[0]), "--owner-fd", str(fds[1]))
                where = ("--path", str(self.directory.socket_path), "--shm", str(self.directory.shm))
                self.server = subprocess.Popen(
                    [sys.executable, "-P", "-m", "launch.forkserver", *arguments, *where],
                    stdout=subprocess.DEVNULL,
                    pass_fds=fds,
                    start_new_session=True,  # so that Ctrl-C reaches mpirun and not the ranks
                    preexec_fn=held.in_child,
                    env=dict(environment),
                    cwd="/",
                )
        self.owner.setblocking(False)

    def start_mpirun(self, held: _SignalsHeld, command: list[str], environment: Mapping[str, str]) -> None:
        me = os.getpid()

        def in_child() -> None:
            held.in_child()
            osproc.die_with_parent(me)
            osproc.set_timer_slack(osproc.STARTING_SLACK_NS)

        # Rank 0 gets our standard input by way of the fork server: this mpirun never tells the end of a file
        # (openpmix pull request 4024) and may repeat parts of a long one (prrte issue 2579).
        relay = StderrRelay()
        self.mpirun = subprocess.Popen(
            command, env=dict(environment), preexec_fn=in_child, stdin=subprocess.DEVNULL, stderr=relay.fd
        )
        relay.start()
        self.relay = relay

    def watch(self) -> int:
        """Wait for mpirun to end; pass signals on to it. Return its exit status as a shell would say it."""
        assert self.mpirun is not None and self.server is not None
        self.progress.start()
        overdue = Overdue(self.mpirun.pid)
        while (code := self.mpirun.poll()) is None:
            if overdue():
                return self._give_up_mpirun()
            got = signal.sigtimedwait(_WATCHED, _TICK_S)
            if got is not None and got.si_signo != signal.SIGCHLD:
                self.signals.add(got.si_signo)
                if got.si_code != _FROM_KERNEL:
                    self.mpirun.send_signal(got.si_signo)
            self._listen()
            if self.memory and self._all_up():
                self.sampler = self.sampler or PssSampler([os.getpid(), self.server.pid or os.getpid()])
                self.sampler.step()
        return code if code >= 0 else 128 - code

    def _give_up_mpirun(self) -> int:
        """Say that all ranks have ended and mpirun has not; `clean_up` ends it."""
        text = "all ranks have ended, but mpirun has not, and is ended; their exit codes are not known"
        print(f"superpod: error: {text}", file=sys.stderr, flush=True)
        self.signals.add(signal.SIGKILL)  # which is ours: nothing to explain
        return 1

    def _all_up(self) -> bool:
        s = self.status
        return s is not None and self.num_ranks in (s.ready, s.entered)

    def _listen(self) -> None:
        try:
            while more := self.owner.recv(65536):
                self._text += more
        except (BlockingIOError, TimeoutError):
            pass
        except OSError:  # the server was killed; mpirun will end, since its stubs do
            return
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            fields = json.loads(line)
            fields.pop("template")
            self.status = JobStatus(**fields)
            self.progress.update(self.status)

    def clean_up(self) -> None:
        """End what still runs and remove what the run has made."""
        self.progress.stop()
        if self.mpirun is not None and self.mpirun.poll() is None:
            self.mpirun.kill()
            self.mpirun.wait()
        if self.relay is not None:
            self.relay.finish(_STDERR_S)
        if self.server is not None:
            self._end_server(self.server)
        self.directory.remove()
        os.close(self.directory.lock_fd)

    def explain(self) -> None:
        """Say how the run ended where nobody has: who is killed cannot, and mpirun does not always."""
        code = self.mpirun.returncode if self.mpirun is not None else 0
        number = -code if code < 0 else code - 128
        if not 0 < number <= _LAST_SIGNAL or number in self.signals or self.relay is None:
            return
        if code < 0 or not self.relay.told:
            who = "mpirun" if code < 0 else "a rank"
            name = signal.strsignal(number) or "unknown"
            print(
                f"superpod: error: {who} was killed by signal {number} ({name})", file=sys.stderr, flush=True
            )

    def _end_server(self, server: subprocess.Popen[bytes] | warm.BorrowedServer) -> None:
        """Close our end of the server's socket: it kills what is left and goes."""
        self.owner.setblocking(True)
        self.owner.settimeout(_CLEAN_UP_S)
        try:
            self.owner.shutdown(socket.SHUT_WR)
            self._listen()
        except OSError:
            pass
        try:
            server.wait(_CLEAN_UP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(_CLEAN_UP_S)

    def startup_end_ns(self) -> int | None:
        s = self.status
        if s is None or not self._all_up():
            return None
        return s.last_ready_ns if s.ready == self.num_ranks else s.last_entered_ns


def run_job(
    num_ranks: int,
    argv: list[str],
    config: Mapping[str, Any] | None = None,
    *,
    keep_going: bool = False,
    accelerate: bool = True,
    progress: bool = False,
    measure_memory: bool = False,
    rank_bytes: int = 0,
    shm_bytes: int = 0,
    environment: Mapping[str, str] | None = None,
    trace_out: Path | None = None,
    started_s: float | None = None,
    before_ranks: Callable[[], None] | None = None,
) -> JobResult:
    """Run `argv` (a program with its arguments, or `-m module …`) on `num_ranks` forked ranks of this host.

    Args:
        num_ranks: ranks to start, at least 1.
        argv: program and arguments, as after `python`.
        config: what every rank finds as JSON in `SUPERPOD_CONFIG`, on top of what the caller's environment
            has there.
        keep_going: let the others go on when a rank dies.
        accelerate: use the accelerated start where it is proven.
        progress: show the progress line even if stderr is no terminal.
        measure_memory: sample PSS (`JobResult.pss_gb`).
        rank_bytes: private memory the program wants per rank on top of the start; checked before starting.
        shm_bytes: shared memory the program wants in all; checked before starting.
        environment: environment of the ranks, `os.environ` by default.
        trace_out: write a trace of the run there as Perfetto/Chrome JSON.
        started_s: CLOCK_BOOTTIME seconds from which `startup_wall_s` counts; default: now.
        before_ranks: called once while the fork server imports, before any rank; what it raises ends the run.

    Returns:
        How it went; a failed program is no exception.

    Raises:
        UsageError: too few resources, no such program, no mpirun, no place for the run's directories, or a
            bad `SUPERPOD_CONFIG`.
    """
    begin = time.clock_gettime(time.CLOCK_BOOTTIME)
    env = dict(os.environ if environment is None else environment)
    settings = None if config is None else {**environment_config(env), **config}
    check_start(num_ranks, rank_bytes, shm_bytes)
    check_program(argv)
    check_places(settings or {})
    limits.raise_file_limit()
    if warm.wanted(env):
        warm.idle_seconds(env)
    if why := why_unusable():
        print(f"superpod: {why} (the slower Python engine is used)", file=sys.stderr)
    if not accelerate:
        env["SUPERPOD_ACCELERATE"] = "0"
    job = _new_job(num_ranks, progress, measure_memory)
    if trace_out is not None:
        job.directory.trace.mkdir()
        settings = {**(settings or {}), "trace": str(job.directory.trace)}
    if settings is not None:
        env["SUPERPOD_CONFIG"] = json.dumps(settings)
    with _SignalsHeld() as held:
        try:
            code = _carry_out(job, held, argv, env, keep_going, before_ranks)
            if trace_out is not None and any(job.directory.trace.iterdir()):
                tracefile.export(job.directory.trace, trace_out)
        finally:
            job.clean_up()
        job.explain()
    return _result(job, code, begin, begin if started_s is None else started_s)


def _new_job(num_ranks: int, progress: bool, measure_memory: bool) -> _Job:
    try:
        paths.sweep()
        return _Job(num_ranks, StartProgress(num_ranks, progress), measure_memory)
    except OSError as e:
        raise UsageError(f"cannot make the run's directories: {e}") from None


def _carry_out(
    job: _Job,
    held: _SignalsHeld,
    argv: list[str],
    env: dict[str, str],
    keep_going: bool,
    before_ranks: Callable[[], None] | None,
) -> int:
    """Start the fork server and mpirun and wait for their end; return the exit status as a shell says it."""
    job.start_server(held, env)
    if before_ranks is not None:
        with held.released():
            before_ranks()
    env["SUPERPOD_SOCKET"] = str(job.directory.socket_path)
    program = [*paths.stub_command(), *argv]
    export = [k for k in ("SUPERPOD_CONFIG",) if k in env]
    command = mpirun.command(job.num_ranks, program, keep_going=keep_going, export=export)
    job.start_mpirun(held, command, mpirun.environment(env, job.directory.session))
    return job.watch()


def _result(job: _Job, code: int, begin: float, started: float) -> JobResult:
    s, end_ns = job.status, job.startup_end_ns()
    if s and s.start_lost:
        print(
            f"superpod: rank {s.start_lost - 1} died while the ranks started; the others, which cannot start "
            "without it, were ended",
            file=sys.stderr,
        )
        code = code or 1
    return JobResult(
        exit_code=code,
        ranks=job.num_ranks,
        ranks_up=s.entered if s else 0,
        startup_wall_s=None if end_ns is None else round(end_ns / 1e9 - started, 3),
        wall_s=round(time.clock_gettime(time.CLOCK_BOOTTIME) - begin, 3),
        pss_gb=round(job.sampler.peak_bytes / 1e9, 3) if job.sampler else 0.0,
        accelerated=bool(s and s.accelerated and not s.refuted),
        board_answers=s.board_answers if s else 0,
        board_refuted=bool(s and s.refuted),
    )


def check_start(num_ranks: int, rank_bytes: int = 0, shm_bytes: int = 0) -> None:
    """Refuse what this machine cannot start. Raises UsageError that names the limit and the remedy."""
    if num_ranks < 1:
        raise UsageError(f"-n {num_ranks}: at least 1 rank is needed")
    for check in limits.checks(num_ranks, rank_bytes, shm_bytes):
        if not check.ok:
            raise UsageError(f"{num_ranks} ranks do not fit on this machine: {check.sentence}")


def check_places(settings: Mapping[str, Any]) -> None:
    """Refuse a directory that has been removed, and files of the configuration that cannot be written. Raises
    UsageError."""
    try:
        os.getcwd()
    except OSError:
        raise UsageError("the current directory has been removed: change to one that is there") from None
    if settings.get("report"):
        outputs.check_writable("configuration: report", Path(settings["report"]))
    if settings.get("trace") and not Path(settings["trace"]).is_dir():
        raise UsageError(f"configuration: trace {settings['trace']}: there is no such directory")


def check_program(argv: list[str]) -> None:
    """Refuse a program that is not there: one line, not one of each rank. Raises UsageError."""
    if argv[0] != "-m" and not Path(argv[0]).exists():
        raise UsageError(f"can't open file {argv[0]}: no such file or directory")
