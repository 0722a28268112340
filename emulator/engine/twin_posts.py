"""The way of an operation in plain Python: start, unit, ports, effect at the other end, answer."""

from typing import Any

from emulator.engine import api
from emulator.engine.posts import (
    DONE_ALWAYS,
    DONE_SENT,
    IN_DONE,
    K_CLOSE,
    K_GET,
    K_LOCAL,
    K_PUT,
    K_RECV,
    K_SEND,
    K_WORD,
    PORT_UNIT,
    ST_FLUSH,
    ST_OK,
)
from emulator.engine.twin_events import (
    S_ACK,
    S_ATOMIC,
    S_DELIVER,
    S_EGRESS,
    S_INGRESS,
    S_LOCAL,
    S_RESPONSE,
    S_START,
    Op,
    key_of,
    occupy_ps,
    staged,
)
from emulator.engine.twin_inbox import combine, file_of
from emulator.engine.twin_match import Match

RECORD_KIND = {K_PUT: api.KIND_PUT, K_GET: api.KIND_GET, K_SEND: api.KIND_SEND, K_WORD: api.KIND_WORD}


class Posts(Match):
    """Stages of an operation."""

    def first_event(self, op: Op) -> tuple[int, int, int, int, Any]:
        """Where and when a posted operation begins: (rank, time, key, peer, operation)."""
        post, r = op.post, op.poster
        t = op.posted + post.start_ps
        if op.kind >= K_LOCAL:
            return r, t, key_of(r, op.seq, 0, S_LOCAL), r, op
        if post.unit >= 0 or post.stream or post.rd_below:
            return r, t, key_of(r, op.seq, 0, S_START), r, op
        return self.departure(t, op)

    def departure(self, t: int, op: Op) -> tuple[int, int, int, int, Any]:
        """The event with which an operation leaves its poster at t."""
        r, p = op.poster, op.peer
        if op.kind in (K_PUT, K_SEND):
            return r, t, key_of(r, op.seq, 0, S_EGRESS), r, op
        t += self.planes[op.plane].request_latency_ps[self.m.link(r, p)]
        if op.kind == K_GET:
            return p, t, key_of(r, op.seq, 0, S_EGRESS), r, op
        return p, t + op.post.tail_ps, key_of(r, op.seq, 0, S_ATOMIC), r, op

    def go_void(self, t: int, op: Op) -> None:
        """The operation ended before it left: tell its target, where later ones may wait for it."""
        op.void = True
        latency = self.planes[op.plane].put_latency_ps[self.m.link(op.poster, op.peer)]
        self.push(op.peer, t + latency, key_of(op.poster, op.seq, 0, S_DELIVER), op.poster, op)

    def start(self, t: int, key: int, p: int, op: Op) -> None:
        """S_START: not dead, not too many gets under way, then the unit."""
        post = op.post
        if not op.finished and post.stream and (p, post.stream) in self.dead:
            self.finish(t, op, ST_FLUSH)
        if op.finished:
            self.go_void(t, op)
        elif not self.keep(op):
            if post.unit >= 0:
                port, kind = PORT_UNIT + post.unit, RECORD_KIND[op.kind]
                t = self.serve(p, port, kind, op.peer, t, key, op.nbytes, post.unit_ps)
            self.push(*self.departure(t, op))
            return
        self.tell(p, t)

    def retry(self, t: int, key: int, p: int, op: Op) -> None:
        """S_RETRY: the network part again."""
        if op.finished:
            self.go_void(t, op)
        elif op.kind in (K_PUT, K_SEND):
            self.egress(t, staged(key, S_EGRESS), p, op)
        else:
            self.push(*self.departure(t, op))

    # ---- ports
    def carry(self, t: int, key: int, p: int, to: int, op: Op, kind: int, extra: int) -> int:
        """Bytes from p through its port; DELIVER `extra` after they are in. Returns when they have left."""
        plane, k, get = self.planes[op.plane], self.m.link(p, to), kind == api.KIND_GET
        ser = occupy_ps(op.nbytes, (plane.read_bytes_per_s if get else plane.write_bytes_per_s)[k])
        latency = (plane.response_latency_ps if get else plane.put_latency_ps)[k]
        port = 3 * op.plane + (api.PORT_EGRESS if k else api.PORT_LOCAL)
        start = self.serve(p, port, kind, to, t, key, op.nbytes, ser)
        self.m.bytes[k][op.poster] += op.nbytes
        if k:
            self.push(to, start + latency, staged(key, S_INGRESS), p, op)
        else:
            self.push(p, start + ser + latency + extra, staged(key, S_DELIVER), p, op)
        return start + ser

    def egress(self, t: int, key: int, p: int, op: Op) -> None:
        """At the poster of a put or send, at the source of a get."""
        if op.kind == K_GET:
            if op.pair or self.admitted(t, key, p, op):
                self.sample(t, key, p, op)
        elif op.finished:
            self.go_void(t, op)
        else:
            end = self.carry(t, key, p, op.peer, op, RECORD_KIND[op.kind], self.extra_ps(op))
            if op.post.done == DONE_SENT:
                self.push(p, end + op.post.done_ps, staged(key, S_ACK), p, (op, ST_OK))

    def extra_ps(self, op: Op) -> int:
        """From the end of ingress to DELIVER."""
        return int(op.post.tail_ps + (op.post.done_ps if op.kind == K_GET else 0))

    def sample(self, t: int, key: int, p: int, op: Op) -> None:
        """A get reads: the entry in the source's log, and the answer leaves."""
        if op.log_kind:
            self.append_log(p, op, t, key, op.log_kind, op.post.log_a, op.post.log_b)
        if not op.pair:
            self.gone(t, op)
        self.carry(t, key, p, op.poster, op, api.KIND_GET, self.extra_ps(op))

    def ingress(self, t: int, key: int, p: int, peer: int, op: Op) -> None:
        plane, k, get = self.planes[op.plane], self.m.link(p, peer), op.kind == K_GET
        ser = occupy_ps(op.nbytes, (plane.read_bytes_per_s if get else plane.write_bytes_per_s)[k])
        if not op.plane:
            self.settle_rows(p, t, key)
        port = 3 * op.plane + api.PORT_INGRESS
        start = self.serve(p, port, RECORD_KIND[op.kind], peer, t, key, op.nbytes, ser)
        self.push(p, start + ser + self.extra_ps(op), staged(key, S_DELIVER), peer, op)

    # ---- at the other end
    def deliver(self, t: int, key: int, p: int, op: Op) -> None:
        if op.void:
            self.leave_no_trace(t, key, p, op)
        elif op.pair:
            self.pulled(t, p, *op.pair)
        elif op.kind == K_GET:
            self.answer(t, op, ST_OK)
        elif self.admitted(t, key, p, op):
            if op.kind == K_SEND:
                self.message(t, key, p, op)
            else:
                self.place(t, key, p, op)

    def place(self, t: int, key: int, p: int, op: Op) -> None:
        """A put takes effect."""
        if op.log_kind:
            self.append_log(p, op, t, key, op.log_kind, op.post.log_a, op.post.log_b)
        self.acknowledge(t, p, op)
        word = self.apply_word(p, op)
        if op.post.note & 1:
            self.notice(p, t, op, ST_OK)
        if word >= 0 or self.fresh:
            self.tell(p, t, word)
        self.gone(t, op)

    def atomic(self, t: int, key: int, p: int, op: Op) -> None:
        if not (op.blocking or self.admitted(t, key, p, op)):
            return
        words, i = self.m.words, self.m.word_at(p, op.word)
        old = words[i]
        words[i] = combine(op.op, old, op.value, op.compare)
        latency = self.planes[op.plane].response_latency_ps[self.m.link(p, op.poster)]
        self.push(op.poster, t + latency + op.post.done_ps, staged(key, S_RESPONSE), p, (op, ST_OK, old))
        if op.post.note & 1:
            self.notice(p, t, op, ST_OK)
        self.tell(p, t, op.word if words[i] != old else -1)
        self.gone(t, op)

    def local(self, t: int, key: int, p: int, op: Op) -> None:
        """S_LOCAL: what I do to my own words and queues."""
        if op.kind == K_RECV:
            self.receive(t, key, p, op)
        elif op.kind == K_CLOSE:
            self.close(t, key, p, op)
        else:
            op.old = self.m.words[self.m.word_at(p, op.word)] if op.op else 0
            word = self.apply_word(p, op)
            if op.post.done == DONE_ALWAYS:
                self.record(p, t, IN_DONE, p, ST_OK, op, op.old, op.nbytes, op, file_of(op))
            self.tell(p, t, word)

    # ---- answers
    def answer(self, t: int, op: Op, status: int, old: int = 0) -> None:
        """S_ACK, S_RESPONSE and the end of a get, at the poster."""
        if op.blocking:
            self.m.done[op.poster], self.m.result[op.poster] = 1, old
        else:
            self.finish(t, op, status, old)
        self.tell(op.poster, t)
