"""`superpod serve MODEL -n N`: an OpenAI-compatible HTTP server in front of an emulated pod (docs/http.md).

    this command ──┬── API process (`launch.serve_api`: uvicorn, no torch)
                   └── pod process (`launch.pod`) ── fork server, mpirun, ranks

Ctrl-C or SIGTERM: no more requests, those in flight are aborted, the ranks end, exit code 0. A second one
kills.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from emulator.errors import SuperpodError, UsageError
from launch import osproc
from launch.clock_report import duration_and_clock
from launch.cmd_run import check_pod
from launch.open_job import open_plan
from launch.option_class import takes
from launch.outputs import write_out
from launch.paging_options import check_sizes
from launch.pod import OpenPod, prepare
from launch.serve_api import SETTINGS
from launch.serve_options import ServeOptions
from launch.vllm_options import check_unknown
from launch.workplace import job_directory
from serving.api.settings import ServerSettings, url_of
from serving.replay import Replay
from serving.report import sum_fields


def register(app: typer.Typer) -> None:
    """Add the `serve` command."""
    lenient = {"ignore_unknown_options": True, "allow_extra_args": True}  # refused one by one, by name
    command = takes(ServeOptions)(serve_command)
    app.command("serve", no_args_is_help=True, context_settings=lenient)(command)


def serve_command(ctx: typer.Context, options: ServeOptions) -> int:
    """Serve a checkpoint over HTTP: OpenAI's protocol, real tokens, emulated time.

    Live traffic is not deterministic: when a request reaches the engine depends on the host. What it then
    does is; --record FILE writes what came when, and superpod replay --trace FILE gives the same tokens and
    times.
    """
    check_unknown(ctx.args, [option for each in ctx.command.params for option in each.opts])
    pod_options = options.pod_options()
    check_pod(options.num_ranks, options.pod, pod_options.overrides)
    check_sizes(options.num_ranks, options.dp_size, options.tp_size, options.ep_size)
    check_address(options.host, options.api_key)
    plan, config, length = open_plan(options.model, options.num_ranks, pod_options)
    server = ServerSettings(
        str(options.model.resolve()),
        tuple(options.served_model_name or [str(options.model)]),
        options.num_ranks,
        length,
        config.vocab_size,
        options.api_key,
        options.max_queue,
        options.seed,
    )
    with listening(options.host, options.port) as listener, job_directory() as own:
        server.write(own.path / SETTINGS)
        result = _Serving(plan, own.path, listener, options.progress).run()
    if options.json_out is not None:
        write_out("--json", options.json_out, json.dumps(result, indent=1) + "\n")
    return 0


def check_address(host: str, api_key: str | None) -> None:
    """Refuse an address others can reach without a key. Raises UsageError."""
    if api_key is not None and (not api_key or not api_key.isascii() or not api_key.isprintable()):
        raise UsageError("--api-key: must be printable ASCII and not empty")
    if api_key is None and not is_loopback(host):
        raise UsageError(
            f"--host {host}: others can reach it, so --api-key is needed; or listen on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether every address of a host name is one only this machine can reach. Raises UsageError: no such
    host."""
    found = _addresses(host, None)
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def _addresses(host: str, port: int | None) -> list[Any]:
    """Entries of `socket.getaddrinfo`. Raises UsageError: no such host."""
    try:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host}: no such address: {error}") from None


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket. Raises UsageError: no such host, or the port is taken, or may not be."""
    family = _addresses(host, port)[0][0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(_BACKLOG)  # so that nobody is turned away before the API process is there
        except OSError as error:
            raise UsageError(
                f"--host {host} --port {port}: {error.strerror}; --port 0 takes a free one"
            ) from None
        yield listener


class _Serving:
    """The two processes of a server, and what ends them."""

    def __init__(self, plan: Replay, directory: Path, listener: socket.socket, progress: bool) -> None:
        prepare(plan, directory, progress)
        self._directory, self._listener, self._ranks = directory, listener, plan.job.num_ranks
        self._pod: OpenPod | None = None
        self._signals = 0
        me = os.getpid()
        fd = listener.fileno()
        self._api = subprocess.Popen(
            [sys.executable, "-P", "-m", "launch.serve_api", str(directory), str(fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(fd,),
            start_new_session=True,
            preexec_fn=lambda: osproc.die_with_parent(me),
            cwd="/",
        )

    def run(self) -> dict[str, Any]:
        """Serve to the end; return what was served. Raises SuperpodError: it did not end well."""
        try:
            self._await_api()
            before = {s: signal.signal(s, self._stop) for s in (signal.SIGINT, signal.SIGTERM)}
            self._pod = OpenPod(self._directory)
            where = url_of(self._listener)
            print(f"superpod: {where} ({self._ranks} ranks are starting)", file=sys.stderr, flush=True)
            try:
                self._watch(self._pod)
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
            return summary(self._pod.result()) | duration_and_clock(self._directory / "machine.json")
        finally:
            self._end()

    def _await_api(self) -> None:
        """Wait until the feed is there. Raises UsageError, SuperpodError: it cannot be."""
        assert self._api.stdout is not None
        word, _, rest = self._api.stdout.readline().decode().strip().partition(" ")
        if word == "error":
            raise UsageError(rest)
        if word != "ready":
            raise SuperpodError(f"the API process ended with exit code {self._api.wait()}")

    def _stop(self, *_: Any) -> None:
        """The first signal ends the server in order, the second at once."""
        self._signals += 1
        if self._signals == 1:
            self._api.terminate()
        elif self._pod is not None:
            self._pod.process.terminate()

    def _watch(self, pod: OpenPod) -> None:
        """Wait for the ranks to end; they do when the API process closes the feed, or ends. Where it ends
        before they look at the feed, they are ended."""
        try:
            if osproc.first_to_end(self._api, pod.process) is self._api and self._api.wait() != 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    pod.process.wait(_RANKS_END_S)
                pod.kill()
            pod.wait()
        except SuperpodError as error:
            self._check_api()
            if self._signals < 2:
                self._tell(f"the engine has ended: {error}")
                raise
        self._check_api()

    def _check_api(self) -> None:
        """Raises SuperpodError: the API process has ended otherwise than it was told to."""
        if not self._signals and (code := self._api.poll()) not in (None, 0):
            raise SuperpodError(f"the API process ended with exit code {code}") from None

    def _tell(self, why: str) -> None:
        """Let the API process answer what is in flight with an error, and end."""
        assert self._api.stdin is not None
        try:
            self._api.stdin.write(f"{' '.join(why.split())}\n".encode())
            self._api.stdin.flush()
        except OSError:
            return

    def _end(self) -> None:
        if self._pod is not None:
            self._pod.kill()
        if self._api.stdin is not None:
            self._api.stdin.close()
        try:
            self._api.wait(_API_END_S)
        except subprocess.TimeoutExpired:
            self._api.kill()
            self._api.wait()


_API_END_S = 10.0
_RANKS_END_S = 10.0
_BACKLOG = 2048


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """What a pod has done, summed over its ranks."""
    ranks = result["ranks"]
    total = sum_fields(ranks, "work")
    return {
        "ranks": len(ranks),
        "virtual_ps": max((rank["end_ps"] for rank in ranks), default=0),
        "steps": max((rank["steps"] for rank in ranks), default=0),
        **total,
        "host": result["host"],
    }
