"""Looking into the Python twin: apply logs under their own locks, counters, who waits for whom."""

import errno
from typing import Any

import numpy as np

from emulator.engine import hostcalls
from emulator.engine.api import (
    Int64Array,
    Statistics,
)
from emulator.engine.codes import (
    BLOCKED,
    DEAD,
    FATAL_ABORT,
    RUN,
    W_EXCHANGE,
    W_SCHEDULE,
    W_WAIT,
)
from emulator.engine.primitives import Waiter
from emulator.engine.reports import make_waiter
from emulator.engine.twin_entry import TwinEntry
from emulator.engine.twin_memory import INF
from emulator.errors import InternalError, UsageError, WallDeadlineError


class TwinInspect(TwinEntry):
    """Apply logs, ends of a run, statistics."""

    def log_lock(self, target: int) -> None:
        self._rank_arg("log_lock", target)
        if hostcalls.lock_mutex(self._log_locks[target], self.config.wall_deadline_s) == errno.ETIMEDOUT:
            raise WallDeadlineError(f"the apply lock of rank {target} was not released for too long")

    def log_unlock(self, target: int) -> None:
        self._rank_arg("log_unlock", target)
        if hostcalls.unlock_mutex(self._log_locks[target]):
            raise InternalError(f"rank {self.rank} does not hold the apply lock of rank {target}")

    def log_view(self, target: int) -> np.ndarray[Any, np.dtype[Any]]:
        self._rank_arg("log_view", target)
        m = self._memory
        which = np.arange(m.log_tail[target], m.log_head[target]) % self.config.log_entries
        entries: np.ndarray[Any, np.dtype[Any]] = m.logs[target][which]
        return entries

    def log_advance(self, target: int, count: int) -> None:
        self._rank_arg("log_advance", target)
        m = self._memory
        if not 0 <= count <= m.log_head[target] - m.log_tail[target]:
            raise UsageError(f"log_advance: {count} is more than there is", rank=self.rank)
        m.log_tail[target] += count

    # ---- the end, and looking in
    def _mark_dead(self, rank: int) -> None:
        if not self._acquire():
            raise WallDeadlineError("the engine's lock was not released for too long")
        self._core.mark_dead(rank)
        self._core.settle()
        self._release(wake_all=True)

    def abort(self, reason: str) -> None:
        if not self._acquire():
            return
        m = self._memory
        text = reason.encode()[:200]
        if not m.facts[m.FATAL]:
            memoryview(m.facts).cast("B")[8 * m.REASON : 8 * m.REASON + len(text)] = text
        self._core.fail(FATAL_ABORT, self.rank)
        self._release(wake_all=True)

    def subscribe(self) -> None:
        self._memory.subscribed[self.rank] = 1

    def lost(self) -> Int64Array:
        return np.array(self._memory.lost, dtype=np.int64)

    def dead_ranks(self) -> list[int]:
        return [p for p, state in enumerate(self._memory.state) if state == DEAD]

    def _running(self) -> list[int]:
        return [p for p, state in enumerate(self._memory.state) if state == RUN]

    def _culprit(self) -> int:
        return int(self._memory.facts[self._memory.CULPRIT])

    def _reason(self) -> str:
        at = 8 * self._memory.REASON
        raw = bytes(memoryview(self._memory.facts).cast("B")[at : at + 200])
        return raw.split(b"\0")[0].decode(errors="replace")

    def _hashes(self, rank: int) -> Int64Array:
        m = self._memory
        ports = [(i, h0[rank], h1[rank]) for i, (h0, h1) in enumerate(m.hash)]
        first = [h for _, *port in ports[:3] for h in port]
        used = [x for port in ports[3:] if port[1] or port[2] for x in port]
        return np.array([*first, m.calls_0[rank], m.calls_1[rank], *used], dtype=np.int64)

    def _waiters(self) -> list[Waiter]:
        m = self._memory
        waiters = []
        for p in range(self.num_ranks):
            if m.state[p] != BLOCKED:
                continue
            missing: list[int] = []
            group: tuple[int, int] | None = None
            if m.wait[p] == W_EXCHANGE:
                channel = m.slot[p] // 2
                ranks = m.group(channel, p)
                missing = sorted(ranks[m.posted_at[m.slot[p]][ranks] == INF].tolist())
                if m.leader[channel * m.n + p]:
                    group = m.rounds[p * self.config.channels + channel], len(ranks)
            conditions = m.conditions_of(p) if m.wait[p] in (W_WAIT, W_SCHEDULE) else []
            step = m.first_step[p] + m.step_at[p]
            args = (step if m.wait[p] == W_SCHEDULE else m.a[p], m.b[p], m.c[p])
            what = (p, m.wait[p], args, m.since[p], conditions, bool(m.any[p]), missing)
            waiters.append(make_waiter(*what, inbox_word=self.inbox_word, group=group))
        return waiters

    def statistics(self) -> Statistics:
        m = self._memory
        return Statistics(
            events=m.facts[m.EVENTS],
            entries=m.facts[m.ENTRIES],
            wake_ups=np.array(m.wakes),
            polls_skipped=np.array(m.skipped),
            busy_ps=np.array(m.busy[:3]).T.copy(),
            all_busy_ps=np.array(m.busy).T.copy(),
            bytes_by_class=np.array(m.bytes).T.copy(),
            wait_ps=np.array(m.waited),
        )

    def set_trace(self, fd: int) -> None:
        self._memory.trace_fd = fd

    def drain(self) -> None:
        if self._acquire():
            if self._memory.trace_fd >= 0:
                self._memory.flush_trace()
            self._release()
