"""What a client is told when a request cannot be served, in OpenAI's form.

    {"error": {"message": …, "type": …, "param": …, "code": …}}

Source: OpenAI API reference, "Error codes"; vllm `entrypoints/openai/protocol.py`, `ErrorResponse`.
"""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A request that is answered with an error; the server and the engine go on.

    Attributes:
        status: HTTP status. message: one line. param: the field at fault. code: OpenAI's word for it.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, " ".join(message.split()), param, code

    @property
    def type(self) -> str:
        """OpenAI's class of the error."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": fields}


CLIENT_LEFT = 499
"""Status of an answer that nobody reads."""
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: what the client sent cannot be served."""
    return ApiError(400, message, param=param, code=code)
