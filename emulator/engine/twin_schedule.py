"""Schedules in plain Python: instead of waking its rank, a wait that ended begins the next step.

Written as the loop it stands for; the compiled core leaves out events that nobody could tell.
"""

from emulator.engine.codes import W_WAIT
from emulator.engine.schedules import Send, Step
from emulator.engine.twin_events import BLANK, S_CHECK, Op, key_of, of_post
from emulator.engine.twin_hash import fold
from emulator.engine.twin_memory import INF, LATE
from emulator.engine.twin_posts import Posts

C_COMPUTE, C_PUT = 32, 33


def put_of(rank: int, seq: int, now: int, send: Send) -> Op:
    """The operation of a put of a schedule, posted at `now`."""
    return of_post(rank, seq, now, BLANK._replace(**send._asdict()))


class Schedules(Posts):
    """What the engine does for a rank that sleeps through a schedule."""

    def advance(self, p: int, t: int) -> None:
        """A wait of p's schedule ended at t, and it goes on: everything up to the next wait."""
        m, price = self.m, self.cfg.call_price_ps
        m.waited[p] += t - m.since[p]
        self.note(p, W_WAIT, m.since[p] - price, t, 1, 0)
        now = t
        while True:
            step, sends = m.step_of(p)
            m.step_at[p] += 1
            if step.compute_ps > 0:
                start, now = now, now + price + step.compute_ps
                m.seq[p] += 1
                self.note(p, C_COMPUTE, start, now, 0, step.compute_ps)
            for send in sends:
                now += price + m.step_ps[p]
                m.seq[p] += 1
                put = put_of(p, m.seq[p], now, send)
                self.enrol(put)
                self.push(*self.first_event(put))
                self.note(p, C_PUT, now, now, send.peer, send.nbytes, send.word if send.op else -1)
            if step.word >= 0:
                self.begin_wait(p, now + price, step)
                return

    def begin_wait(self, p: int, now: int, step: Step) -> None:
        m = self.m
        m.seq[p] += 1
        m.conditions[p, 0] = step.word, step.cmp, step.value
        m.clock[p] = m.since[p] = now
        m.armed[p] = m.decided[p] = 0
        self.push(p, now, LATE | key_of(p, m.seq[p], 0, S_CHECK))
        if m.deadline[p] < INF:
            self.push(p, max(now, m.deadline[p]), self.timeout_key(p, m.seq[p]))

    def note(self, p: int, kind: int, start: int, end: int, a: int, b: int, c: int = 0) -> None:
        """The call in p's digest, as p itself would note it."""
        m = self.m
        m.calls_0[p], m.calls_1[p] = fold((m.calls_0[p], m.calls_1[p]), kind, start, end, a, b, c)
