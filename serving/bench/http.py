"""As much of an HTTP/1.1 client as a load generator needs: one request a connection, the body as it comes.

On asyncio streams and h11 (which uvicorn brings along); no client library is needed to run a benchmark.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import h11

from emulator.errors import UsageError

_READ = 1 << 16


class HttpError(Exception):
    """The server could not be reached, or did not answer as HTTP."""


@dataclass(frozen=True)
class Target:
    """Where a server is. `key`: its API key, if it wants one."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""
    key: str | None = None

    @staticmethod
    def parse(url: str, key: str | None = None) -> Target:
        """Read `http://127.0.0.1:8000`. Raises UsageError: another scheme, or no address."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"--base-url {url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"--base-url {url}: give http://HOST:PORT")
        tls = parts.scheme == "https"
        return Target(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"), key)


class Reply:
    """An answer whose body is read as it comes. `status`, `headers` (names in lower case)."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: h11.Connection
    ) -> None:
        self._reader, self._writer, self._wire = reader, writer, wire
        self.status, self.headers = 0, dict[str, str]()

    async def _event(self) -> Any:
        while True:
            event = self._wire.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._wire.receive_data(await self._reader.read(_READ))

    async def begin(self) -> None:
        """Read up to the body."""
        event = await self._event()
        while isinstance(event, h11.InformationalResponse):
            event = await self._event()
        if not isinstance(event, h11.Response):
            raise HttpError("the server closed the connection")
        self.status = event.status_code
        self.headers = {k.decode().lower(): v.decode() for k, v in event.headers}

    async def parts(self) -> AsyncIterator[bytes]:
        """The body, piece by piece."""
        while True:
            event = await self._event()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            elif event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                raise HttpError("the server closed the connection in the middle of its answer")

    async def body(self) -> bytes:
        """The whole body."""
        return b"".join([part async for part in self.parts()])

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Server-sent events with JSON data, up to `[DONE]`."""
        text = b""
        async for part in self.parts():
            text += part
            *whole, text = text.split(b"\n\n")
            for each in whole:
                data = each.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    return
                if data:
                    yield json.loads(data)

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


@contextlib.asynccontextmanager
async def send(
    target: Target,
    method: str,
    path: str,
    fields: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> AsyncIterator[Reply]:
    """Send a request with an optional JSON body; its answer, begun. Raises HttpError."""
    tls = ssl.create_default_context() if target.tls else None
    try:
        reader, writer = await asyncio.open_connection(target.host, target.port, ssl=tls)
    except ConnectionRefusedError:
        there = f"{target.host}:{target.port}"
        raise HttpError(
            f"{there}: no server listens there; superpod serve starts one, --base-url names another"
        ) from None
    except OSError as error:
        raise HttpError(f"{target.host}:{target.port}: {error.strerror or error}") from None
    reply = Reply(reader, writer, h11.Connection(h11.CLIENT))
    try:
        writer.write(_request(reply, target, method, path, fields, headers or {}))
        await writer.drain()
        await reply.begin()
        yield reply
    except (OSError, h11.RemoteProtocolError) as error:
        raise HttpError(f"{target.host}:{target.port}: {error}") from None
    finally:
        reply.close()


def _request(
    reply: Reply,
    target: Target,
    method: str,
    path: str,
    fields: Mapping[str, Any] | None,
    headers: Mapping[str, str],
) -> bytes:
    body = b"" if fields is None else json.dumps(fields).encode()
    sent = {"Host": f"{target.host}:{target.port}", "Connection": "close", **headers}
    if target.key is not None:
        sent["Authorization"] = f"Bearer {target.key}"
    if fields is not None:
        sent |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    wire = reply._wire
    head = wire.send(h11.Request(method=method, target=target.prefix + path, headers=list(sent.items())))
    parts = [head or b"", wire.send(h11.Data(data=body)) or b"" if body else b""]
    return b"".join([*parts, wire.send(h11.EndOfMessage()) or b""])


async def fetch(
    target: Target, method: str, path: str, fields: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A small JSON answer. Raises HttpError: no connection, or not 200 (with what the server says)."""
    async with send(target, method, path, fields) as reply:
        text = await reply.body()
    try:
        value = json.loads(text)
    except ValueError:
        value = {}
    if reply.status != 200 or not isinstance(value, dict):
        told = value.get("error", {}).get("message") if isinstance(value, dict) else None
        raise HttpError(f"{method} {path}: {reply.status} {told or text[:200].decode(errors='replace')}")
    return value
