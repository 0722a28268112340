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
from typing import Annotated, Any

import typer

from emulator.errors import SuperpodError, UsageError
from launch import osproc
from launch.clock_report import duration_and_clock
from launch.cmd_run import check_pod, parse_set
from launch.model_options import AcceptanceOption, MtpOption, QuantizationOption
from launch.open_job import OpenOptions, open_plan
from launch.outputs import write_out
from launch.paging_options import (
    DEFAULT_BLOCK,
    Balancing,
    ChunkedPrefill,
    DpSize,
    DramBlocks,
    EpSize,
    NumBlocks,
    PoolPath,
    PrefixCaching,
    TpSize,
    check_sizes,
)
from launch.pod import OpenPod, prepare
from launch.ranks_option import ranks_option
from launch.seed_option import seed_option
from launch.serve_api import SETTINGS
from launch.vllm_options import check_unknown
from launch.workplace import job_directory
from serving.api.settings import ServerSettings, url_of
from serving.decode.settings import split_overrides
from serving.replay import Replay
from serving.report import sum_fields


def register(app: typer.Typer) -> None:
    """Add the `serve` command."""
    lenient = {"ignore_unknown_options": True, "allow_extra_args": True}  # refused one by one, by name
    app.command("serve", no_args_is_help=True, context_settings=lenient)(serve_command)


def serve_command(
    ctx: typer.Context,
    model: Annotated[Path, typer.Argument(help="Checkpoint directory.")],
    num_ranks: Annotated[int, ranks_option()],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="What clients call the model (several: the first answers).")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="SUPERPOD_API_KEY", help="Bearer key that clients must give.")
    ] = None,
    max_queue: Annotated[
        int | None, typer.Option(min=1, help="Most requests that wait for a first token; then 429.")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Write arrivals and aborts here, for replay.")] = None,
    priced_as: Annotated[str, typer.Option(help="The model that is charged.")] = "deepseek-r1",
    pod: Annotated[str, typer.Option(help="Machine profile: a name or a .toml file.")] = "cloudmatrix384",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a value of profile, priced model or library (repeatable)."
        ),
    ] = None,
    seed: Annotated[int, seed_option("Of requests that give none.")] = 0,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests a rank runs at once.")] = 96,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a rank and step.")] = 2048,
    max_model_len: Annotated[
        int | None, typer.Option(min=2, help="Most tokens of prompt and answer (else what the model has).")
    ] = None,
    enable_prefix_caching: PrefixCaching = True,
    enable_chunked_prefill: ChunkedPrefill = True,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of a KV block.")] = DEFAULT_BLOCK,
    num_gpu_blocks_override: NumBlocks = None,
    dram_blocks: DramBlocks = 0,
    kv_pool_path: PoolPath = "ub",
    load_balancing: Balancing = "least-tokens",
    dp_size: DpSize = None,
    tp_size: TpSize = 1,
    ep_size: EpSize = None,
    quantization: QuantizationOption = None,
    mtp: MtpOption = 0,
    mtp_acceptance: AcceptanceOption = None,
    eplb: Annotated[
        str | None, typer.Option(help="Balance experts while serving: xdeepserve or deepseek.")
    ] = None,
    eplb_step_interval: Annotated[
        int | None, typer.Option(help="Steps between two balancings (else 32).")
    ] = None,
    redundant_experts: Annotated[int, typer.Option(min=0, help="Expert replicas beyond one each.")] = 0,
    shared_experts: Annotated[str, typer.Option(help="local, or placed like routed ones.")] = "local",
    memory_check: Annotated[bool, typer.Option(help="Refuse what a die cannot hold at priced size.")] = True,
    json_out: Annotated[
        Path | None, typer.Option("--json", help="At the end write what was served here.")
    ] = None,
    progress: Annotated[bool, typer.Option("--progress", help="Show how the ranks start.")] = False,
) -> int:
    """Serve a checkpoint over HTTP: OpenAI's protocol, real tokens, emulated time.

    Live traffic is not deterministic: when a request reaches the engine depends on the host. What it then
    does is; --record FILE writes what came when, and superpod replay --trace FILE gives the same tokens and
    times.
    """
    check_unknown(ctx.args, [option for each in ctx.command.params for option in each.opts])
    settings, priced_settings = split_overrides(parse_set(overrides or []))
    check_pod(num_ranks, pod, settings)
    check_sizes(num_ranks, dp_size, tp_size, ep_size)
    check_address(host, api_key)
    options = OpenOptions(
        priced_as=priced_as,
        profile=pod,
        overrides=settings,
        seed=seed,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        enable_prefix_caching=enable_prefix_caching,
        enable_chunked_prefill=enable_chunked_prefill,
        block_size=block_size,
        num_gpu_blocks_override=num_gpu_blocks_override,
        load_balancing=load_balancing,
        priced_overrides=priced_settings,
        dram_blocks=dram_blocks,
        kv_pool_path=kv_pool_path,
        quantization=quantization,
        mtp=mtp,
        mtp_acceptance=mtp_acceptance,
        eplb=eplb,
        eplb_step_interval=eplb_step_interval,
        redundant_experts=redundant_experts,
        shared_experts=shared_experts,
        tp_size=tp_size,
        memory_check=memory_check,
        record=str(record.resolve()) if record else "",
    )
    plan, config, length = open_plan(model, num_ranks, options)
    with listening(host, port) as listener, job_directory() as own:
        names = tuple(served_model_name or [str(model)])
        vocabulary = config.vocab_size
        server = ServerSettings(
            str(model.resolve()), names, num_ranks, length, vocabulary, api_key, max_queue, seed
        )
        server.write(own.path / SETTINGS)
        result = _Serving(plan, own.path, listener, progress).run()
    if json_out is not None:
        write_out("--json", json_out, json.dumps(result, indent=1) + "\n")
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
