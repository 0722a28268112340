"""A connection of `superpod serve`: one that stays silent is let go, what is no HTTP hears why."""

from __future__ import annotations

import json
import re
import sys
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.api.body import too_large
from serving.api.errors import ApiError

_HEAD_S = 30.0
"""How long a connection may take to bring the head of its first request."""
_LINGER_S = 5.0
"""How long what still comes is read and dropped after an answer that ends a connection: closed at once, with
bytes unread, it would be reset, and the answer lost on its way."""
_LONG_LENGTH = re.compile(rb"^content-length:[ \t]*[0-9]{21,}[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
"""More digits than h11 reads."""


class Connection(H11Protocol):
    """Closes a connection that has not brought the head of a request for a while; what is no HTTP gets an
    error body like any other."""

    _said, _ended = b"", False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(_HEAD_S, self._give_up)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self._said = data
        super().data_received(data)

    def _give_up(self) -> None:
        if self.cycle is None:
            self._close()

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong with a request that cannot be read, then read no more."""
        error = self._refusal(sys.exc_info()[1], msg)
        body = json.dumps(error.body()).encode()
        lines = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
        )
        self._ended = True
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self._close)

    def _refusal(self, error: BaseException | None, msg: str) -> ApiError:
        if _LONG_LENGTH.search(self._said):
            return too_large()
        status = getattr(error, "error_status_hint", 400)
        return ApiError(status, msg if error is None else f"{msg[:-1]}: {error}")
