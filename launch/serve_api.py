"""The API process of `superpod serve`: uvicorn on a socket made by the command, one event loop, no torch.

Told by its standard input that the ranks are gone: one line says why; its end alone means that the command is
gone. Says `ready` on its standard output when the feed is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from importlib import metadata

import uvicorn

from emulator.config import CLOCK_KEYS, read_config
from emulator.errors import SuperpodError
from launch.serve_connection import Connection
from serving.api.app import Parts, make_app
from serving.api.engine_client import EngineClient
from serving.api.prom import Metrics
from serving.api.settings import ServerSettings, url_of
from serving.api.tokenizer import GenerationDefaults, load_tokenizer
from serving.api.vocabulary import token_bytes
from serving.feed import Feed
from serving.outputs import OutputReader

SETTINGS = "server.json"
_LAST_ANSWERS_S = 5
"""How long answers may take to be sent once the server is to end."""


class _Server(uvicorn.Server):
    """Leaves signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _parts(directory: str) -> Parts:
    settings = ServerSettings.read(f"{directory}/{SETTINGS}")
    tokenizer = load_tokenizer(settings.model_dir)
    table = None if tokenizer is None else token_bytes(tokenizer, settings.vocab_size)
    if table is not None:
        table.write(directory)  # for the ranks
    metrics = Metrics(settings.names[0], settings.max_model_len)
    feed, outputs = Feed.create(directory), OutputReader.bind(directory)
    client = EngineClient(feed, outputs, settings.max_queue, metrics.observe)
    defaults = GenerationDefaults.read(settings.model_dir)
    version = metadata.version("superpod")
    config = read_config({}, os.environ)
    clock = {key: getattr(config, key) for key in CLOCK_KEYS}
    return Parts(settings, client, metrics, tokenizer, defaults, version, time.time, table, clock)


async def _serve(parts: Parts, listener: socket.socket) -> None:
    loop, client = asyncio.get_running_loop(), parts.client
    config = uvicorn.Config(
        make_app(parts),
        http=Connection,
        ws="none",
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=_LAST_ANSWERS_S,
        backlog=2048,
    )
    server = _Server(config)
    ending: list[asyncio.Task[None]] = []

    async def end() -> None:
        await client.shut_down()
        server.should_exit = True

    def stop() -> None:
        if not ending:
            ending.append(loop.create_task(end()))

    def hear() -> None:
        why = os.read(0, 65536).decode(errors="replace").strip()
        loop.remove_reader(0)
        client.lose(why or "the server is shutting down")
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_reader(0, hear)

    async def say_ready() -> None:
        await client.ready.wait()
        print(f"superpod: ready: {url_of(listener)}", file=sys.stderr, flush=True)

    client.start()
    print("ready", flush=True)
    said = loop.create_task(say_ready())
    await server.serve(sockets=[listener])
    said.cancel()
    await client.shut_down()


def main(directory: str, listener_fd: int) -> int:
    """Serve until told to end."""
    try:
        parts = _parts(directory)
    except SuperpodError as error:
        print(f"error {' '.join(str(error).split())}", flush=True)
        return 2
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor for every client
    asyncio.run(_serve(parts, socket.socket(fileno=listener_fd)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
