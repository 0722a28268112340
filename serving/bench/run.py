"""One benchmark run: send everything, listen to the streams, and tell each call in two clocks.

With virtual arrivals the server is held until all requests are in, so its time starts when the load is
complete; each is sent with `X-Superpod-Arrival-Ps`. Without (`--max-concurrency`, or no virtual clock there)
requests are sent as the host's clock says, and come in whenever they come in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.bench.datasets import Ask
from serving.bench.http import HttpError, Target, fetch, send
from serving.bench.report import Call, of_times
from serving.traces import PS_PER_S

_LOOK_S = 0.05
_MARGIN_PS = 1_000_000_000
"""Virtual time between now and the first arrival, so that none is past: 1 ms."""


@dataclass(frozen=True)
class Run:
    """How to ask.

    extra: further fields of every body (temperature, ignore_eos, …). virtual: arrivals are virtual times.
    max_concurrency: requests open at once (then not virtual).
    """

    target: Target
    model: str
    chat: bool = False
    extra: Mapping[str, Any] | None = None
    virtual: bool = True
    max_concurrency: int | None = None


@dataclass(frozen=True)
class Outcome:
    """One call in both clocks; `virtual` is None where the server says no virtual times."""

    wall: Call
    virtual: Call | None


async def benchmark(
    run: Run, asks: Sequence[Ask], arrivals_ps: Sequence[int], clock: Callable[[], float]
) -> list[Outcome]:
    """Send all of it; outcomes in order. `clock`: the host's, in seconds. Raises HttpError: no server."""
    if run.virtual:
        return await _held(run, asks, arrivals_ps, clock)
    slots = asyncio.Semaphore(run.max_concurrency or len(asks))
    begin = clock()

    async def one(ask: Ask, arrival_ps: int) -> Outcome:
        await asyncio.sleep(max(0.0, begin + arrival_ps / PS_PER_S - clock()))
        async with slots:
            return await call(run, ask, None, clock)

    return list(await asyncio.gather(*(one(a, t) for a, t in zip(asks, arrivals_ps, strict=True))))


async def _held(
    run: Run, asks: Sequence[Ask], arrivals_ps: Sequence[int], clock: Callable[[], float]
) -> list[Outcome]:
    """Hold the server, send, wait until everything is in, let it go."""
    state = await fetch(run.target, "POST", "/superpod/hold")
    before = state["accepted"]
    try:
        base = state["now_ps"] + _MARGIN_PS
        tasks = [
            asyncio.ensure_future(call(run, ask, base + at, clock))
            for ask, at in zip(asks, arrivals_ps, strict=True)
        ]
        while True:
            state = await fetch(run.target, "GET", "/superpod/clock")
            failed = sum(task.done() for task in tasks)
            if state["accepted"] - before + failed >= len(asks):
                break
            await asyncio.sleep(_LOOK_S)
    finally:
        await fetch(run.target, "POST", "/superpod/release")
    return list(await asyncio.gather(*tasks))


async def call(run: Run, ask: Ask, arrival_ps: int | None, clock: Callable[[], float]) -> Outcome:
    """One request, streamed to its end; what goes wrong is the call's error."""
    path = "/v1/chat/completions" if run.chat else "/v1/completions"
    headers = {} if arrival_ps is None else {"X-Superpod-Arrival-Ps": str(arrival_ps)}
    heard = _Heard(ask, clock)
    try:
        async with send(run.target, "POST", path, _body(run, ask), headers) as reply:
            if reply.status != 200:
                text = (await reply.body()).decode(errors="replace")
                return heard.failed(f"{reply.status} {text[:300]}")
            async for chunk in reply.events():
                if "error" in chunk:
                    return heard.failed(str(chunk["error"].get("message")))
                heard.add(chunk)
    except HttpError as error:
        return heard.failed(str(error))
    return heard.outcome()


def _body(run: Run, ask: Ask) -> dict[str, Any]:
    prompt: dict[str, Any] = {"prompt": ask.prompt}
    if run.chat:
        prompt = {"messages": [{"role": "user", "content": ask.prompt}]}
    options = {"include_usage": True}
    fixed = {"model": run.model, "max_tokens": ask.output_len, "stream": True, "stream_options": options}
    return {**prompt, **fixed, "temperature": 0.0, "ignore_eos": True, **(run.extra or {})}


class _Heard:
    """What a stream has said so far."""

    def __init__(self, ask: Ask, clock: Callable[[], float]) -> None:
        self._ask, self._clock, self._start = ask, clock, clock()
        self._chunks: list[float] = []
        self._times: list[int] = []
        self._arrival = -1
        self._text, self._tokens, self._prompt = "", 0, ask.prompt_len

    def add(self, chunk: Mapping[str, Any]) -> None:
        for choice in chunk.get("choices", []):
            self._text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        extension = chunk.get("superpod")
        if extension is not None:
            self._arrival = extension["arrival_ps"]
            self._times += extension["token_times_ps"]
        opened = "delta" in (chunk.get("choices") or [{}])[0] and "role" in chunk["choices"][0]["delta"]
        if chunk.get("choices") and not opened and (extension is None or extension["token_times_ps"]):
            self._chunks.append(self._clock())
        usage = chunk.get("usage")
        if usage:
            self._tokens, self._prompt = usage["completion_tokens"], usage["prompt_tokens"]

    def failed(self, why: str) -> Outcome:
        """The call has failed."""
        bad = Call(self._ask.prompt_len, self._start, error=" ".join(why.split()) or "failed")
        return Outcome(bad, bad)

    def outcome(self) -> Outcome:
        """The call has ended well, unless it said nothing."""
        if not self._chunks:
            return self.failed("the answer has no tokens")
        wall = of_times(self._prompt, self._start, self._chunks, self._text)
        count = self._tokens or len(self._chunks)
        wall = Call(wall.prompt_len, wall.start, wall.ttft, wall.itl, wall.latency, count, wall.text)
        if not self._times:
            return Outcome(wall, None)
        times = [t / PS_PER_S for t in self._times]
        return Outcome(wall, of_times(self._prompt, self._arrival / PS_PER_S, times, self._text))
