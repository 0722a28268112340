"""The settlement rules in plain Python: what the compiled core does, written to be read.

One heap of pending events. The earliest one, at rank p and time t, is final when t < bound[p] and, for every
running rank q, t < bound[q] + look[p], where look[p] is the least latency into p from another rank; blocked
ranks have no bound, their pending events stand for them. The compiled core settles whole windows of one rank
instead; the outcome is the same because events at one rank are processed in key order either way.

An event is (time, key, rank where it happens, peer, payload); key orders (rank, sequence, sub-index, stage).
"""

import heapq
from typing import Any, NamedTuple

import numpy as np

from emulator.engine import api
from emulator.engine.api import EngineConfig, LogRef
from emulator.engine.codes import (
    BLOCKED,
    DEAD,
    EXITED,
    FATAL_DEADLOCK,
    FATAL_LIVELOCK,
    FATAL_LOG,
    FATAL_LOST,
    FATAL_NONE,
    FATAL_REUSE,
    RUN,
    W_ATOMIC,
    W_EXCHANGE,
    W_GET,
    W_OBSERVE,
    W_POLL,
    W_QUIET,
    W_READ,
    W_TEST,
    W_WAIT,
)
from emulator.engine.config import wrap
from emulator.engine.twin_memory import INF, LATE, Memory

(S_ROW, S_EGRESS, S_INGRESS, S_DELIVER, S_ACK, S_ATOMIC, S_RESPONSE, S_PULL, S_PULL_IN, S_BULK) = range(1, 11)
S_CHECK, S_TIMEOUT, S_POLL, S_RESUME = range(11, 15)
OP_PUT, OP_GET, OP_ATOMIC = range(3)
MASK = (1 << 64) - 1
FIELD_PRIMES = (
    0x9E3779B97F4A7C15,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
    0xE7037ED1A0B428DB,
)
CHAIN_PRIMES = (0x5851F42D4C957F2D, 0x2545F4914F6CDD1D)
GOLDEN = 0x9E3779B97F4A7C15
Event = tuple[int, int, int, int, Any]


class Op(NamedTuple):
    """A put, get or atomic under way."""

    kind: int
    poster: int
    peer: int
    nbytes: int
    seq: int
    ref: LogRef | None
    op: int = 0
    word: int = 0
    value: int = 0
    compare: int = 0


def key_of(rank: int, seq: int, sub: int, stage: int) -> int:
    return rank << 50 | seq << 18 | sub << 6 | stage


def staged(key: int, stage: int) -> int:
    return key & ~63 | stage


def occupy_ps(nbytes: int, bytes_per_s: int) -> int:
    """How long bytes occupy a port: ceil(bytes * 10**12 / bytes_per_s)."""
    return -(-nbytes * 10**12 // bytes_per_s)


def mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def fold(h: tuple[int, int], *fields: int) -> tuple[int, int]:
    """Add a record of six numbers to a running 128-bit hash (two polynomials modulo 2**64)."""
    v = sum(a * k for a, k in zip(fields, FIELD_PRIMES, strict=True)) & MASK
    return (
        wrap((h[0] * CHAIN_PRIMES[0] + mix(v)) & MASK),
        wrap((h[1] * CHAIN_PRIMES[1] + mix((v + GOLDEN) & MASK)) & MASK),
    )


def holds(a: int, cmp: int, b: int) -> bool:
    return (a == b, a != b, a > b, a >= b, a < b, a <= b)[cmp]


class Core:
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
        if not self.m.append_log(p, (t, kind, op.poster, *op.ref, key)):
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

    # ---- waits
    def conditions_met(self, p: int) -> int:
        m = self.m
        truth = [holds(m.words[m.word_at(p, w)], cmp, v) for w, cmp, v in m.conditions_of(p)]
        if m.any[p]:
            return truth.index(True) if True in truth else -1
        return 0 if all(truth) else -1

    def satisfied(self, p: int) -> tuple[bool, int]:
        """(is p's wait decided by what it sees now, result)."""
        m, wait = self.m, self.m.wait[p]
        if wait == W_WAIT:
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
            self.decide(p, t, result)

    def decide(self, p: int, t: int, result: int) -> None:
        """Resume p at the end of instant t (everything that reaches it at t comes before)."""
        m = self.m
        m.decided[p], m.result[p] = 1, result
        self.push(p, max(t, m.clock[p]), LATE | key_of(p, m.seq[p], 0, S_RESUME))

    def resume(self, p: int, t: int, result: int) -> None:
        m = self.m
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
        if yes:
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

    # ---- exchanges
    def row(self, t: int, key: int, p: int, slot: int) -> None:
        """p's metadata records leave, one after the other, as one reservation."""
        m, cfg, n = self.m, self.cfg, self.n
        meta = int(m.meta[slot][p])
        ser = np.array([occupy_ps(meta, b) for b in cfg.write_bytes_per_s], dtype=np.int64)
        m.sers[slot][p] = ser
        start = max(t, m.free[api.PORT_EGRESS][p])
        m.keys[slot][p], m.posted_at[slot][p] = key, start
        if n > 1:
            arrivals = m.arrivals_of(slot, p)
            np.minimum(m.low[slot], arrivals, out=m.low[slot])
            classes = np.bincount(m.classes[p], minlength=4)
            classes[0] = 0
            total = int(classes @ ser)
            self.serve(p, api.PORT_EGRESS, api.KIND_META, -1, t, key, meta * (n - 1), total)
            for k in range(1, 4):
                m.bytes[k][p] += int(classes[k]) * meta
        own = self.serve(p, api.PORT_LOCAL, api.KIND_META, p, t, key, meta, int(ser[0]))
        m.bytes[0][p] += meta
        m.self_at[slot][p] = own + int(ser[0]) + cfg.put_latency_ps[0]
        if not m.posted[slot]:
            m.rowers[slot] = 0
        m.rowers[slot] += int(m.has_rows[slot][p])
        m.posted[slot] += 1
        if m.posted[slot] == n:
            self.complete(slot)

    def complete(self, slot: int) -> None:
        """Everybody has posted: one event per target at its last arrival."""
        m = self.m
        keys = staged_all(m.keys[slot], S_INGRESS)
        for p in range(self.n):
            at = m.arrivals_at(slot, p)
            at[p] = m.self_at[slot][p]
            last = int(at.max())
            key = int(keys[at == last].max())
            self.push(p, last, staged(key, S_BULK), p, slot)

    def settle_rows(self, p: int, t: int, key: int) -> None:
        """Serve the records that reached p's ingress before (t, key), in key order."""
        m = self.m
        found = [(s, self.arrived(s, p, t, key)) for s in self.slots_reaching(p, t)]
        found = [(s, q) for s, q in found if len(q)]
        if not found:
            return
        slot = np.concatenate([np.full(len(q), s) for s, q in found])
        source = np.concatenate([q for _, q in found])
        at = np.concatenate([m.arrivals_at(s, p)[q] for s, q in found])
        keys = np.concatenate([staged_all(m.keys[s], S_INGRESS)[q] for s, q in found])
        ser = np.concatenate([m.sers[s][q, m.classes[p, q]] for s, q in found])
        meta = np.concatenate([m.meta[s][q] for s, q in found])
        order = np.lexsort((keys, at))
        self.serve_rows(p, slot[order], source[order], at[order], keys[order], ser[order], meta[order])

    def slots_reaching(self, p: int, t: int) -> list[int]:
        """Exchanges with a record that reaches p's ingress up to t."""
        m = self.m
        return [s for s in range(2 * self.cfg.channels) if m.posted[s] and m.low[s][p] <= t]

    def arrived(self, slot: int, p: int, t: int, key: int) -> Any:
        """Sources of the slot's records that reached p before (t, key) and are not served; marks them
        served."""
        m = self.m
        at = m.arrivals_at(slot, p)
        waiting = (m.posted_at[slot] < INF) & ~m.served[slot][p]
        waiting[p] = False
        before = self.before(at, staged_all(m.keys[slot], S_INGRESS), t, key)
        chosen = np.flatnonzero(waiting & before)
        m.served[slot][p][chosen] = True
        left = waiting & ~before
        m.low[slot][p] = int(at[left].min()) if left.any() else INF
        return chosen

    def before(self, at: Any, keys: Any, t: int, key: int) -> Any:
        return (at < t) | ((at == t) & (keys < key))

    def serve_rows(self, p: int, slot: Any, source: Any, at: Any, keys: Any, ser: Any, meta: Any) -> None:
        """A block of reservations of one ingress at once: a max-plus scan."""
        m = self.m
        done = np.cumsum(ser)
        lead = np.maximum.accumulate(at - (done - ser))
        ends = np.maximum(lead, m.free[api.PORT_INGRESS][p]) + done
        m.free[api.PORT_INGRESS][p] = int(ends[-1])
        m.busy[api.PORT_INGRESS][p] += int(done[-1])
        h = m.hash[api.PORT_INGRESS]
        fields = (at, keys, ends - ser, ends, meta, api.KIND_META + 8 * (source + 1))
        h[0][p], h[1][p] = fold_all((h[0][p], h[1][p]), fields)
        for s in np.unique(slot).tolist():
            m.meta_end[s][p] = int(ends[slot == s][-1])
        if self.cfg.trace_records:
            columns = (at, keys, ends - ser, ends, meta, source)
            rows = zip(*(c.tolist() for c in columns), strict=True)
            for a, k, start, end, size, q in rows:
                m.trace(a, k, start, end, size, p, q, api.PORT_INGRESS, api.KIND_META, self.fail)

    def bulk(self, t: int, key: int, p: int, slot: int) -> None:
        """The last record for p is in."""
        m = self.m
        self.settle_rows(p, t, key)
        records = max(int(m.meta_end[slot][p]), int(m.self_at[slot][p]))
        m.records_at[slot][p] = records
        m.taken[slot] += 1
        if m.taken[slot] == self.n:
            m.close_slot(slot)
        if m.state[p] == BLOCKED and m.wait[p] == W_EXCHANGE and m.armed[p] and m.slot[p] == slot:
            self.start_pull(p, max(records, m.clock[p]))

    def start_pull(self, p: int, base: int) -> None:
        """All records are in at p and p waits: a request to every source that has rows for it."""
        m, slot = self.m, self.m.slot[p]
        m.records[p] = int(m.records_at[slot][p])
        first = m.last[p] = base + m.pull_start[p]
        found = 0
        if m.rowers[slot]:
            order = (p + 1 + np.arange(self.n)) % self.n
            rows = np.where(m.has_rows[slot], m.counts[slot][:, p], 0)
            for q in order[rows[order] > 0].tolist():
                request = self.cfg.request_latency_ps[m.link(p, q)]
                t = max(first + found * m.record[p] + request, base + 1)
                found += 1
                nbytes = int(rows[q]) * int(m.row_bytes[slot][q])
                self.push(q, t, key_of(p, m.exchange_seq[p], found, S_PULL), p, nbytes)
        m.remaining[p] = found
        if not found:
            self.end_exchange(p, first, False)

    def pull(self, t: int, key: int, p: int, reader: int, nbytes: int) -> None:
        k = self.m.link(p, reader)
        ser = occupy_ps(nbytes, self.cfg.read_bytes_per_s[k])
        port = api.PORT_EGRESS if k else api.PORT_LOCAL
        start = self.serve(p, port, api.KIND_PULL, reader, t, key, nbytes, ser)
        self.m.bytes[k][reader] += nbytes
        at = start + self.cfg.response_latency_ps[k] + (0 if k else ser)
        self.push(reader, at, staged(key, S_PULL_IN), p, nbytes)

    def pull_in(self, t: int, key: int, p: int, source: int, nbytes: int) -> None:
        m, k, end = self.m, self.m.link(p, source), t
        if k:
            ser = occupy_ps(nbytes, self.cfg.read_bytes_per_s[k])
            self.settle_rows(p, t, key)
            end = ser + self.serve(p, api.PORT_INGRESS, api.KIND_PULL, source, t, key, nbytes, ser)
        m.last[p] = max(m.last[p], end)
        m.remaining[p] -= 1
        if not m.remaining[p]:
            self.end_exchange(p, m.last[p], True)

    def end_exchange(self, p: int, t: int, rows: bool) -> None:
        """p's exchange ended at t: resume, or go on along the chain."""
        m = self.m
        if m.state[p] != BLOCKED:
            return
        if rows or m.chain_at[p] == m.chain_count[p]:
            self.decide(p, t, m.chain_at[p])
            return
        channel, compute, meta, pull_start, record = m.chain_of(p)[m.chain_at[p]].tolist()
        m.chain_at[p] += 1
        slot = m.open_slot(p, channel)
        if slot < 0:
            self.fail(FATAL_REUSE, p)
            return
        m.write_row(slot, p, None, None, 0, meta, 0)
        m.slot[p], m.pull_start[p], m.record[p] = slot, pull_start, record
        m.exchange_seq[p] += 1
        m.clock[p] = t + self.cfg.call_price_ps + compute
        self.push(p, m.clock[p], key_of(p, m.exchange_seq[p], 0, S_ROW), p, slot)


def staged_all(keys: Any, stage: int) -> Any:
    return keys & ~63 | stage


def fold_all(h: tuple[int, int], fields: tuple[Any, ...]) -> tuple[int, int]:
    """`fold` over a block of records, the six fields as arrays."""
    v = np.zeros(len(fields[0]), dtype=np.uint64)
    for a, k in zip(fields, FIELD_PRIMES, strict=True):
        v += a.astype(np.uint64) * np.uint64(k)
    out = []
    for start, prime, shift in zip(h, CHAIN_PRIMES, (0, GOLDEN), strict=True):
        power = np.full(len(v) + 1, prime, dtype=np.uint64)
        power[0] = 1
        power = np.cumprod(power, dtype=np.uint64)
        mixed = mix_all(v + np.uint64(shift))
        total = int((mixed * power[:-1][::-1]).sum(dtype=np.uint64))
        out.append(wrap((start * int(power[-1]) + total) & MASK))
    return out[0], out[1]


def mix_all(z: Any) -> Any:
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)
