"""The engine as the server sees it: requests go in by the feed, events come out by the reader's descriptor.

Everything happens on the event loop's thread. A request ends exactly once: with the event that says so, or,
when the engine is gone, with an error made here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from serving.api.errors import ApiError
from serving.feed import FeedRequest
from serving.outputs import OutputEvent, StatsEvent


class EngineFeed(Protocol):
    """Where requests go in (`serving.feed.Feed`)."""

    @property
    def now_ps(self) -> int: ...

    def add_all(self, requests: Sequence[FeedRequest]) -> None: ...
    def abort(self, request_id: int) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...
    def close(self) -> None: ...


class EngineOutputs(Protocol):
    """Where events come out (`serving.outputs.OutputReader`)."""

    def fileno(self) -> int: ...
    def read(self) -> list[OutputEvent | StatsEvent]: ...


@dataclass
class Counts:
    """Requests (choices) so far. accepted = ended + in flight, always."""

    accepted: int = 0
    ended: int = 0
    aborted: int = 0
    """Of those ended."""
    refused: int = 0
    """Turned away because too many wait (429); never accepted."""


@dataclass
class Ticket:
    """One choice of a request on its way; `events` in the order they came."""

    request: FeedRequest
    events: asyncio.Queue[OutputEvent] = field(default_factory=asyncio.Queue)
    started: bool = False
    ended: bool = False


class EngineClient:
    """Hands requests to the pod and its events to whoever waits for them.

    Args:
        feed, outputs: the two ends.
        max_queue: most requests that wait for their first token; more are refused with 429. None: no bound.
        observe: told of every event, for the metrics.
    """

    def __init__(
        self,
        feed: EngineFeed,
        outputs: EngineOutputs,
        max_queue: int | None,
        observe: Callable[[Ticket | None, OutputEvent | StatsEvent], None],
    ) -> None:
        self._feed, self._outputs, self._max_queue, self._observe = feed, outputs, max_queue, observe
        self._tickets: dict[int, Ticket] = {}
        self._waiting = 0
        self._next_id = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.counts = Counts()
        self.dead: str | None = None
        """Why nothing can be served any more."""
        self.ready = asyncio.Event()
        """Set when the pod has been heard of."""
        self.closing = self.held = False

    @property
    def now_ps(self) -> int:
        """Virtual time of the engine, as last published."""
        return self._feed.now_ps

    @property
    def num_waiting(self) -> int:
        """Requests in flight without a token."""
        return self._waiting

    @property
    def num_in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._tickets)

    def start(self) -> None:
        """Begin to read events, on the running loop."""
        asyncio.get_running_loop().add_reader(self._outputs.fileno(), self._read)

    def submit(self, make: Sequence[Callable[[int], FeedRequest]]) -> list[Ticket]:
        """Put requests in, all or none; each is made from its number.

        Raises:
            ApiError: 429 with too many waiting, 503 when the engine is gone or about to go.
        """
        if self.dead or self.closing:
            raise ApiError(503, self.dead or "the server is shutting down")
        if self._max_queue is not None and self._waiting + len(make) > self._max_queue:
            self.counts.refused += len(make)
            raise ApiError(
                429,
                f"{self._waiting} requests wait, and --max-queue is {self._max_queue}; try again later",
                code="rate_limit_exceeded",
            )
        tickets = [Ticket(make_one(self._next_id + i)) for i, make_one in enumerate(make)]
        for ticket in tickets:
            self._tickets[ticket.request.request_id] = ticket
        self._feed.add_all([ticket.request for ticket in tickets])
        self._next_id += len(tickets)
        self._waiting += len(tickets)
        self.counts.accepted += len(tickets)
        self._idle.clear()
        return tickets

    async def events(self, ticket: Ticket) -> AsyncIterator[OutputEvent]:
        """The events of one choice, to the one that ends it."""
        while True:
            event = await ticket.events.get()
            yield event
            if event.finish is not None:
                return

    def abort(self, tickets: Sequence[Ticket]) -> None:
        """End those that have not ended: their client has left."""
        for ticket in tickets:
            if not ticket.ended:
                self._feed.abort(ticket.request.request_id)

    def hold(self) -> None:
        """Let virtual time stand still until `release`."""
        self.held = True
        self._feed.hold()

    def release(self) -> None:
        """Let virtual time go on."""
        self.held = False
        self._feed.release()

    async def shut_down(self) -> None:
        """Abort what is in flight, wait for its ends, and let the ranks end."""
        self.closing = True
        self.abort(list(self._tickets.values()))
        self.release()
        if not self.dead:
            await self._idle.wait()
        self._feed.close()

    def lose(self, why: str) -> None:
        """The pod is gone: end everything in flight with an error."""
        self.dead = self.dead or why
        for ticket in list(self._tickets.values()):
            self._deliver(_lost(ticket.request, why))

    def _read(self) -> None:
        self.ready.set()
        for event in self._outputs.read():
            if isinstance(event, OutputEvent):
                self._deliver(event)
            else:
                self._observe(None, event)

    def _deliver(self, event: OutputEvent) -> None:
        ticket = self._tickets.get(event.request_id)
        if ticket is None:
            return
        self._observe(ticket, event)
        if not ticket.started and (event.tokens or event.finish is not None):
            ticket.started = True
            self._waiting -= 1
        if event.finish is not None:
            ticket.ended = True
            del self._tickets[event.request_id]
            self.counts.ended += 1
            self.counts.aborted += event.finish == "abort"
            if not self._tickets:
                self._idle.set()
        ticket.events.put_nowait(event)


def _lost(request: FeedRequest, why: str) -> OutputEvent:
    return OutputEvent(
        request_id=request.request_id,
        rank=-1,
        tokens=[],
        times_ps=[],
        logprobs=None,
        finish="error",
        stop_reason=None,
        error=why,
        arrival_ps=0,
        cached_tokens=0,
    )
