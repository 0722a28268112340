"""The memory model: which outcomes may a litmus program show? A small pure program that enumerates them.

Each operation becomes events; an event may happen once no event it waits for is outstanding. Which ones it
waits for is fixed by the program alone and worked out once (`model_events.waits_for`). A depth-first search
over states (program counters, registers, memory, outstanding events, mail) does the rest. Left out: torn
values, reuse of a source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from memsem.litmus_ops import Barrier, Fetch, Get, Litmus, Load, Local, Op, Put, Quiet, Recv, Reset, Wait
from memsem.model_events import Event, events_of, waits_for

UNSET = -1
Outcomes = frozenset[tuple[tuple[str, int], ...]]


class State(NamedTuple):
    """Where a run stands. `pending` is a set of event numbers as bits; `mail` one queue a rank."""

    counters: tuple[int, ...]
    registers: tuple[int, ...]
    memory: tuple[int, ...]
    pending: int
    mail: tuple[tuple[tuple[int, int], ...], ...]


def outcomes(litmus: Litmus, sequential: bool = False) -> Outcomes:
    """All outcomes the model allows: registers, final values and "stuck", as sorted pairs.

    Args:
        sequential: only those of interleavings of whole operations (sequentially consistent ones).
    """
    return _Search(litmus, sequential).run()


def shows(litmus: Litmus, found: Outcomes) -> bool:
    """Does one of the outcomes show what the row asks about?"""
    return any(litmus.outcome(dict(pairs)) for pairs in found)


def verdict(litmus: Litmus) -> str:
    """What the model says of the row's outcome: weak, allowed or forbidden."""
    if not shows(litmus, outcomes(litmus)):
        return "forbidden"
    return "allowed" if shows(litmus, outcomes(litmus, sequential=True)) else "weak"


class _Search:
    """Fires every enabled event and step from every reachable state, each state once."""

    def __init__(self, litmus: Litmus, sequential: bool) -> None:
        self.litmus = litmus
        self.programs = list(litmus.threads.values())
        self.names = list(litmus.threads)
        self.events = events_of(litmus)
        self.places = {name: i for i, name in enumerate(litmus.homes)}
        self.ranks = {name: i for i, name in enumerate(litmus.ranks)}
        self.registers = {name: i for i, name in enumerate(sorted(_registers(litmus, self.events)))}
        self.before = [self._bits(e, i) for i, e in enumerate(self.events)]
        self.mine = [self._mask(lambda e: e.thread == t) for t in range(len(self.programs))]  # noqa: B023
        holds = self._mask(lambda e: sequential or _blocks(e.op))
        self.holds = [mask & holds for mask in self.mine]

    def _mask(self, chosen: Callable[[Event], bool]) -> int:
        return sum(1 << i for i, event in enumerate(self.events) if chosen(event))

    def _bits(self, later: Event, number: int) -> int:
        pairs = enumerate(self.events[:number])
        return sum(1 << i for i, e in pairs if e.thread == later.thread and waits_for(later, e))

    def run(self) -> Outcomes:
        start = State(
            (0,) * len(self.programs),
            (UNSET,) * len(self.registers),
            (0,) * len(self.places),
            0,
            ((),) * len(self.ranks),
        )
        seen, stack, found = {start}, [start], set()
        while stack:
            state = stack.pop()
            following = [*self._happen(state), *self._advance(state)]
            if not following:
                found.add(self._outcome(state))
            for new in following:
                if new not in seen:
                    seen.add(new)
                    stack.append(new)
        return frozenset(found)

    def _outcome(self, state: State) -> tuple[tuple[str, int], ...]:
        ended = all(c == len(p) for c, p in zip(state.counters, self.programs, strict=True))
        pairs = {name: state.registers[i] for name, i in self.registers.items()}
        pairs |= {name: state.memory[i] for name, i in self.places.items()}
        return tuple(sorted({**pairs, "stuck": int(not ended)}.items()))

    # --- events ---

    def _happen(self, state: State) -> Iterator[State]:
        for number, event in enumerate(self.events):
            if state.pending >> number & 1 and not state.pending & self.before[number]:
                yield self._effect(state._replace(pending=state.pending & ~(1 << number)), event)

    def _effect(self, state: State, event: Event) -> State:
        if event.kind == "arrive":
            return self._deliver(state, event)
        if event.kind == "tell":
            told = sum(state.registers[self.registers[e.name]] != UNSET for e in self._tells(event.thread))
            return self._set(state, event.name, told)
        old = state.memory[self.places[event.name]]
        if event.kind == "sample":
            assert isinstance(event.op, Get)
            return self._set(state, event.op.reg, old)
        if isinstance(event.op, Fetch):
            state = self._set(state, event.op.reg, old)
        return self._store(state, event.name, _new_value(event, old))

    def _tells(self, thread: int) -> list[Event]:
        return [e for e in self.events if e.thread == thread and e.kind == "tell"]

    def _deliver(self, state: State, event: Event) -> State:
        rank = self.ranks[event.home]
        return self._mail(state, rank, (*state.mail[rank], (event.thread, event.value)))

    # --- steps of threads ---

    def _advance(self, state: State) -> Iterator[State]:
        meeting = [t for t, p in enumerate(self.programs) if isinstance(self._next(state, t), Barrier)]
        if len(meeting) == len(self.programs) and not state.pending:
            yield state._replace(counters=tuple(c + 1 for c in state.counters))
        for thread in range(len(self.programs)):
            if not state.pending & self.holds[thread]:
                yield from self._step(state, thread)

    def _next(self, state: State, thread: int) -> Op | None:
        program, counter = self.programs[thread], state.counters[thread]
        return program[counter] if counter < len(program) else None

    def _step(self, state: State, thread: int) -> Iterator[State]:
        op = self._next(state, thread)
        if op is None or isinstance(op, Barrier) or not self._may_step(state, thread, op):
            return
        counter = state.counters[thread]
        issued = [i for i, e in enumerate(self.events) if e.thread == thread and e.step == counter]
        counters = tuple(c + (t == thread) for t, c in enumerate(state.counters))
        state = state._replace(counters=counters, pending=state.pending | sum(1 << i for i in issued))
        state = self._do(state, thread, op)
        while isinstance(after := self._next(state, thread), Local):  # shows the observation just made
            counters = tuple(c + (t == thread) for t, c in enumerate(state.counters))
            state = self._set(state._replace(counters=counters), after.reg, self._value(state, after.var))
        yield state

    def _may_step(self, state: State, thread: int, op: Op) -> bool:
        if isinstance(op, Quiet):
            return not state.pending & self.mine[thread]
        if isinstance(op, Wait):
            value = self._value(state, op.signal)
            return value == op.value if op.how == "eq" else value >= op.value
        if isinstance(op, Recv):
            return self._first(state, thread, op) is not None
        return True

    def _do(self, state: State, thread: int, op: Op) -> State:
        if isinstance(op, Load | Local):
            return self._set(state, op.reg, self._value(state, op.var))
        if isinstance(op, Reset):
            return self._store(state, op.signal, 0)
        if isinstance(op, Recv):
            first = self._first(state, thread, op)
            assert first is not None
            rank = self.ranks[self.names[thread]]
            box = state.mail[rank]
            state = self._set(state, op.reg, box[first][1])
            return self._mail(state, rank, box[:first] + box[first + 1 :])
        return state

    def _first(self, state: State, thread: int, op: Recv) -> int | None:
        source = None if op.source is None else self.names.index(op.source)
        box = state.mail[self.ranks[self.names[thread]]]
        return next((i for i, (sender, _) in enumerate(box) if source in (None, sender)), None)

    # --- pieces of a state ---

    def _value(self, state: State, name: str) -> int:
        return state.memory[self.places[name]]

    def _store(self, state: State, name: str, value: int) -> State:
        return state._replace(memory=_changed(state.memory, self.places[name], value))

    def _set(self, state: State, register: str, value: int) -> State:
        return state._replace(registers=_changed(state.registers, self.registers[register], value))

    def _mail(self, state: State, rank: int, box: tuple[tuple[int, int], ...]) -> State:
        return state._replace(mail=state.mail[:rank] + (box,) + state.mail[rank + 1 :])


def _registers(litmus: Litmus, events: list[Event]) -> set[str]:
    named = {op.reg for ops in litmus.threads.values() for op in ops if isinstance(op, Get | Fetch)}
    named |= {op.reg for ops in litmus.threads.values() for op in ops if isinstance(op, Load | Local | Recv)}
    return named | {e.name for e in events if e.kind == "tell"}


def _blocks(op: Op) -> bool:
    return isinstance(op, Fetch) or (isinstance(op, Get) and op.blocking)


def _new_value(event: Event, old: int) -> int:
    op = event.op
    if isinstance(op, Fetch):
        return old + op.operand if op.op == "add" else (op.operand if old == op.compare else old)
    added = isinstance(op, Put) and event.kind == "signal" and op.signal is not None and op.signal[1] == "add"
    return old + event.value if added else event.value


def _changed(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return values[:index] + (value,) + values[index + 1 :]
