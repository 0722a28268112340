"""One completion over HTTP: submit, then answer whole or as a stream of server-sent events, or abort."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from serving.api.answers import Answer, LogprobForm, Piece, answers_of, usage, virtual_times
from serving.api.detokenizer import IdText
from serving.api.engine_client import EngineClient, Ticket
from serving.api.errors import CLIENT_LEFT, ApiError, bad_request
from serving.api.intake import Asked
from serving.api.protocol import Body, ChatBody
from serving.api.tokenizer import Tokenizer
from serving.model.stopping import TokenBytes

_DONE = "data: [DONE]\n\n"


class Completions:
    """Answers requests of both kinds.

    Args:
        model: the name answers bear.
        table: bytes of its tokens. wall_s: the host's clock, for `created`.
    """

    def __init__(
        self,
        client: EngineClient,
        model: str,
        tokenizer: Tokenizer | None,
        table: TokenBytes | None,
        wall_s: Callable[[], float],
    ) -> None:
        self._client, self._model, self._wall_s = client, model, wall_s
        self._decoder, self._form = tokenizer or IdText(), LogprobForm(tokenizer, table)

    async def answer(self, request: Request, body: Body, asked: Asked) -> Response:
        """Submit and answer. Raises ApiError: refused, by us or by the engine."""
        if body.stream_options is not None and not body.stream:
            raise bad_request("stream_options needs stream to be true", param="stream_options")
        tickets = self._client.submit(asked.make)
        call = _Call(self, body, asked, tickets)
        try:
            if body.stream:
                return _Stream(call, await _unless_left(request, call.next()))
            await _unless_left(request, call.all())
        except BaseException:
            call.close()
            raise
        return self._whole(call)

    def _whole(self, call: _Call) -> Response:
        times = virtual_times(call.answers)
        headers = {
            "X-Superpod-Arrival-Ps": str(times["arrival_ps"]),
            "X-Superpod-End-Ps": str(times["end_ps"]),
        }
        return JSONResponse(call.result(), headers=headers)


async def _unless_left(request: Request, work: Any) -> Any:
    """The result of `work`, unless the client leaves before. Raises ApiError 499, which nobody will read."""
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(CLIENT_LEFT, "the client has left")
        return task.result()
    finally:
        for each in (task, left):
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError, ApiError):
                await each


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Call:
    """One HTTP request on its way."""

    def __init__(self, home: Completions, body: Body, asked: Asked, tickets: list[Ticket]) -> None:
        self._client, self._form, self._model = home._client, home._form, home._model
        self.body, self.asked, self.tickets = body, asked, tickets
        self.is_chat = isinstance(body, ChatBody)
        self.answers = answers_of(asked, home._decoder)
        self._created = int(home._wall_s())
        number = tickets[0].request.request_id
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{number}"
        self._pieces: asyncio.Queue[tuple[Answer, Piece] | ApiError] = asyncio.Queue()
        self._open = len(tickets)
        self._offsets = [0] * len(tickets)
        self._tasks = [
            asyncio.ensure_future(self._follow(t, a)) for t, a in zip(tickets, self.answers, strict=True)
        ]

    async def _follow(self, ticket: Ticket, answer: Answer) -> None:
        """Hand on the pieces of one choice, to its end."""
        async for event in self._client.events(ticket):
            if event.finish == "error":
                status = 500 if self._client.dead else 400
                self._pieces.put_nowait(ApiError(status, event.error or "the engine refused the request"))
                return
            if event.finish == "abort":
                self._pieces.put_nowait(ApiError(503, "the request was aborted: the server is shutting down"))
                return
            piece = answer.add(event)
            if answer.detokenizer.stopped_by is not None and piece.finish is None:
                self._client.abort(
                    [ticket]
                )  # the engine does not know this text; nobody waits for more of it
                answer.finish = piece.finish = "stop"
                answer.stop_reason = answer.detokenizer.stopped_by
            self._pieces.put_nowait((answer, piece))
            if piece.finish is not None:
                return

    async def next(self) -> tuple[Answer, Piece]:
        """The next piece of any choice. Raises ApiError: a choice has failed."""
        found = await self._pieces.get()
        if isinstance(found, ApiError):
            raise found
        self._open -= found[1].finish is not None
        return found

    async def all(self) -> None:
        """Wait for the end of every choice."""
        while self._open:
            await self.next()

    def result(self) -> dict[str, Any]:
        """The whole answer."""
        choices = [self._choice(answer) for answer in self.answers]
        kind = "chat.completion" if self.is_chat else "text_completion"
        return {**self._head(kind), "choices": choices, "usage": usage(self.asked, self.answers)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}

    def _choice(self, answer: Answer) -> dict[str, Any]:
        end = {"finish_reason": answer.finish, "stop_reason": answer.stop_reason}
        wanted = self.asked.params.logprobs is not None
        found: dict[str, Any]
        if self.is_chat:
            logprobs = self._form.chat(answer.logprobs) if wanted else None
            message = {"role": "assistant", "content": answer.text}
            found = {"index": answer.index, "message": message, "logprobs": logprobs, **end}
        else:
            logprobs = self._form.completion(answer.logprobs, 0) if wanted else None
            found = {"index": answer.index, "text": answer.text, "logprobs": logprobs, **end}
        if self.body.return_token_ids:
            found |= {"token_ids": answer.tokens, "prompt_token_ids": self.asked.prompt_of(answer.index)}
        return found

    async def stream(self, first: tuple[Answer, Piece]) -> AsyncIterator[str]:
        """Server-sent events: chunks, usage where asked for, `[DONE]`; an error is the last event."""
        try:
            if self.is_chat:
                for answer in self.answers:
                    yield self._event(self._chunk(answer, {"role": "assistant", "content": ""}, None))
            yield self._event(self._chunk_of(*first))
            while self._open:
                yield self._event(self._chunk_of(*await self.next()))
            options = self.body.stream_options
            if options is not None and options.include_usage:
                yield self._event(
                    {**self._chunk_head(), "choices": [], "usage": usage(self.asked, self.answers)}
                )
            yield _DONE
        except ApiError as error:
            yield self._event(error.body())
            yield _DONE

    def close(self) -> None:
        """Nobody reads any more: abort what has not ended."""
        self._client.abort(self.tickets)
        for task in self._tasks:
            task.cancel()

    def _event(self, fields: dict[str, Any]) -> str:
        return f"data: {json.dumps(fields, ensure_ascii=False, separators=(',', ':'))}\n\n"

    def _chunk_head(self) -> dict[str, Any]:
        return self._head("chat.completion.chunk" if self.is_chat else "text_completion")

    def _chunk_of(self, answer: Answer, piece: Piece) -> dict[str, Any]:
        """A piece as a chunk."""
        delta = {"content": piece.text} if self.is_chat else {"text": piece.text}
        chunk = self._chunk(answer, delta, piece)
        chunk["superpod"] = {"token_times_ps": piece.times_ps, "arrival_ps": answer.arrival_ps}
        return chunk

    def _chunk(self, answer: Answer, delta: dict[str, Any], piece: Piece | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": answer.index}
        choice |= {"delta": delta} if self.is_chat else delta
        choice["logprobs"] = self._logprobs(answer, piece)
        choice["finish_reason"] = None if piece is None else piece.finish
        if choice["finish_reason"] is not None:
            choice["stop_reason"] = answer.stop_reason
        if self.body.return_token_ids and piece is not None:
            choice["token_ids"] = piece.tokens
        chunk = {**self._chunk_head(), "choices": [choice]}
        options = self.body.stream_options
        if options is not None and options.continuous_usage_stats:
            chunk["usage"] = usage(self.asked, self.answers, virtual=False)
        return chunk

    def _logprobs(self, answer: Answer, piece: Piece | None) -> Any:
        if self.asked.params.logprobs is None or piece is None or not piece.logprobs:
            return None
        if self.is_chat:
            return self._form.chat(piece.logprobs)
        offset = self._offsets[answer.index]
        found = self._form.completion(piece.logprobs, offset)
        self._offsets[answer.index] = offset + sum(len(text) for text in found["tokens"])
        return found


class _Stream(StreamingResponse):
    """A call's stream; however it ends, the call is closed, even if not one chunk was sent."""

    def __init__(self, call: _Call, first: tuple[Answer, Piece]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Superpod-Arrival-Ps": str(first[0].arrival_ps)}
        super().__init__(call.stream(first), media_type="text/event-stream", headers=headers)
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._call.close()
