"""Clients that are slow, silent or no HTTP at all: they are told, let go, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from fake_engine import FakeEngine, app_of
from starlette.requests import Request
from uvicorn.server import ServerState

import launch.serve_connection as serve_connection
from serving.api.body import read_body
from serving.api.errors import ApiError
from serving.api.protocol import MOST_BODY_BYTES


def request_of(parts: AsyncIterator[dict[str, Any]]) -> Request:
    return Request({"type": "http", "method": "POST", "headers": []}, parts.__anext__)


async def sent(*parts: bytes, end: str = "whole") -> AsyncIterator[dict[str, Any]]:
    for part in parts:
        yield {"type": "http.request", "body": part, "more_body": True}
    if end == "silent":
        await asyncio.sleep(60)
    yield {"type": "http.disconnect"} if end == "left" else {"type": "http.request", "body": b""}


def _announced(length: int | str, more: str = "") -> bytes:
    """A head that announces a body of so many bytes."""
    return f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n{more}\r\n".encode()


@pytest.mark.parametrize(
    ("parts", "end", "status"),
    [
        ([b"{"], "silent", 408),
        ([b"{"], "left", 499),
        ([b"x" * (MOST_BODY_BYTES // 2)] * 3, "whole", 413),
        ([b"x" * MOST_BODY_BYTES] * 12, "silent", 413),
    ],
)
def test_a_body_that_does_not_come_well(parts: list[bytes], end: str, status: int) -> None:
    """Mutations: no time-out (hangs); reading on for ever."""
    with pytest.raises(ApiError) as refused:
        asyncio.run(read_body(request_of(sent(*parts, end=end)), patience_s=0.2))
    assert refused.value.status == status


def test_a_slow_body_is_a_body() -> None:
    """Mutation: a time-out of the whole body instead of a silence."""

    async def slow() -> AsyncIterator[dict[str, Any]]:
        for byte in b"hello":
            await asyncio.sleep(0.3)
            yield {"type": "http.request", "body": bytes([byte]), "more_body": True}
        yield {"type": "http.request", "body": b""}

    assert asyncio.run(read_body(request_of(slow()), patience_s=1.2)) == b"hello"


def test_connections_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a head is let go, garbage gets an error body; a request on another connection is answered."""
    monkeypatch.setattr(serve_connection, "_HEAD_S", 0.3)

    async def use(ask: Callable[[bytes], Awaitable[bytes]]) -> list[bytes]:
        said = (
            b"POST /v1/completions HTTP/1.1\r\nHost:",
            b"\x16\x03\x01\x02",
            b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n",
        )
        return list(await asyncio.gather(*map(ask, said)))

    half, garbage, fine = asyncio.run(_served(use))
    assert half == b""
    assert garbage.startswith(b"HTTP/1.1 400") and json.loads(garbage.partition(b"\r\n\r\n")[2])["error"]
    assert fine.startswith(b"HTTP/1.1 200")


LENGTHS = {"just over": 256 * 2**20 + 1, "64 bits": 2**64, "25 digits": 10**24, "5,000 digits": "9" * 5_000}


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
def test_a_length_nobody_reads_is_refused_before_the_body(length: int | str) -> None:
    """Mutation: the announced length not looked at (waits for a body; 400 past the digits h11 reads)."""
    heard = asyncio.run(_served(lambda ask: _all(ask, _announced(length))))[0]
    assert heard.startswith(b"HTTP/1.1 413 ") and b"must be at most" in heard


def test_a_client_that_waits_to_be_told_need_not_send_a_body_that_is_dropped() -> None:
    """Mutation: `Expect: 100-continue` answered with 100 whatever the length."""
    said = _announced(MOST_BODY_BYTES + 1, "expect: 100-continue\r\n")
    heard = asyncio.run(_served(lambda ask: _all(ask, said)))[0]
    assert heard.startswith(b"HTTP/1.1 413 ")


UNREADABLE = {
    "head past h11's bound": (b"GET /version HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 2_000_000, 431),
    "two lengths": (_announced(5, "content-length: 6\r\n"), 400),
    "length below 0": (_announced(-5), 400),
    "coding nobody knows": (_announced(5, "transfer-encoding: gzip\r\n"), 501),
    "chunk of no size": (
        b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        400,
    ),
}


@pytest.mark.parametrize(("said", "status"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_hears_why(said: bytes, status: int) -> None:
    """Mutations: closed without reading what still comes (the client's connection is reset before it hears);
    every refusal a 400 that does not say what is wrong."""
    heard = asyncio.run(_served(lambda ask: _all(ask, said)))[0]
    head, _, body = heard.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in head
    assert json.loads(body)["error"]["message"].startswith("Invalid HTTP request received: ")


async def _all(ask: Callable[[bytes], Awaitable[bytes]], *said: bytes) -> list[bytes]:
    return list(await asyncio.gather(*map(ask, said)))


async def _served(
    use: Callable[[Callable[[bytes], Awaitable[bytes]]], Awaitable[list[bytes]]],
) -> list[bytes]:
    app = app_of(FakeEngine(lambda request: [5]))
    config = uvicorn.Config(app, lifespan="off", log_level="error", timeout_keep_alive=1)
    config.load()
    made = lambda: serve_connection.Connection(config=config, server_state=ServerState(), app_state={})  # noqa: E731
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def ask(said: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        heard = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return heard

    async with server:
        return await use(ask)


MANY = 4_000
"""Tokens of an answer that no buffer between the server and a client holds."""


def test_a_client_that_does_not_read_holds_up_nobody() -> None:
    """While a stream stands still others are answered, and little is kept for it; read at last, it is whole.
    Mutation: chunks handed to the transport without waiting for it (its buffer grows to the whole answer)."""

    async def use(port: int, state: ServerState) -> tuple[int, list[bytes], bytes]:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(slow, ("127.0.0.1", port))
        await loop.sock_sendall(slow, completion(MANY, stream=True))
        others = [await asyncio.wait_for(asked(port, completion(1)), 60) for _ in range(3)]
        kept = max(c.transport.get_write_buffer_size() for c in state.connections)
        heard = b""
        while part := await asyncio.wait_for(loop.sock_recv(slow, 1 << 16), 60):
            heard += part
        slow.close()
        return kept, others, heard

    kept, others, heard = asyncio.run(_with_port(use))
    assert [answer.partition(b" ")[2][:3] for answer in others] == [b"200"] * 3
    assert 0 < kept < 200_000 < len(heard)
    assert heard.count(b'"token_times_ps"') == MANY and b"data: [DONE]" in heard


def completion(count: int, **more: Any) -> bytes:
    """A request of so many tokens, closing its connection."""
    body = json.dumps(
        {"model": "tiny", "prompt": [3], "max_tokens": count, "ignore_eos": True, **more}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def asked(port: int, said: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    heard = await reader.read()
    writer.close()
    return heard


async def _with_port(use: Callable[[int, ServerState], Awaitable[Any]]) -> Any:
    """Serve on a socket whose send buffer is small."""
    app = app_of(FakeEngine(lambda request: [5] * request.max_output), max_model_len=2 * MANY)
    config = uvicorn.Config(app, lifespan="off", log_level="error")
    config.load()
    state, listener = ServerState(), socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
    made = lambda: serve_connection.Connection(config=config, server_state=state, app_state={})  # noqa: E731
    app.state.client.start()
    server = await asyncio.get_running_loop().create_server(made, sock=listener)
    async with server:
        return await use(listener.getsockname()[1], state)
