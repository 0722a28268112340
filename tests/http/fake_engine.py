"""An engine without ranks: what the server would hear from a pod, from a script."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from serving.api.app import Parts, make_app
from serving.api.engine_client import EngineClient
from serving.api.prom import Metrics
from serving.api.settings import ServerSettings
from serving.api.tokenizer import GenerationDefaults, Tokenizer
from serving.feed import FeedRequest
from serving.model.stopping import TokenBytes, finish_of
from serving.outputs import OutputEvent, StatsEvent

STEP_PS = 1_000_000


class FakeEngine:
    """Feed and outputs in one: answers each request with the tokens `script` gives for it, one event a
    token, at
    once; with `paused`, only when `play` is called."""

    def __init__(
        self, script: Callable[[FeedRequest], Sequence[int]], table: TokenBytes | None = None
    ) -> None:
        self._script, self._table = script, table
        self._read_end, self._write_end = os.pipe()
        self._events: list[OutputEvent | StatsEvent] = [StatsEvent(0, 0, 0, 0, 0, 100, 0, 0, 0)]
        self.now_ps = 1000
        self.paused = False
        self.requests: list[FeedRequest] = []
        self.aborted: list[int] = []
        self.closed = False
        self._waiting: list[FeedRequest] = []
        os.write(self._write_end, b"x")

    def add_all(self, requests: Sequence[FeedRequest]) -> None:
        self.requests += requests
        self._waiting += requests
        if not self.paused:
            self.play()

    def abort(self, request_id: int) -> None:
        self.aborted.append(request_id)
        for request in [r for r in self._waiting if r.request_id == request_id]:
            self._waiting.remove(request)
            self._say(request, [], "abort")

    def hold(self) -> None:
        self.paused = True

    def release(self) -> None:
        self.paused = False
        self.play()

    def close(self) -> None:
        self.closed = True

    def fileno(self) -> int:
        return self._read_end

    def read(self) -> list[OutputEvent | StatsEvent]:
        os.read(self._read_end, 4096)
        events, self._events = self._events, []
        return events

    def play(self) -> None:
        """Answer everything that waits."""
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self.now_ps = max(self.now_ps, request.arrival_ps or 0)
            self._answer(request)

    def _answer(self, request: FeedRequest) -> None:
        outputs: list[int] = []
        for token in self._script(request):
            outputs.append(token)
            self.now_ps += STEP_PS
            found = finish_of(request.params, outputs, request.max_output, self._table)
            self._say(request, [token], found and found.reason, found and found.stop_reason)
            if found is not None:
                return
        self._say(request, [], "error", error="the script is too short")

    def _say(
        self,
        request: FeedRequest,
        tokens: list[int],
        finish: Any,
        stop_reason: Any = None,
        error: str | None = None,
    ) -> None:
        logprobs = None
        if request.params.logprobs is not None:
            logprobs = [
                (t, -0.5, tuple((t + i, -0.5 - i) for i in range(request.params.logprobs))) for t in tokens
            ]
        self._events.append(
            OutputEvent(
                request_id=request.request_id,
                rank=1,
                tokens=tokens,
                times_ps=[self.now_ps] * len(tokens),
                logprobs=logprobs,
                finish=finish,
                stop_reason=stop_reason,
                error=error,
                arrival_ps=1000 if request.arrival_ps is None else request.arrival_ps,
                cached_tokens=0,
            )
        )
        os.write(self._write_end, b"x")


def app_of(engine: FakeEngine, tokenizer: Tokenizer | None = None, **settings: Any) -> Any:
    """An app over it; call `app.state.client.start()` on the loop first."""
    fields: dict[str, Any] = {
        "model_dir": "/m", "names": ("tiny", "other"), "ranks": 2, "max_model_len": 64, "vocab_size": 512,
    }  # fmt: skip
    server = ServerSettings(**{**fields, **settings})
    metrics = Metrics(server.names[0], server.max_model_len)
    client = EngineClient(engine, engine, server.max_queue, metrics.observe)
    defaults, clock = GenerationDefaults((1,)), {"clock": "wall", "dilation": 20.0, "compute": "priced"}
    app = make_app(Parts(server, client, metrics, tokenizer, defaults, "9", lambda: 1.0, clock=clock))
    app.state.client = client
    return app
