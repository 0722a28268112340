"""The wall clock in the Python twin; the rules are told in `wall.c`."""

import time

import numpy as np

from emulator.engine import hostcalls
from emulator.engine.api import Int64Array
from emulator.engine.base import BaseEngine
from emulator.engine.codes import BLOCKED, FATAL_WALL, RUN
from emulator.engine.twin_core import Core
from emulator.engine.twin_events import Op
from emulator.engine.twin_memory import Memory

SHORTEST_NS = 1_000
AGAIN_NS = 100_000
LONGEST_NS = 1 << 61


class TwinWall(BaseEngine):
    """The part of the entry that knows the host's clock."""

    _memory: Memory
    _core: Core
    _now: int
    _posts: list[tuple[int, int, int, int, object]]
    _wake_words: list[int]
    _wake_all: bool
    _wall_from = _wall_t = _measured_from = 0

    def _acquire(self) -> bool:
        raise NotImplementedError

    def _release(self, wake_all: bool = False) -> None:
        raise NotImplementedError

    def _span(self, ps: int) -> int:
        return min(ps * self.config.wall.dilation_ppm // 10**9, LONGEST_NS)

    def _due(self, t: int) -> int:
        return int(self._memory.facts[Memory.WALL_START]) + self._span(t)

    def _horizon(self) -> int:
        ns = time.monotonic_ns() - self._memory.facts[Memory.WALL_START] - self.config.wall.grace_ns
        return -1 if ns <= 0 else int(ns * 10**9 // self.config.wall.dilation_ppm)

    def _sleep_to(self, until: int) -> None:
        m, spin = self._memory, self.config.wall.spin_ns
        while not m.facts[m.FATAL] and time.monotonic_ns() < until - spin:
            ticket = m.word[self.rank]
            if m.facts[m.FATAL]:
                break
            hostcalls.futex_until(self._wake_words[self.rank], ticket, until - spin)
        while spin and not m.facts[m.FATAL] and time.monotonic_ns() < until:
            pass

    def _wall_begin(self) -> None:
        """A blocking call begins at its instant: what was computed before it takes its time first."""
        self._wall_from = 0
        if self._memory.facts[Memory.WALL_START]:
            self._sleep_to(self._due(self._now))
            self._wall_from, self._wall_t = time.monotonic_ns(), self._now

    def _pace(self) -> int:
        m = self._memory
        if m.facts[m.WALL_START]:
            self._sleep_to(self._due(self._now))
        return int(m.facts[m.FATAL])

    def _catch_up(self) -> int:
        """The others went on without me: I and what I have not handed over act from then on."""
        m, r = self._memory, self.rank
        times = [post[4].posted if isinstance(post[4], Op) else post[1] for post in self._posts]
        shift = int(m.assumed[r]) - min([self._now, *times])
        if shift <= 0:
            return 0
        for i, (p, t, key, peer, payload) in enumerate(self._posts):
            self._posts[i] = p, t + shift, key, peer, payload
            if isinstance(payload, Op):
                payload.posted += shift
        self._now += shift
        self._wall_t += shift
        m.moved[r] += 1
        m.moved_ps[r] += shift
        return shift

    def _assume(self) -> None:
        m, low = self._memory, self._horizon()
        for p in range(self.num_ranks):
            if m.state[p] == RUN and m.bound[p] < low:
                m.assumed[p] = m.bound[p] = low

    def _next_look(self) -> int:
        """When the earliest pending event becomes final without the ranks that run; 0 without one. Under the
        lock, or with the heap as I left it."""
        if not self._core.heap or not self._memory.facts[Memory.WALL_START]:
            return 0
        due = self._due(self._core.heap[0][0] + 1) + self.config.wall.grace_ns + 1000
        return max(due, time.monotonic_ns() + AGAIN_NS)

    def _slept_until(self) -> int:
        """Until when somebody is only waiting for its instant: so long nobody is stuck."""
        m = self._memory
        if not m.facts[m.WALL_START]:
            return 0
        return max(
            (self._due(bound) for bound, state in zip(m.bound, m.state, strict=True) if state == RUN),
            default=0,
        )

    def _deadline(self) -> int:
        return max(time.monotonic_ns(), self._slept_until()) + int(self.config.wall_deadline_s * 1e9)

    def _wall_sleep(self, ticket: int) -> int:
        m, r = self._memory, self.rank
        look, entries = self._next_look(), m.facts[m.ENTRIES]
        while m.state[r] == BLOCKED and not m.facts[m.FATAL]:
            until = look or self._deadline()
            passed = hostcalls.futex_until(self._wake_words[r], ticket, until)
            if m.state[r] == BLOCKED and not m.facts[m.FATAL] and self._acquire():
                if not passed:
                    pass  # woken for nothing: the clock may have been started or stopped
                elif self._next_look() or (look and m.facts[m.WALL_START]):
                    self._assume()
                    self._core.settle()
                elif (
                    m.state[r] == BLOCKED
                    and m.facts[m.ENTRIES] == entries + 1
                    and self._slept_until() < time.monotonic_ns()
                ):
                    self._core.fail(FATAL_WALL, r)
                look, entries = self._next_look(), m.facts[m.ENTRIES]
                self._release()
            ticket = m.word[r]
        return int(m.facts[m.FATAL]) if m.state[r] == BLOCKED else 0

    def _wall_end(self, kind: int) -> None:
        """Return at the instant, and note what was wanted and what it became."""
        m, r = self._memory, self.rank
        if not m.facts[m.WALL_START]:
            return
        at, requested = self._due(self._now), self._span(self._now - self._wall_t)
        self._sleep_to(at)
        if not self._wall_from or requested < SHORTEST_NS:
            return  # none, or begun while the clock stood
        now = time.monotonic_ns()
        achieved = now - self._wall_from
        if len(m.delays[r]):
            m.delays[r][m.delays_counted[r] % len(m.delays[r])] = requested, achieved, now - at, kind
        m.delays_counted[r] += 1
        m.requested[r] += requested
        m.achieved[r] += achieved
        m.error[r] += abs(achieved - requested)
        m.off[r] += 20 * abs(achieved - requested) > requested
        m.worst[r] = max(m.worst[r], now - at)

    def _at_meeting(self, p: int) -> bool:
        m = self._memory
        return bool(m.state[p] == RUN and m.meeting[p] and m.met[p] > m.facts[m.WALL_ROUND])

    def _agreed(self) -> bool:
        """If all that live have come to the next meeting, time goes on; on hold, unslept."""
        m = self._memory
        living = [p for p in range(self.num_ranks) if m.state[p] in (RUN, BLOCKED)]
        if any(m.met[p] <= m.facts[m.WALL_ROUND] for p in living):
            return False
        here = [p for p in living if m.met[p] == m.facts[m.WALL_ROUND] + 1]
        hold = not here or m.hold[here[-1]]
        start = 0 if hold else time.monotonic_ns() - self._span(max(m.met_at[p] for p in here))
        m.facts[m.WALL_START] = start
        m.facts[m.WALL_ROUND] += 1
        return True

    def _meet(self) -> None:
        """Under the lock, settled: is a meeting complete, or has it to be left?"""
        m = self._memory
        if m.facts[m.WALL_CHANGED]:
            self._realign(m.facts[m.WALL_CHANGED])
        while m.facts[m.WALL_AHEAD] > m.facts[m.WALL_ROUND] and self._agreed():
            self._wake_all = True
        if m.facts[m.WALL_AHEAD] == m.facts[m.WALL_ROUND]:
            return
        running = [p for p in range(self.num_ranks) if m.state[p] == RUN]
        if running and all(self._at_meeting(p) for p in running):
            for p in running:
                m.meeting[p] = 0
            m.facts[m.WALL_START] = 0
            self._wake_all = True

    def _realign(self, t: int) -> None:
        """Membership has changed at time t: who was interrupted before a meeting that others were let go from
        will not come."""
        m = self._memory
        ahead = m.facts[m.WALL_ROUND] = m.facts[m.WALL_AHEAD]
        if any(m.met[p] == ahead and not m.hold[p] and m.state[p] == RUN for p in range(self.num_ranks)):
            m.facts[m.WALL_START] = time.monotonic_ns() - self._span(t)
        for p in range(self.num_ranks):
            m.met[p] = ahead
        m.facts[m.WALL_CHANGED] = 0

    def _start_clock(self, hold: bool) -> int:
        m, r = self._memory, self.rank
        hostcalls.wake_precisely()
        if not self._acquire():
            return FATAL_WALL
        m.met[r] += 1
        number, limit = m.met[r], self._deadline()
        m.met_at[r], m.meeting[r], m.hold[r] = self._now, 1, hold
        m.facts[m.WALL_AHEAD] = max(m.facts[m.WALL_AHEAD], number)
        self._release()
        while True:
            ticket = m.word[r]
            if m.facts[m.WALL_ROUND] >= number or not m.meeting[r] or m.facts[m.FATAL]:
                return int(m.facts[m.FATAL])
            hostcalls.futex_until(self._wake_words[r], ticket, limit)
            if time.monotonic_ns() >= limit and self._acquire():
                if self._at_meeting(r) and self._slept_until() < time.monotonic_ns():
                    self._core.fail(FATAL_WALL, r)
                limit = self._deadline()
                self._release()

    def _begin_measuring(self) -> None:
        self._measured_from = time.thread_time_ns()

    def _charge_measured(self) -> None:
        """What my thread worked since, times the factor."""
        ns, self._measured_from = time.thread_time_ns() - self._measured_from, 0
        self._now += ns * self.config.wall.measured_ppm // 1000

    def _wall(self, rank: int) -> tuple[Int64Array, Int64Array]:
        m = self._memory
        columns = m.delays_counted, m.requested, m.achieved, m.error, m.off, m.worst, m.moved, m.moved_ps
        count = min(m.delays_counted[rank], self.config.wall.delays)
        sums = [*(c[rank] for c in columns), m.facts[m.WALL_START]]
        return np.array(sums, dtype=np.int64), m.delays[rank][:count].copy()
