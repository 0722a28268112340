"""The HTTP server: OpenAI's endpoints over one engine (docs/http.md).

Every request is answered exactly once: with its completion, or with one error body. A client that leaves
has its requests aborted. Nothing a client sends reaches a rank unchecked.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.api.body import arrival_of, aside, read_body
from serving.api.completions import Completions
from serving.api.engine_client import EngineClient
from serving.api.errors import ApiError, bad_request
from serving.api.intake import Asked, Intake
from serving.api.prom import Metrics
from serving.api.protocol import (
    Body,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
    parse_body,
    parse_object,
    validated,
)
from serving.api.settings import ServerSettings
from serving.api.tokenizer import GenerationDefaults, Tokenizer
from serving.model.stopping import TokenBytes

_Kind = TypeVar("_Kind", bound=Body)
_OPEN_PATHS = ("/health", "/ping", "/metrics", "/version")


@dataclass(frozen=True)
class Parts:
    """What an app is made of. table: bytes of the tokenizer's tokens. wall_s: the host's clock, Unix seconds,
    for `created` alone. clock: the pod's clock by key of `emulator.config.CLOCK_KEYS`, for the model card."""

    settings: ServerSettings
    client: EngineClient
    metrics: Metrics
    tokenizer: Tokenizer | None
    defaults: GenerationDefaults
    version: str
    wall_s: Callable[[], float]
    table: TokenBytes | None = None
    clock: Mapping[str, Any] = field(default_factory=dict)


def make_app(parts: Parts) -> FastAPI:
    """The application, with all its routes."""
    app = FastAPI(title="superpod", version=parts.version, openapi_url=None, docs_url=None, redoc_url=None)
    intake = Intake(parts.settings, parts.tokenizer, parts.defaults)
    completions = Completions(
        parts.client, parts.settings.names[0], parts.tokenizer, parts.table, parts.wall_s
    )
    _add_errors(app)
    if parts.settings.api_key is not None:
        app.add_middleware(_KeyCheck, key=parts.settings.api_key)
    _add_status(app, parts)
    _add_generation(app, parts.client, intake, completions)
    _add_tokens(app, intake, parts.settings)
    _add_clock(app, parts.client)
    return app


def _add_errors(app: FastAPI) -> None:
    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error_response(error)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        known = {
            404: f"no such path: {request.url.path}",
            405: f"{request.method} is not for {request.url.path}",
        }
        return error_response(ApiError(error.status_code, known.get(error.status_code, str(error.detail))))

    async def our_error(request: Request, error: Exception) -> Response:
        return error_response(ApiError(500, f"{type(error).__name__}: {error}"))

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, our_error)


def error_response(error: ApiError) -> Response:
    """An error as a response."""
    headers = {"Retry-After": "1"} if error.status == 429 else None
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


class _KeyCheck:
    """Lets through who knows the key; others get 401. (A plain ASGI layer: streams pass untouched.)"""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._expected = app, f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                error = ApiError(401, "a wrong API key was given, or none", code="invalid_api_key")
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _add_status(app: FastAPI, parts: Parts) -> None:
    client, settings = parts.client, parts.settings
    created = int(parts.wall_s())

    @app.get("/health")
    @app.get("/ping")
    async def health() -> Response:
        healthy = client.dead is None and client.ready.is_set() and not client.closing
        return Response(status_code=200 if healthy else 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": parts.version}

    @app.get("/metrics")
    async def metrics() -> Response:
        page = await run_in_threadpool(parts.metrics.render)
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    def card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "superpod",
            "root": settings.model_dir,
            "parent": None,
            "max_model_len": settings.max_model_len,
            "superpod": {
                "ranks": settings.ranks,
                "vocab_size": settings.vocab_size,
                "tokenizer": parts.tokenizer is not None,
                "clock": dict(parts.clock),
            },
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card(name) for name in settings.names]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        Intake(settings, None, parts.defaults).check_model(name)
        return card(name)


def _add_generation(app: FastAPI, client: EngineClient, intake: Intake, completions: Completions) -> None:
    """Both kinds of completion go the same way: read, check, make requests, answer."""

    def add(path: str, kind: type[_Kind], make: Callable[[_Kind, int | None], Asked]) -> None:
        @app.post(path)
        async def generate(request: Request) -> Response:
            raw = await read_body(request)
            body = parse_body(kind, parse_object(raw))
            intake.check_model(body.model)
            arrival_ps = arrival_of(request, client.now_ps)
            asked = await aside(len(raw), lambda: make(body, arrival_ps))
            return await completions.answer(request, body, asked)

    add("/v1/completions", CompletionBody, intake.completion)
    add("/v1/chat/completions", ChatBody, intake.chat)


def _add_tokens(app: FastAPI, intake: Intake, settings: ServerSettings) -> None:
    @app.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        body = validated(TokenizeBody, parse_object(await read_body(request)))
        intake.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise bad_request("give either prompt or messages")
        special = body.add_special_tokens
        if body.prompt is not None:
            tokens = intake.encode(body.prompt, special is not False)
        else:
            tokens = intake.encode(intake.chat_text(body), bool(special))
        found: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": settings.max_model_len,
            "tokens": tokens,
        }
        strings = [intake.tokenizer.piece(t) for t in tokens] if body.return_token_strs else None
        return {**found, "token_strs": strings}

    @app.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, Any]:
        body = validated(DetokenizeBody, parse_object(await read_body(request)))
        intake.check_model(body.model)
        wrong = [t for t in body.tokens if t >= settings.vocab_size]
        if wrong:
            raise bad_request(
                f"token id {wrong[0]} is out of range: 0 to {settings.vocab_size - 1}", "tokens"
            )
        return {"prompt": intake.tokenizer.decode(body.tokens, False)}


def _add_clock(app: FastAPI, client: EngineClient) -> None:
    """Virtual time for load generators: look at it, stop it, let it go on."""

    def state() -> dict[str, Any]:
        counts = client.counts
        return {
            "now_ps": client.now_ps,
            "held": client.held,
            "in_flight": client.num_in_flight,
            "waiting": client.num_waiting,
            "accepted": counts.accepted,
            "ended": counts.ended,
            "aborted": counts.aborted,
            "refused": counts.refused,
        }

    @app.get("/superpod/clock")
    async def clock() -> dict[str, Any]:
        return state()

    @app.post("/superpod/hold")
    async def hold() -> dict[str, Any]:
        client.hold()
        return state()

    @app.post("/superpod/release")
    async def release() -> dict[str, Any]:
        client.release()
        return state()
