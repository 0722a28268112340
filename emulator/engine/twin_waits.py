"""Blocking and resuming in plain Python.

A wait begins with a CHECK that sees everything up to its instant; from then on each event at its rank may
decide it; it resumes at the end of the deciding instant, so every resumption is an observation.
"""

from abc import ABC, abstractmethod
from typing import Any

from emulator.engine import api
from emulator.engine.api import EngineConfig
from emulator.engine.codes import (
    BLOCKED,
    DEAD,
    EXITED,
    FATAL_LOST,
    RUN,
    W_ATOMIC,
    W_EXCHANGE,
    W_GET,
    W_OBSERVE,
    W_POLL,
    W_QUIET,
    W_READ,
    W_SCHEDULE,
    W_TEST,
    W_WAIT,
)
from emulator.engine.twin_events import S_CHECK, S_POLL, S_RESUME, S_TIMEOUT, holds, key_of
from emulator.engine.twin_memory import INF, LATE, Memory


class Waits(ABC):
    """What decides a wait. Events, failures and exchanges come from the classes built on it."""

    cfg: EngineConfig
    m: Memory
    n: int
    gets: dict[int, dict[int, int]]  # unanswered gets and atomics by rank: {sequence number: stream}
    woken: list[int]  # who resumed in this entry

    @abstractmethod
    def push(self, p: int, t: int, key: int, peer: int = 0, payload: Any = None) -> None: ...

    @abstractmethod
    def fail(self, code: int, rank: int) -> None: ...

    @abstractmethod
    def advance(self, p: int, t: int) -> None: ...

    @abstractmethod
    def start_pull(self, p: int, base: int) -> None: ...

    @abstractmethod
    def serve(
        self, p: int, port: int, kind: int, peer: int, t: int, key: int, nbytes: int, ser: int
    ) -> int: ...

    def conditions_met(self, p: int) -> int:
        m = self.m
        truth = [self.met(p, *condition) for condition in m.conditions_of(p)]
        if m.any[p]:
            return truth.index(True) if True in truth else -1
        return 0 if all(truth) else -1

    def met(self, p: int, word: int, cmp: int, value: int) -> bool:
        """Does one condition hold? Of an exchange: is it known when its last record is at p?"""
        m = self.m
        if cmp == api.HERE:
            return bool(m.records_at[value][p] < INF)
        return holds(m.words[m.word_at(p, word)], cmp, value)

    def instant(self, p: int, t: int, result: int) -> int:
        """When a wait that was found to hold at t does: the last record of an exchange may still be
        served."""
        m = self.m
        if m.wait[p] != W_WAIT:
            return t
        for at, (_, cmp, value) in enumerate(m.conditions_of(p)):
            if cmp == api.HERE and (not m.any[p] or at == result):
                t = max(t, int(m.records_at[value][p]))
        return t

    def satisfied(self, p: int) -> tuple[bool, int]:
        """(is p's wait decided by what it sees now, result)."""
        m, wait = self.m, self.m.wait[p]
        if wait in (W_WAIT, W_SCHEDULE):
            index = self.conditions_met(p)
            return index >= 0, index
        if wait == W_QUIET:
            return not m.unacked[p] and not self.gets.get(p), 0
        if wait == W_GET:
            return m.a[p] not in self.gets.get(p, ()), 0
        if wait == W_ATOMIC:
            return bool(m.done[p]), m.result[p]
        if wait == W_READ:
            return True, m.words[m.word_at(p, m.a[p])]
        if wait in (W_TEST, W_POLL):
            yes = holds(m.words[m.word_at(p, m.a[p])], m.b[p], m.c[p])
            return yes, int(yes)
        return wait == W_OBSERVE, 0

    def evaluate(self, p: int, t: int, changed: int = -1) -> None:
        """Something happened at p at t; `changed` is the word that changed, if one did."""
        m = self.m
        if m.state[p] != BLOCKED or not m.armed[p] or m.decided[p]:
            return
        yes, result = self.satisfied(p)
        if m.wait[p] == W_POLL:
            if changed >= 0 and (changed != m.a[p] or yes):
                ticks = max(1, -(-(t - m.clock[p]) // self.cfg.poll_price_ps))
                m.skipped[p] += ticks
                m.vain[p] = 0
                self.decide(p, m.clock[p] + ticks * self.cfg.poll_price_ps, 0)
        elif yes:
            self.decide(p, self.instant(p, t, result), result)

    def decide(self, p: int, t: int, result: int) -> None:
        """Resume p at the end of instant t (everything that reaches it at t comes before)."""
        m = self.m
        m.decided[p], m.result[p] = 1, result
        self.push(p, max(t, m.clock[p]), LATE | key_of(p, m.seq[p], 0, S_RESUME))

    def resume(self, p: int, t: int, result: int) -> None:
        m = self.m
        if m.wait[p] == W_SCHEDULE and result == 0 and m.step_at[p] < m.steps[p]:
            self.advance(p, t)
            return
        m.waited[p] += t - m.since[p]
        m.clock[p], m.result[p], m.state[p] = t, result, RUN
        m.wakes[p] += 1
        m.bound[p] = t + self.cfg.call_price_ps
        self.woken.append(p)

    def late(self, t: int, key: int, p: int, stage: int) -> None:
        """Observations, time-outs and resumptions: they see everything up to their instant."""
        m = self.m
        if m.state[p] != BLOCKED or m.seq[p] != (key & ~LATE) >> 18 & 0xFFFFFFFF:
            return
        if stage == S_RESUME:
            self.resume(p, t, m.result[p])
        elif m.decided[p]:
            return
        elif stage == S_CHECK:
            self.check(p, t)
        elif stage == S_TIMEOUT:
            self.resume(p, t, api.TIMEOUT)
        elif m.wait[p] == W_POLL:
            m.skipped[p] += self.cfg.poll_max_polls
            m.vain[p] += 1
            self.resume(p, t, 0)

    def check(self, p: int, t: int) -> None:
        """A wait begins."""
        m, cfg = self.m, self.cfg
        m.armed[p] = 1
        if m.wait[p] == W_EXCHANGE:
            records = int(m.records_at[m.slot[p]][p])
            if records < INF:
                self.start_pull(p, max(records, t))
            return
        yes, result = self.satisfied(p)
        if yes and (at := self.instant(p, t, result)) > t:
            self.decide(p, at, result)
        elif yes:
            self.resume(p, t, result)
        elif m.wait[p] == W_TEST:
            m.wait[p], m.clock[p] = W_POLL, t
            end = t + cfg.poll_price_ps * cfg.poll_max_polls
            self.push(p, end, LATE | key_of(p, m.seq[p], 0, S_POLL))

    def timeout_key(self, p: int, seq: int) -> int:
        return LATE | key_of(p, seq, 0, S_TIMEOUT)

    def mark_dead(self, p: int) -> None:
        m = self.m
        if m.state[p] not in (EXITED, DEAD):
            m.state[p], m.bound[p] = DEAD, INF
            if not self.cfg.keep_going:
                self.fail(FATAL_LOST, p)
