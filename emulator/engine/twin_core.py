"""The settlement rules in plain Python: what the compiled core does, written to be read.

One heap of pending events. The earliest one, at rank p and time t, is final when t < bound[p] and, for every
running rank q, t < bound[q] + look[p], where look[p] is the least latency into p from another rank; blocked
ranks have no bound, their pending events stand for them. The compiled core settles whole windows of one rank
instead; the outcome is the same because events at one rank are processed in key order either way.

An event is (time, key, rank where it happens, peer, payload); key orders (rank, sequence, sub-index, stage).
"""

import heapq
from typing import Any

from emulator.engine.api import EngineConfig
from emulator.engine.codes import BLOCKED, DEAD, FATAL_DEADLOCK, FATAL_LIVELOCK, FATAL_NONE, W_POLL
from emulator.engine.twin_events import (
    S_ACK,
    S_ATOMIC,
    S_BULK,
    S_DELIVER,
    S_EGRESS,
    S_FAIL,
    S_INGRESS,
    S_LOCAL,
    S_POLL,
    S_PULL,
    S_PULL_IN,
    S_RESPONSE,
    S_RETRY,
    S_ROW,
    S_START,
    Event,
)
from emulator.engine.twin_hash import fold
from emulator.engine.twin_memory import INF, LATE, Memory
from emulator.engine.twin_schedule import Schedules

STATE = [
    "heap",
    "gets",
    "live",
    "flight",
    "held",
    "kept",
    "streams",
    "dead",
    "failed",
    "retired",
    "posted",
    "unexpected",
    "idle",
    "stale",
    "epoch",
]
STAGES = {S_START: "start", S_LOCAL: "local", S_RETRY: "retry", S_ROW: "row", S_BULK: "bulk"}


class Core(Schedules):
    """Settlement over the shared memory `m`; the caller holds the lock. `woken` collects who resumed."""

    def __init__(self, cfg: EngineConfig, memory: Memory) -> None:
        self.cfg, self.m, self.n = cfg, memory, cfg.num_ranks
        self.planes = [cfg, *cfg.planes]
        self.heap: list[Event] = []
        self.live = 0  # pending events that are not the end of a poll
        self.gets, self.flight, self.held, self.kept, self.streams = {}, {}, {}, {}, {}
        self.dead, self.failed, self.retired = set(), set(), set()
        self.posted, self.unexpected = {}, {}
        self.idle = self.stale = self.epoch = 0
        self.key, self.fresh = 0, set()
        self.woken: list[int] = []

    def state(self) -> list[Any]:
        """What must be handed on to the next process that enters."""
        return [getattr(self, name) for name in STATE]

    def restore(self, state: list[Any]) -> None:
        for name, value in zip(STATE, state, strict=True):
            setattr(self, name, value)

    # ---- events
    def push(self, p: int, t: int, key: int, peer: int = 0, payload: Any = None) -> None:
        heapq.heappush(self.heap, (t, key, p, peer, payload))
        self.live += key & 63 != S_POLL

    def settle(self) -> None:
        m = self.m
        while self.heap and not m.facts[m.FATAL]:
            t, key, p = self.heap[0][:3]
            low = min(m.bound)
            if not self.final(t, p, low):
                break
            if low == INF and self.live == self.idle == self.stale and self.polling_in_vain():
                self.give_up(p)
                break
            event = heapq.heappop(self.heap)
            self.live -= key & 63 != S_POLL
            m.facts[m.EVENTS] += 1
            if self.idle and not key & LATE and not self.retries_for_ever(event[4]):
                self.news()
            self.process(event)
        if not self.heap and not m.facts[m.FATAL] and min(m.bound) == INF and not self.change_membership():
            self.settle_all_rows()
            if BLOCKED in m.state.tolist():
                self.fail(FATAL_DEADLOCK, m.state.tolist().index(BLOCKED))

    def change_membership(self) -> bool:
        """Everything is blocked for good: tell all of deaths nobody knows of, see `Engine.subscribe`."""
        m = self.m
        blocked = [p for p in range(self.n) if m.state[p] == BLOCKED]
        new = [p for p in range(self.n) if m.state[p] == DEAD and not m.lost[p]]
        if not new or not blocked or not all(m.subscribed[p] for p in blocked):
            return False
        self.settle_all_rows()
        m.drop_exchanges()
        number, t = int(max(m.lost)) + 1, int(max(m.clock[p] for p in blocked))
        if m.facts[m.WALL_AHEAD] != m.facts[m.WALL_ROUND]:
            m.facts[m.WALL_CHANGED] = t
        for p in new:
            m.lost[p] = number
        for p in blocked:
            m.interrupted[p] = 1
            m.step_at[p] = m.steps[p]
            self.resume(p, t, 0)
        return True

    def final(self, t: int, p: int, low: int) -> bool:
        return bool(t < self.m.bound[p] and t < low + self.m.look[p])

    def polling_in_vain(self) -> bool:
        """Nobody runs and only ends of polls are pending: has every polling rank polled in vain long
        enough?"""
        m = self.m
        polling = [p for p in range(self.n) if m.state[p] == BLOCKED and m.wait[p] == W_POLL]
        return all(m.vain[p] >= self.cfg.livelock_polls for p in polling)

    def settle_all_rows(self) -> None:
        """Records of exchanges that never complete arrive all the same."""
        for p in range(self.n):
            self.settle_rows(p, INF - 1, 0)

    def give_up(self, p: int) -> None:
        """Only polls in vain and retries without end are left: an error, unless everybody has finished."""
        states = self.m.state.tolist()
        self.settle_all_rows()
        if BLOCKED in states:
            polling = [q for q, state in enumerate(states) if state == BLOCKED and self.m.wait[q] == W_POLL]
            self.fail(FATAL_LIVELOCK if polling else FATAL_DEADLOCK, p if polling else states.index(BLOCKED))

    def fail(self, code: int, rank: int) -> None:
        m = self.m
        if m.facts[m.FATAL] == FATAL_NONE:
            m.facts[m.CULPRIT], m.facts[m.FATAL] = rank, code

    def process(self, event: Event) -> None:
        t, key, p, peer, payload = event
        self.key = key
        stage = key & 63
        if stage == S_EGRESS:
            self.egress(t, key, p, payload)
        elif stage == S_INGRESS:
            self.ingress(t, key, p, peer, payload)
        elif stage == S_DELIVER:
            self.deliver(t, key, p, payload)
        elif stage in (S_ACK, S_RESPONSE):
            self.answer(t, *payload)
        elif stage == S_ATOMIC:
            self.atomic(t, key, p, payload)
        elif stage in STAGES:
            getattr(self, STAGES[stage])(t, key, p, payload)
        elif stage == S_FAIL:
            self.failure(t, *payload)
        elif stage == S_PULL:
            self.pull(t, key, p, peer, payload)
        elif stage == S_PULL_IN:
            self.pull_in(t, key, p, peer, payload)
        else:
            self.late(t, key, p, stage)

    # ---- ports
    def serve(self, p: int, port: int, kind: int, peer: int, t: int, key: int, nbytes: int, ser: int) -> int:
        """Reserve a port in order of arrival; returns the start."""
        m = self.m
        start: int = max(t, m.free[port][p])
        m.free[port][p] = start + ser
        m.busy[port][p] += ser
        h = m.hash[port]
        h[0][p], h[1][p] = fold((h[0][p], h[1][p]), t, key, start, start + ser, nbytes, kind + 8 * (peer + 1))
        m.trace(t, key, start, start + ser, nbytes, p, peer, port, kind, self.fail)
        return start
