"""The settlement rules in plain Python: what the compiled core does, written to be read.

One heap of pending events. The earliest one, at rank p and time t, is final when t < bound[p] and, for every
running rank q, t < bound[q] + look[p], where look[p] is the least latency into p from another rank; blocked
ranks have no bound, their pending events stand for them. The compiled core settles whole windows of one rank
instead; the outcome is the same because events at one rank are processed in key order either way.

An event is (time, key, rank where it happens, peer, payload); key orders (rank, sequence, sub-index, stage).
"""

import heapq
from typing import Any

from emulator.engine import api
from emulator.engine.api import EngineConfig
from emulator.engine.codes import BLOCKED, FATAL_DEADLOCK, FATAL_LIVELOCK, FATAL_LOG, FATAL_NONE, W_POLL
from emulator.engine.config import wrap
from emulator.engine.twin_events import (
    OP_GET,
    S_ACK,
    S_ATOMIC,
    S_BULK,
    S_DELIVER,
    S_EGRESS,
    S_INGRESS,
    S_POLL,
    S_PULL,
    S_PULL_IN,
    S_RESPONSE,
    S_ROW,
    Event,
    Op,
    occupy_ps,
    staged,
)
from emulator.engine.twin_exchange import Exchanges
from emulator.engine.twin_hash import fold
from emulator.engine.twin_memory import INF, Memory


class Core(Exchanges):
    """Settlement over the shared memory `m`; the caller holds the lock. `woken` collects who resumed."""

    def __init__(self, cfg: EngineConfig, memory: Memory) -> None:
        self.cfg, self.m, self.n = cfg, memory, cfg.num_ranks
        self.heap: list[Event] = []
        self.gets: dict[int, set[int]] = {}  # open gets by rank
        self.live = 0  # pending events that are not the end of a poll
        self.woken: list[int] = []

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
            if low == INF and not self.live and self.polling_in_vain():
                self.fail(FATAL_LIVELOCK, p)
                break
            event = heapq.heappop(self.heap)
            self.live -= key & 63 != S_POLL
            m.facts[m.EVENTS] += 1
            self.process(event)
        if not self.heap and not m.facts[m.FATAL] and min(m.bound) == INF:
            for p in range(self.n):
                self.settle_rows(p, INF - 1, 0)  # of exchanges that never complete
            if BLOCKED in m.state.tolist():
                self.fail(FATAL_DEADLOCK, m.state.tolist().index(BLOCKED))

    def final(self, t: int, p: int, low: int) -> bool:
        return bool(t < self.m.bound[p] and t < low + self.m.look[p])

    def polling_in_vain(self) -> bool:
        """Nobody runs and only ends of polls are pending: has every polling rank polled in vain long
        enough?"""
        m = self.m
        polling = [p for p in range(self.n) if m.state[p] == BLOCKED and m.wait[p] == W_POLL]
        return all(m.vain[p] >= self.cfg.livelock_polls for p in polling)

    def fail(self, code: int, rank: int) -> None:
        m = self.m
        if m.facts[m.FATAL] == FATAL_NONE:
            m.facts[m.CULPRIT], m.facts[m.FATAL] = rank, code

    def process(self, event: Event) -> None:
        t, key, p, peer, payload = event
        stage = key & 63
        if stage == S_EGRESS:
            self.egress(t, key, p, payload)
        elif stage == S_INGRESS:
            self.ingress(t, key, p, peer, payload)
        elif stage == S_DELIVER:
            self.deliver(t, key, p, payload)
        elif stage == S_ACK:
            self.m.unacked[p] -= 1
            self.evaluate(p, t)
        elif stage == S_ATOMIC:
            self.atomic(t, key, p, payload)
        elif stage == S_RESPONSE:
            self.m.done[p], self.m.result[p] = 1, payload
            self.evaluate(p, t)
        elif stage == S_ROW:
            self.row(t, key, p, payload)
        elif stage == S_BULK:
            self.bulk(t, key, p, payload)
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

    def egress(self, t: int, key: int, p: int, op: Op) -> None:
        cfg, get = self.cfg, op.kind == OP_GET
        to = op.poster if get else op.peer
        k = self.m.link(p, to)
        ser = occupy_ps(op.nbytes, (cfg.read_bytes_per_s if get else cfg.write_bytes_per_s)[k])
        latency = (cfg.response_latency_ps if get else cfg.put_latency_ps)[k]
        if get and op.ref:
            self.append_log(p, op, t, key, api.LOG_SNAPSHOT)
        port = api.PORT_EGRESS if k else api.PORT_LOCAL
        start = self.serve(p, port, api.KIND_GET if get else api.KIND_PUT, to, t, key, op.nbytes, ser)
        self.m.bytes[k][op.poster] += op.nbytes
        if k:
            self.push(to, start + latency, staged(key, S_INGRESS), p, op)
        else:
            self.push(p, start + ser + latency, staged(key, S_DELIVER), p, op)

    def ingress(self, t: int, key: int, p: int, peer: int, op: Op) -> None:
        cfg, get, k = self.cfg, op.kind == OP_GET, self.m.link(p, peer)
        ser = occupy_ps(op.nbytes, (cfg.read_bytes_per_s if get else cfg.write_bytes_per_s)[k])
        self.settle_rows(p, t, key)
        kind = api.KIND_GET if get else api.KIND_PUT
        start = self.serve(p, api.PORT_INGRESS, kind, peer, t, key, op.nbytes, ser)
        self.push(p, start + ser, staged(key, S_DELIVER), peer, op)

    def append_log(self, p: int, op: Op, t: int, key: int, kind: int) -> None:
        assert op.ref is not None
        if not self.m.append_log(p, (t, kind, op.poster, *op.ref, key, 0, 0)):
            self.fail(FATAL_LOG, p)

    def deliver(self, t: int, key: int, p: int, op: Op) -> None:
        if op.kind == OP_GET:
            self.gets[p].discard(op.seq)
            self.evaluate(p, t)
            return
        if op.ref:
            self.append_log(p, op, t, key, api.LOG_PUT)
        ack = self.cfg.ack_latency_ps[self.m.link(p, op.poster)]
        self.push(op.poster, t + ack, staged(key, S_ACK), p)
        if op.op:
            words, i = self.m.words, self.m.word_at(p, op.word)
            words[i] = op.value if op.op == api.SET else wrap(words[i] + op.value)
            self.evaluate(p, t, op.word)

    def atomic(self, t: int, key: int, p: int, op: Op) -> None:
        words, i = self.m.words, self.m.word_at(p, op.word)
        old = words[i]
        if op.op == api.ATOMIC_ADD:
            words[i] = wrap(old + op.value)
        elif op.op == api.SWAP or old == op.compare:
            words[i] = op.value
        latency = self.cfg.response_latency_ps[self.m.link(p, op.poster)]
        self.push(op.poster, t + latency, staged(key, S_RESPONSE), p, old)
        if words[i] != old:
            self.evaluate(p, t, op.word)
