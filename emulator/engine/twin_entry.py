"""One entry of a process into the Python twin: lock, hand over posts, settle, release, wake, sleep."""

import errno
import pickle
from typing import Any

import numpy as np

from emulator.engine import hostcalls
from emulator.engine.api import (
    EngineConfig,
)
from emulator.engine.codes import (
    BLOCKED,
    EXITED,
    FATAL_DIRTY,
    FATAL_NODES,
    FATAL_NONE,
    FATAL_WALL,
    INTERRUPTED,
    RUN,
    W_TEST,
)
from emulator.engine.twin_core import Core
from emulator.engine.twin_events import S_CHECK, Op, key_of
from emulator.engine.twin_memory import INF, LATE, Memory
from emulator.engine.twin_wall import TwinWall
from emulator.errors import UsageError

Post = tuple[int, int, int, int, Any]  # rank where it happens, time, key, peer, payload


def mutexes(base: int, memory: Memory) -> list[int]:
    """Addresses of the apply locks by rank, then of the engine's lock."""
    return [base + memory.size + 64 * p for p in range(memory.n + 1)]


class TwinEntry(TwinWall):
    """The part of `TwinEngine` that other processes see. `core_class` lets tests break a rule."""

    core_class = Core

    def __init__(self, buf: Any, cfg: EngineConfig, rank: int) -> None:
        super().__init__(cfg, rank)
        if not hostcalls.FUTEX_NUMBER:
            raise UsageError("the python engine does not know this machine's futex system call")
        self._memory = Memory(cfg, buf)
        self._core = self.core_class(cfg, self._memory)
        base = hostcalls.address_of(buf)
        *self._log_locks, self._lock = mutexes(base, self._memory)
        first_word = hostcalls.address_of(self._memory.word)
        self._wake_words = [first_word + 8 * p for p in range(cfg.num_ranks)]
        self._now, self._seq, self._calls = 0, 0, (0, 0)
        self._posts: list[Post] = []
        self._retired: list[int] = []
        self._seen_ps = 0  # time of my last observation
        self._result = self._slot = self._records = 0
        self._blob_seen = 0
        self._wake_all = False
        self._jitter: Any = None

    @property
    def now_ps(self) -> int:
        return self._now

    def _acquire(self) -> bool:
        m = self._memory
        code = hostcalls.lock_mutex(self._lock, self.config.wall_deadline_s)
        if code == errno.ETIMEDOUT:
            self._core.fail(FATAL_WALL, self.rank)
            return False
        dead, m.facts[m.OWNER] = m.facts[m.OWNER], self.rank
        core = self._core
        core.woken.clear()
        if m.facts[m.BLOB] != self._blob_seen:
            which = m.facts[m.BLOB] & 1
            core.restore(pickle.loads(m.blob[which]))
        if code == errno.EOWNERDEAD:
            self._wake_all = True  # the dead one may have decided waits and not woken anybody
            if m.facts[m.DIRTY]:
                core.fail(FATAL_DIRTY, dead)
            elif dead >= 0:  # else it died before it said who it is
                core.mark_dead(dead)
        m.facts[m.DIRTY] = 1
        m.facts[m.ENTRIES] += 1
        return True

    def _release(self, wake_all: bool = False) -> None:
        m, core = self._memory, self._core
        if m.facts[m.WALL_AHEAD] != m.facts[m.WALL_ROUND]:
            self._meet()
        blob = pickle.dumps(core.state(), protocol=5)
        if len(blob) > m.blob_size:
            core.fail(FATAL_NODES, self.rank)
        else:
            self._blob_seen = m.facts[m.BLOB] + 1
            m.blob[self._blob_seen & 1][: len(blob)] = np.frombuffer(blob, np.uint8)
            m.facts[m.BLOB] = self._blob_seen
        wake_all = wake_all or self._wake_all or m.facts[m.FATAL] != FATAL_NONE
        self._wake_all = False
        woken = list(range(self.num_ranks)) if wake_all else core.woken[:]
        for p in woken:
            m.word[p] = m.word[p] + 1 & 0x7FFFFFFF
        m.facts[m.DIRTY] = 0
        m.facts[m.OWNER] = -1
        hostcalls.unlock_mutex(self._lock)
        for p in woken:
            if p != self.rank or wake_all:
                hostcalls.futex_wake(self._wake_words[p])

    def _enter(self, wait: int, timeout: int, bound: int) -> int:
        """Hand over posts, publish the bound or block, settle, wake, sleep. Returns 0 or a FATAL_ code."""
        m, core, r = self._memory, self._core, self.rank
        self._nap()
        if self._paced and (wait or bound >= INF):
            self._wall_begin()
        if not self._acquire():
            return FATAL_WALL
        if m.facts[m.FATAL]:
            self._release()
            return int(m.facts[m.FATAL])
        if self._posts:
            m.vain[r] = 0
        if self._paced and bound < INF:
            bound += self._catch_up()
        self._hand_over()
        self._nap()
        if wait:
            self._block_at(wait, timeout)
        else:
            m.state[r] = EXITED if bound >= INF else RUN
            m.bound[r] = bound
        m.calls_0[r], m.calls_1[r] = self._calls
        core.settle()
        self._release()
        if not wait:
            return 0
        sleep = self._wall_sleep if self._paced else self._sleep_until_woken
        code = sleep(m.word[r])
        if not code:
            self._now, self._result = m.clock[r], m.result[r]
            self._seen_ps = self._now
            self._records, self._slot = m.records[r], m.slot[r]
            if self._paced:
                self._wall_end(wait)
            if m.interrupted[r]:
                m.interrupted[r] = 0
                return INTERRUPTED
        return code

    def _hand_over(self) -> None:
        for p, t, key, peer, payload in self._posts:
            if isinstance(payload, Op):
                self._core.enrol(payload)
            self._core.push(p, t, key, peer, payload)
        self._posts.clear()
        for stream in self._retired:
            self._core.retire(self.rank, stream)
        self._retired.clear()

    def _block_at(self, wait: int, timeout: int) -> None:
        m, r = self._memory, self.rank
        if wait != W_TEST:
            m.vain[r] = 0
        m.state[r], m.wait[r], m.seq[r] = BLOCKED, wait, self._seq
        m.clock[r] = m.since[r] = self._now
        m.armed[r] = m.decided[r] = m.done[r] = 0
        m.bound[r] = INF
        self._core.push(r, self._now, LATE | key_of(r, self._seq, 0, S_CHECK))
        if timeout >= 0:
            self._core.push(r, self._now + timeout, self._core.timeout_key(r, self._seq))

    def _sleep_until_woken(self, ticket: int) -> int:
        """Asleep until decided. The host time limit ends the run when no rank entered for so long."""
        m, r = self._memory, self.rank
        seconds = self.config.wall_deadline_s
        limit = hostcalls.Timespec(int(seconds), int(seconds % 1 * 1e9))
        entries = m.facts[m.ENTRIES]
        while m.state[r] == BLOCKED and not m.facts[m.FATAL]:
            if hostcalls.futex_wait(self._wake_words[r], ticket, limit):
                seen = m.facts[m.ENTRIES]
                if seen == entries and self._acquire():
                    if m.state[r] == BLOCKED:
                        self._core.fail(FATAL_WALL, r)
                    self._release()
                entries = seen
            ticket = m.word[r]
        return int(m.facts[m.FATAL]) if m.state[r] == BLOCKED else 0

    def _nap(self) -> None:
        if self._jitter is not None:
            rng, probability, max_us = self._jitter
            if rng.random() < probability:
                hostcalls.nap(int(rng.integers(1, max_us + 1)))

    def set_jitter(self, probability: float, max_us: int, seed: int) -> None:
        self._jitter = (np.random.default_rng(seed), probability, max(1, max_us))
