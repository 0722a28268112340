"""Exchanges in plain Python: records settled per target when something needs them, then gets of the rows.

The n*n records are never events. What reaches a target's ingress is computed by cross-traffic there
(`settle_rows`, in key order, up to there) or by one BULK event per target at its last record's arrival.
"""

from typing import Any

import numpy as np

from emulator.engine import api
from emulator.engine.codes import BLOCKED, FATAL_GROUP, FATAL_REUSE, W_EXCHANGE, W_WAIT
from emulator.engine.twin_events import S_BULK, S_INGRESS, S_PULL, S_PULL_IN, S_ROW, key_of, occupy_ps, staged
from emulator.engine.twin_hash import fold_all
from emulator.engine.twin_memory import INF, Row
from emulator.engine.twin_waits import Waits


class Exchanges(Waits):
    """Rows, their last arrivals, and pulls."""

    def row(self, t: int, key: int, p: int, slot: int) -> None:
        """p's metadata records leave, one after the other, as one reservation."""
        m, cfg = self.m, self.cfg
        if not m.enter_round(slot, p):
            self.fail(FATAL_GROUP, p)
            return
        ranks, me, i = m.members(slot, p), m.place_at(slot, p), m.round_of(slot, p)
        g = len(ranks)
        if not m.has_sizes[slot][p]:
            m.sizes[slot][p, :g] = m.meta[slot][p]
        start = max(t, m.free[api.PORT_EGRESS][p])
        m.keys[slot][p], m.posted_at[slot][p] = key, start
        sizes, kinds = m.sizes[slot][p, :g].tolist(), m.classes[p, ranks].tolist()
        if g > 1:
            total = self.depart(slot, p, start, ranks, np.roll(np.arange(g), -me - 1)[:-1])
            others = sum(sizes) - sizes[me]
            self.serve(p, api.PORT_EGRESS, api.KIND_META, -1, t, key, others, total)
        ser = occupy_ps(sizes[me], cfg.write_bytes_per_s[0])
        own = self.serve(p, api.PORT_LOCAL, api.KIND_META, p, t, key, sizes[me], ser)
        for k, nbytes in zip(kinds, sizes, strict=True):
            m.bytes[k][p] += nbytes
        m.self_at[slot][p] = own + ser + cfg.put_latency_ps[0]
        m.rowers[i] += int(m.has_rows[slot][p])
        m.posted[i] += 1
        if m.posted[i] == g:
            self.complete(slot, p)

    def depart(self, slot: int, p: int, start: int, ranks: Any, order: Any) -> int:
        """When p's records leave and arrive, targets in `order` (places); returns how long they take."""
        m, cfg = self.m, self.cfg
        kinds = m.classes[p, ranks[order]]
        sers = self.occupied(m.sizes[slot][p, order], kinds)
        ends = np.cumsum(sers)
        m.lag[slot][p, order] = ends - sers
        arrivals = start + ends - sers + np.asarray(cfg.put_latency_ps)[kinds]
        m.low[slot][ranks[order]] = np.minimum(m.low[slot][ranks[order]], arrivals)
        return int(ends[-1])

    def occupied(self, sizes: Any, kinds: Any) -> Any:
        """How long records occupy a port."""
        bandwidth = self.cfg.write_bytes_per_s
        pairs = zip(sizes.tolist(), kinds.tolist(), strict=True)
        return np.array([occupy_ps(nbytes, bandwidth[k]) for nbytes, k in pairs], dtype=np.int64)

    def complete(self, slot: int, member: int) -> None:
        """Everybody has posted: one event per target at its last arrival."""
        m = self.m
        ranks = m.members(slot, member)
        keys = staged_all(m.keys[slot][ranks], S_INGRESS)
        for i, p in enumerate(ranks.tolist()):
            at = m.arrivals_at(slot, p)
            at[i] = m.self_at[slot][p]
            last = int(at.max())
            key = int(keys[at == last].max())
            self.push(p, last, staged(key, S_BULK), p, slot)

    def settle_rows(self, p: int, t: int, key: int) -> None:
        """Serve the records that reached p's ingress before (t, key), in key order."""
        m = self.m
        found = [(s, *self.arrived(s, p, t, key)) for s in self.slots_reaching(p, t)]
        found = [row for row in found if len(row[1])]
        if not found:
            return
        slot = np.concatenate([np.full(len(q), s) for s, q, _ in found])
        source = np.concatenate([q for _, q, _ in found])
        at = np.concatenate([at for _, _, at in found])
        keys = np.concatenate([staged_all(m.keys[s], S_INGRESS)[q] for s, q, _ in found])
        sizes = np.concatenate([m.sizes[s][q, m.place_at(s, p)] for s, q, _ in found])
        ser = self.occupied(sizes, m.classes[p, source])
        order = np.lexsort((keys, at))
        self.serve_rows(p, slot[order], source[order], at[order], keys[order], ser[order], sizes[order])

    def slots_reaching(self, p: int, t: int) -> list[int]:
        """Exchanges with a record that reaches p's ingress up to t."""
        return [s for s in range(2 * self.cfg.channels) if self.m.low[s][p] <= t]

    def arrived(self, slot: int, p: int, t: int, key: int) -> tuple[Any, Any]:
        """(sources, arrivals) of the slot's records that reached p before (t, key) and are not served; marks
        them served."""
        m = self.m
        ranks, at = m.members(slot, p), m.arrivals_at(slot, p)
        g = len(ranks)
        waiting = (m.posted_at[slot][ranks] < INF) & ~m.served[slot][p, :g]
        waiting[m.place_at(slot, p)] = False
        before = self.before(at, staged_all(m.keys[slot][ranks], S_INGRESS), t, key)
        chosen = np.flatnonzero(waiting & before)
        m.served[slot][p, chosen] = True
        left = waiting & ~before
        m.low[slot][p] = int(at[left].min()) if left.any() else INF
        return ranks[chosen], at[chosen]

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
        i = m.round_of(slot, p)
        m.taken[i] += 1
        if m.taken[i] == len(m.members(slot, p)):
            m.close_round(slot, p)
        if m.state[p] == BLOCKED and m.wait[p] == W_EXCHANGE and m.armed[p] and m.slot[p] == slot:
            self.start_pull(p, max(records, m.clock[p]))
        if m.wait[p] == W_WAIT:
            self.evaluate(p, t)

    def start_pull(self, p: int, base: int) -> None:
        """All records are in at p and p waits: a request to every source that has rows for it."""
        m, slot = self.m, self.m.slot[p]
        m.records[p] = int(m.records_at[slot][p])
        first = m.last[p] = base + m.pull_start[p]
        found = 0
        if m.rowers[m.own_round(slot, p)]:
            ranks = m.group(slot // 2, p)
            me = m.own_place(slot // 2, p)
            order = np.roll(ranks, -me - 1)
            rows = np.where(m.has_rows[slot], m.counts[slot][:, me], 0)
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
        m.write_row(slot, p, Row(None, None, 0, meta, 0, None))
        m.slot[p], m.pull_start[p], m.record[p] = slot, pull_start, record
        m.exchange_seq[p] += 1
        m.clock[p] = t + self.cfg.call_price_ps + compute
        self.push(p, m.clock[p], key_of(p, m.exchange_seq[p], 0, S_ROW), p, slot)


def staged_all(keys: Any, stage: int) -> Any:
    return keys & ~63 | stage
