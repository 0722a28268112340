"""What a client sends, within bounds: so many bytes, so long a silence, an arrival that is not past."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from serving.api.errors import CLIENT_LEFT, ApiError, bad_request
from serving.api.protocol import MOST_BODY_BYTES

ARRIVAL_HEADER: Final = "X-Superpod-Arrival-Ps"
PATIENCE_S: Final = 30.0
"""Host's seconds: longest silence of a client in the middle of a body."""
_MOST_DISCARDED: Final = 8 * MOST_BODY_BYTES
"""Read of a body that is refused for its size, so that the client gets to hear why."""
_LONG: Final = 1 << 15
"""Bytes of a body whose prompt is read in a thread of its own."""
_MOST_PS: Final = (1 << 63) - 1
_Read = TypeVar("_Read")


async def read_body(request: Request, patience_s: float = PATIENCE_S) -> bytes:
    """The whole body.

    Raises:
        ApiError: 413 with more than `MOST_BODY_BYTES`, 408 after a silence, 499 (nobody hears it) where the
            client leaves.
    """
    if not _is_worth_reading(request):
        raise too_large()
    parts: list[bytes] = []
    size, stream = 0, request.stream()
    try:
        while True:
            async with asyncio.timeout(patience_s):
                part = await anext(stream, None)
            if part is None:
                break
            size += len(part)
            if size > MOST_BODY_BYTES:
                parts.clear()
            else:
                parts.append(part)
            if size > _MOST_DISCARDED:
                break
    except TimeoutError:
        raise ApiError(408, f"the body has not come within {patience_s:g} s of silence") from None
    except ClientDisconnect:
        raise ApiError(CLIENT_LEFT, "the client has left") from None
    if size > MOST_BODY_BYTES:
        raise too_large()
    return b"".join(parts)


def too_large() -> ApiError:
    """What a body of too many bytes is told."""
    return ApiError(413, f"the body must be at most {MOST_BODY_BYTES} bytes")


def _is_worth_reading(request: Request) -> bool:
    """Whether a body is read, be it to drop it; its announced length may say at once that it is not."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        return True
    waits = request.headers.get("expect", "").lower() == "100-continue"  # and then sends nothing
    return int(length) <= (MOST_BODY_BYTES if waits else _MOST_DISCARDED)


async def aside(size: int, read: Callable[[], _Read]) -> _Read:
    """Read a long prompt beside the event loop, so that others are not kept waiting; a short one at once."""
    return read() if size < _LONG else await run_in_threadpool(read)


def arrival_of(request: Request, now_ps: int) -> int | None:
    """The virtual arrival a request asks for. Raises ApiError: no time, or one that is past."""
    text = request.headers.get(ARRIVAL_HEADER)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) > _MOST_PS:
        raise bad_request(f"{ARRIVAL_HEADER} must be whole picoseconds, got {text[:40]!r}", ARRIVAL_HEADER)
    if int(text) < now_ps:
        raise bad_request(f"{ARRIVAL_HEADER} {text} is past: the engine is at {now_ps} ps", ARRIVAL_HEADER)
    return int(text)
