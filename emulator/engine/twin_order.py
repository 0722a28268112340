"""Order and refusals in plain Python: what happens at the target.

The question "is an earlier operation of the same poster that counts still not delivered or dropped here?"
has an answer that no host can change: earlier ones were handed over before, and leave only by the target's
own events.
"""

from typing import Any

from emulator.engine import api
from emulator.engine.codes import FATAL_STREAM
from emulator.engine.posts import (
    DONE_SENT,
    FOR_EVER,
    K_GET,
    K_PUT,
    K_SEND,
    K_WORD,
    ORD_FENCE,
    ORD_STREAM,
    ORD_STRONG,
    ORD_TRACK,
    ST_FLUSH,
    ST_LENGTH,
    ST_LOST,
    ST_REGION,
    ST_RNR,
)
from emulator.engine.twin_events import (
    BLANK,
    S_ACK,
    S_ATOMIC,
    S_DELIVER,
    S_EGRESS,
    S_FAIL,
    S_RETRY,
    Op,
    key_of,
)
from emulator.engine.twin_streams import Pair, Streams


class Order(Streams):
    """Who waits for whom, and what happens to those that fail.

    flight: by (poster, target), operations not yet delivered or dropped there, by sequence number.
    held: by (poster, target), operations that wait there, by the sequence number they wait for.
    failed: streams that failed, as the target knows it.
    retired: streams whose number is never used again.
    idle: sends that are retried without end. epoch: counts what could let one of them through; stale: how
        many of them were refused since. Nothing else pending and all stale: they never come through.
    """

    flight: dict[Pair, dict[int, Op]]
    held: dict[Pair, dict[int, list[Op]]]
    failed: set[Pair]
    retired: set[Pair]
    idle: int
    epoch: int
    stale: int

    # ---- hand-over
    def enrol(self, op: Op) -> None:
        """An operation was handed over by its poster."""
        r, stream = op.poster, op.post.stream
        if op.kind == K_PUT:
            self.m.unacked[r] += 1
        elif op.kind in (K_GET, K_WORD) and not op.blocking:
            self.gets.setdefault(r, {})[op.seq] = stream
        if op.counts and not op.blocking:
            self.flight.setdefault((r, op.peer), {})[op.seq] = op
        if stream and op.kind <= K_SEND:
            others = self.streams.setdefault((r, stream), [])
            if others and others[-1].peer != op.peer:
                self.fail(FATAL_STREAM, r)
            others.append(op)

    def retire(self, r: int, stream: int) -> None:
        """The poster will not use this stream again."""
        self.retired.add((r, stream))
        self.forget((r, stream))

    def forget(self, name: Pair) -> None:
        """Drop what is known of a retired stream once nothing of it is under way."""
        flying = (op for (r, _), ops in self.flight.items() if r == name[0] for op in ops.values())
        if not any(op.post.stream == name[1] for op in flying) and not self.streams.get(name):
            for known in (self.retired, self.dead, self.failed):
                known.discard(name)

    # ---- at the target
    def order_bits(self, op: Op) -> int:
        return int(op.post.order)

    def blocker(self, op: Op) -> Op | None:
        """The latest earlier operation that must be delivered or dropped before `op` may act."""
        bits = self.order_bits(op)
        if not bits & (ORD_STRONG | ORD_STREAM | ORD_FENCE):
            return None
        for other in reversed(self.flight.get((op.poster, op.peer), {}).values()):
            if other.seq < op.seq and self.comes_before(other, op, bits):
                return other
        return None

    def comes_before(self, other: Op, op: Op, bits: int) -> bool:
        if bits & ORD_STREAM and other.post.stream == op.post.stream:
            return True
        if other.kind == K_GET and not other.is_rmw:
            return False
        strong = bits & ORD_STRONG and other.post.order & ORD_TRACK
        return bool(strong or (bits & ORD_FENCE and other.seq < op.post.fence))

    def admitted(self, t: int, key: int, p: int, op: Op) -> bool:
        """May `op` act at p now? If not, it was dropped, held or refused."""
        if op.post is BLANK:
            return True
        if (op.poster, op.post.stream) in self.failed:
            self.leave_no_trace(t, key, p, op)
            if op.post.done != DONE_SENT:
                self.push(op.poster, t + self.ack_ps(p, op), key & ~63 | S_ACK, p, (op, ST_FLUSH))
            return False
        other = self.blocker(op)
        if other:
            self.hold(op, other)
            return False
        status = self.guards(p, op)
        if status:
            self.refuse(t, key, p, op, status)
        return not status

    def hold(self, op: Op, other: Op) -> None:
        self.held.setdefault((op.poster, op.peer), {}).setdefault(other.seq, []).append(op)

    def gone(self, t: int, op: Op) -> None:
        """`op` was delivered or dropped at its target: those that waited for it try again."""
        if op.epoch >= 0:
            op.epoch = -1
            self.idle -= 1
            self.news()
        pair = op.poster, op.peer
        ops = self.flight.get(pair)
        if ops is None or ops.pop(op.seq, None) is None:
            return
        if not ops:
            del self.flight[pair]
        waiting = self.held.get(pair)
        for x in waiting.pop(op.seq, ()) if waiting else ():
            stage = {K_WORD: S_ATOMIC, K_GET: S_EGRESS}.get(x.kind, S_DELIVER)
            self.push(x.peer, t, key_of(x.poster, x.seq, 0, stage), x.poster, x)
        if waiting is not None and not waiting:
            del self.held[pair]
        name = op.poster, op.post.stream
        if name in self.retired:
            self.forget(name)

    def leave_no_trace(self, t: int, key: int, p: int, op: Op) -> None:
        """It ends at p without effect; what was staged for it is given back."""
        if op.log_kind or (op.kind == K_SEND and op.post.real_bytes):
            self.append_log(p, op, t, key, api.LOG_DROP)
        self.gone(t, op)

    def ack_ps(self, p: int, op: Op) -> int:
        return int(self.planes[op.plane].ack_latency_ps[self.m.link(p, op.poster)])

    def refuse(self, t: int, key: int, p: int, op: Op, status: int) -> None:
        """p does not accept `op`: it comes again, or has failed with its stream."""
        post, ack = op.post, self.ack_ps(p, op)
        if post.done == DONE_SENT:
            self.leave_no_trace(t, key, p, op)
        elif status == ST_LOST and op.lost_left:
            op.lost_left -= 1
            self.push(op.poster, t + max(post.lost_ps, ack), key & ~63 | S_RETRY, p, op)
        elif status == ST_RNR and op.rnr_left:
            if op.rnr_left == FOR_EVER:
                self.refused_again(op)
            else:
                op.rnr_left -= 1
            self.push(op.poster, t + ack + self.rnr_ps(p, post), key & ~63 | S_RETRY, p, op)
        else:
            if post.stream:
                self.failed.add((op.poster, post.stream))
            if status in (ST_REGION, ST_LENGTH) and post.note & 2:
                self.notice(p, t, op, status)
            self.leave_no_trace(t, key, p, op)
            delay = max(post.lost_ps, ack) if status == ST_LOST else ack
            self.push(op.poster, t + delay, key & ~63 | S_FAIL, p, (op, status))
        self.tell(p, t)

    def refused_again(self, op: Op) -> None:
        self.idle += op.epoch < 0
        if op.epoch != self.epoch:
            op.epoch = self.epoch
            self.stale += 1

    def news(self) -> None:
        """Something happened that could let a refused send through."""
        self.epoch += 1
        self.stale = 0

    def retries_for_ever(self, payload: Any) -> bool:
        return isinstance(payload, Op) and payload.epoch >= 0

    def rnr_ps(self, p: int, post: Any) -> int:
        """A sender without a receive waits its own time, and what the receiver's state word asks."""
        asked = self.m.words[self.m.word_at(p, post.state_word)] >> 6 if post.state_word >= 0 else 0
        return int(post.rnr_ps + max(asked, 0))
