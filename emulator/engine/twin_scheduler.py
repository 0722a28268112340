"""Handing a schedule over in the Python twin: what comes before its first wait and after its last one is done
here, what lies between goes into the rank's program (`twin_schedule` carries it out)."""

from abc import abstractmethod
from typing import Any

import numpy as np

from emulator.engine.codes import W_SCHEDULE, W_WAIT
from emulator.engine.schedules import SEND_DTYPE, STEP_DTYPE, Send, Sends, Step, Steps
from emulator.engine.twin_events import Op
from emulator.engine.twin_inspect import TwinInspect
from emulator.engine.twin_memory import INF
from emulator.engine.twin_schedule import C_PUT, put_of


class TwinScheduler(TwinInspect):
    """Part of `TwinEngine`, which has the calls of one step."""

    _calls: Any

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _note(self, kind: int, start: int, a: int, b: int, c: int) -> None: ...

    @abstractmethod
    def _issue(self, op: Op) -> None: ...

    def _schedule(self, steps: Steps, sends: Sends, step_ps: int, timeout_ps: int) -> int:
        self._explain_steps(steps, sends)
        rows, puts = [Step(*row) for row in steps.tolist()], [Send(*row) for row in sends.tolist()]
        deadline = INF if timeout_ps < 0 else self._now + timeout_ps
        at = 0
        while at < len(rows):
            step = rows[at]
            self._done = at
            self._do_step(step, puts[step.first : step.first + step.count], step_ps)
            if step.word >= 0:
                more = self._load(steps, sends, at + 1)
                code = self._sleep_through(step, at, step_ps, deadline)
                self._done = at + self._memory.step_at[self.rank]
                if code or self._result < 0:
                    return code
                at += more
            at += 1
        self._done = len(rows)
        return 0

    def _do_step(self, step: Step, puts: list[Send], step_ps: int) -> None:
        if step.compute_ps > 0:
            self._compute(step.compute_ps, 0, False)
        for send in puts:
            self._begin()
            self._now += step_ps
            self._issue(put_of(self.rank, self._seq, self._now, send))
            self._note(C_PUT, self._now, send.peer, send.nbytes, send.word if send.op else -1)

    def _load(self, steps: Steps, sends: Sends, at: int) -> int:
        """Copy steps from number `at` on into my program, as many as there is room for and up to a wait;
        returns how many."""
        m, r = self._memory, self.rank
        later, puts = steps[at:], np.cumsum(steps["count"][at:])
        sizes = STEP_DTYPE.itemsize * (1 + np.arange(len(later))) + SEND_DTYPE.itemsize * puts
        ends = np.flatnonzero((sizes <= self.config.schedule_bytes) & (later["word"] >= 0))
        m.steps[r] = count = int(ends[-1]) + 1 if len(ends) else 0
        my_steps, my_sends = m.program(r)
        my_steps[:] = later[:count]
        my_steps["first"] = puts[:count] - my_steps["count"]
        for row, mine in zip(later[:count], my_steps, strict=True):
            there = sends[row["first"] : row["first"] + row["count"]]
            my_sends[mine["first"] : mine["first"] + mine["count"]] = there
        return count

    def _sleep_through(self, step: Step, at: int, step_ps: int, deadline: int) -> int:
        """Step `at` waits, and the steps loaded after it are carried out."""
        m, r = self._memory, self.rank
        self._begin()
        m.conditions[r, 0] = step.word, step.cmp, step.value
        m.num_conditions[r], m.any[r], m.step_at[r], m.first_step[r] = 1, 0, 0, at
        m.step_ps[r], m.deadline[r] = step_ps, deadline
        timeout = max(0, deadline - self._now) if deadline < INF else -1
        code = self._enter(W_SCHEDULE, timeout, 0)
        self._seq = m.seq[r]
        if not code:
            self._calls = m.calls_0[r], m.calls_1[r]
            self._note(W_WAIT, m.since[r] - self.config.call_price_ps, 1, 0, self._result)
        return code
