"""Matching of sends and receives in plain Python: receive queues of verbs and MPI in one."""

from emulator.engine import api
from emulator.engine.posts import (
    DONE_NEVER,
    DONE_SENT,
    IN_DONE,
    IN_MATCH,
    IN_UNEXPECTED,
    K_GET,
    ST_FLUSH,
    ST_LENGTH,
    ST_OK,
    ST_RNR,
)
from emulator.engine.twin_events import S_ACK, S_EGRESS, S_FAIL, Op, key_of
from emulator.engine.twin_inbox import NOWHERE, File, file_of
from emulator.engine.twin_order import Order


def fits(receive: Op, send: Op) -> bool:
    want, got = receive.post, send.post
    same = want.context == got.context and want.source in (-1, send.poster)
    return bool(same and got.tag & want.mask == want.tag & want.mask)


def place_of(send: Op) -> File:
    """Where the receiver finds the message; a write with immediate is in its memory already."""
    return NOWHERE if send.log_kind else file_of(send)


class Match(Order):
    """posted: receives without a message, unexpected: messages without a receive; by rank, in order."""

    posted: dict[int, list[Op]]
    unexpected: dict[int, list[Op]]

    def first(self, found: list[Op]) -> Op | None:
        return found[0] if found else None

    def message(self, t: int, key: int, p: int, send: Op) -> None:
        """A send has arrived."""
        receives = self.posted.setdefault(p, [])
        receive = self.first([x for x in receives if fits(x, send)])
        if receive:
            receives.remove(receive)
            if not self.pair(t, key, p, receive, send):
                self.refuse(t, key, p, send, ST_LENGTH)
                return
        elif send.post.rnr_retries >= 0:
            self.refuse(t, key, p, send, ST_RNR)
            return
        else:
            self.unexpected.setdefault(p, []).append(send)
            value, file = send.post.user_a, file_of(send)
            self.record(p, t, IN_UNEXPECTED, send.poster, ST_OK, send, value, send.nbytes, send, file)
            if not send.post.pull_bytes:
                self.acknowledge(t, p, send)
        self.tell(p, t, self.apply_word(p, send))
        self.gone(t, send)

    def pair(self, t: int, key: int, p: int, receive: Op, send: Op, late: bool = False) -> bool:
        """A send meets its receive; False if the sender must be told that it is too long."""
        post = send.post
        long = not send.log_kind and send.nbytes > receive.post.capacity
        status, file = (ST_LENGTH, NOWHERE) if long else (ST_OK, place_of(send))
        self.record(p, t, IN_MATCH, send.poster, status, receive, post.user_a, send.nbytes, send, file)
        if long and post.rnr_retries >= 0:
            return False
        if send.log_kind:
            self.append_log(p, send, t, key, api.LOG_PUT, post.log_a, post.log_b)
        elif long and post.real_bytes:
            self.append_log(p, send, t, key, api.LOG_DROP)
        if post.pull_bytes and not long:
            self.start_rendezvous(t, p, receive, send)
        elif post.pull_bytes or not late:
            self.acknowledge(t, p, send)
        return True

    def acknowledge(self, t: int, p: int, op: Op) -> None:
        if op.post.done != DONE_SENT:
            at = t + self.ack_ps(p, op) + op.post.done_ps
            self.push(op.poster, at, key_of(op.poster, op.seq, 0, S_ACK), p, (op, ST_OK))

    def start_rendezvous(self, t: int, p: int, receive: Op, send: Op) -> None:
        """The receiver pulls the payload, whatever the processes do meanwhile."""
        pull = Op(K_GET, p, send.poster, send.post.pull_bytes, receive.seq)
        pull.plane, pull.pair = send.plane, (receive, send)
        request = self.planes[send.plane].request_latency_ps[self.m.link(p, send.poster)]
        self.push(send.poster, t + request, key_of(p, receive.seq, 1, S_EGRESS), p, pull)

    def pulled(self, t: int, p: int, receive: Op, send: Op) -> None:
        value, nbytes, file = send.post.user_a, send.post.pull_bytes, place_of(send)
        self.record(p, t, IN_DONE, send.poster, ST_OK, receive, value, nbytes, send, file)
        self.acknowledge(t, p, send)
        self.tell(p, t)

    def receive(self, t: int, key: int, p: int, receive: Op) -> None:
        """K_RECV: the first waiting message that fits, or wait for one."""
        messages = self.unexpected.setdefault(p, [])
        send = self.first([x for x in messages if fits(receive, x)])
        if send:
            messages.remove(send)
            self.pair(t, key, p, receive, send, late=True)
        else:
            self.posted.setdefault(p, []).append(receive)
        self.tell(p, t)

    def close(self, t: int, key: int, p: int, op: Op) -> None:
        """K_CLOSE: end a stream of mine, and the receives and messages of a context."""
        post, silent = op.post, op.post.done == DONE_NEVER
        if post.stream:
            self.end_stream(t, (p, post.stream), -1, silent)
        if post.context:
            posted = self.posted.get(p, [])
            for x in [x for x in posted if x.post.context == post.context and post.compare in (0, x.seq)]:
                posted.remove(x)
                if not silent:
                    self.record(p, t, IN_DONE, -1, ST_FLUSH, x, 0, 0, x, NOWHERE)
            if not post.compare:
                self.drop_messages(t, key, p, post.context)
        self.tell(p, t)

    def drop_messages(self, t: int, key: int, p: int, context: int) -> None:
        messages = self.unexpected.get(p, [])
        for x in [x for x in messages if x.post.context == context]:
            messages.remove(x)
            if x.log_kind or x.post.real_bytes:
                self.append_log(p, x, t, key, api.LOG_DROP)
            if x.post.pull_bytes:
                name = key_of(x.poster, x.seq, 0, S_FAIL)
                self.push(x.poster, t + self.ack_ps(p, x), name, p, (x, ST_FLUSH))
