"""Posts in the oracle, where they go: order, guards, refusals, effects, matching."""

from oracle import ACK, ATOMIC, DELIVER, EGRESS, GET, RESPONSE, signed
from oracle_poster import (
    ALWAYS,
    DONE,
    FAIL,
    FENCE,
    FLUSH,
    FOREVER,
    K_GET,
    K_PUT,
    K_SEND,
    K_WORD,
    LENGTH,
    LOG_DROP,
    LOG_PUT,
    LOST,
    MATCH,
    NEVER,
    NOTE,
    NOWHERE,
    OK,
    REGION,
    RETRY,
    RNR,
    SENT,
    STREAM,
    STRONG,
    TRACK,
    UNEXPECTED,
    Poster,
)


def atomically(op, old, value, compare):
    """What a word becomes: add, swap, compare and swap, and, or, xor."""
    if op == 2:
        return value if old == compare else old
    return (signed(old + value), value, None, old & value, old | value, old ^ value)[op]


class Target(Poster):
    """The target's side."""

    def reach(self, t, key, o):
        p = o.peer
        if o.void:
            self.leave_no_trace(t, o)
        elif (o.rank, o.stream) in self.failed:
            self.drop(t, o)
        elif self.must_wait(o):
            self.held[self.must_wait(o)].append(o)
        else:
            status = self.guards(p, o)
            act = {K_PUT: self.place_put, K_GET: self.sample, K_WORD: self.change, K_SEND: self.message}
            if status:
                self.refuse(t, o, status)
            else:
                act[o.kind](t, key, o)

    def must_wait(self, o):
        """The latest earlier operation that must be gone before, or None."""
        for x in reversed(self.flying[o.rank, o.peer]):
            if x.seq >= o.seq:
                continue
            placed = x.kind != K_GET or x.rmw
            if placed and o.order & STRONG and x.order & TRACK:
                return x
            if placed and o.order & FENCE and x.seq < o.fence:
                return x
            if o.order & STREAM and x.stream == o.stream:
                return x
        return None

    def guards(self, p, o):
        words = self.cfg.words_per_rank
        if o.state_word >= 0:
            state = self.words[p, o.state_word] & 63
            if o.state_word >= words or not o.state_mask >> state & 1:
                return LOST
            if o.deny_mask >> state & 1:
                return REGION
        if o.region_word >= 0:
            if o.region_word > words - 4:
                return REGION
            tag, base, length, access = (self.words[p, o.region_word + i] for i in range(4))
            inside = base <= o.region_offset and o.region_offset + o.region_bytes <= base + length
            if tag != o.region_tag or not inside or access & o.region_need != o.region_need:
                return REGION
        return OK

    def gone(self, t, o):
        pair = o.rank, o.peer
        if o in self.again:
            self.again.remove(o)
            self.refused.clear()
        if o in self.flying[pair]:
            self.flying[pair].remove(o)
        stage = {K_WORD: ATOMIC, K_GET: EGRESS}
        for x in self.held.pop(o, ()):
            self.at(t, x.name, stage.get(x.kind, DELIVER), self.reach, x)

    def leave_no_trace(self, t, o):
        """It ends here without effect; what was staged for it is given back."""
        if o.log_kind or (o.kind == K_SEND and o.real_bytes):
            self.logs[o.peer].append((t, self.event_key, LOG_DROP, o))
        self.gone(t, o)

    def drop(self, t, o):
        self.leave_no_trace(t, o)
        if o.done != SENT:
            self.at(t + self.ack(o), o.name, ACK, self.answered, o, FLUSH)

    def ack(self, o):
        return self.machine(o.plane).ack_latency_ps[self.kind(o.rank, o.peer)]

    def refuse(self, t, o, status):
        p, ack = o.peer, self.ack(o)
        if o.done == SENT:
            self.leave_no_trace(t, o)
        elif status == LOST and o.lost_left:
            o.lost_left -= 1
            self.at(t + max(o.lost_ps, ack), o.name, RETRY, self.retry, o)
        elif status == RNR and o.rnr_left:
            if o.rnr_left == FOREVER:
                self.again.add(o)
                self.refused.add(o)
            else:
                o.rnr_left -= 1
            more = self.words[p, o.state_word] >> 6 if o.state_word >= 0 else 0
            self.at(t + ack + o.rnr_ps + max(more, 0), o.name, RETRY, self.retry, o)
        else:
            if o.stream:
                self.failed.add((o.rank, o.stream))
            if status in (REGION, LENGTH) and o.note & 2:
                self.notice(p, t, o, status)
            self.leave_no_trace(t, o)
            self.at(t + (max(o.lost_ps, ack) if status == LOST else ack), o.name, FAIL, self.fail, o, status)
        self.tell(p, t)

    def notice(self, p, t, o, status):
        self.drop_in(p, t, NOTE, o.rank, status, o, o.value, o.nbytes, o, o, o.file)

    def acknowledge(self, t, o):
        if o.done != SENT:
            self.at(t + self.ack(o) + o.done_ps, o.name, ACK, self.answered, o, OK)

    def place_put(self, t, key, o):
        if o.log_kind:
            self.logs[o.peer].append((t, self.event_key, LOG_PUT, o))
        self.acknowledge(t, o)
        self.take_effect(t, o)

    def take_effect(self, t, o):
        """Word operation and notice of a put or send, at the target."""
        p, words = o.peer, ()
        if o.op:
            words = (o.word,)
            self.words[p, o.word] = o.value if o.op == 1 else signed(self.words[p, o.word] + o.value)
        if o.note & 1 and o.kind == K_PUT:
            self.notice(p, t, o, OK)
        self.tell(p, t, *words)
        self.gone(t, o)

    def sample(self, t, key, o):
        if o.log_kind:
            self.logs[o.peer].append((t, self.event_key, o.log_kind, o))
        self.carry(
            t, key, o.peer, o.rank, o.nbytes, o.plane, GET, o.tail_ps + o.done_ps, self.answered, o, OK
        )
        self.gone(t, o)

    def change(self, t, key, o):
        p, old = o.peer, self.words[o.peer, o.word]
        self.words[p, o.word] = atomically(o.op, old, o.value, o.compare)
        latency = self.machine(o.plane).response_latency_ps[self.kind(p, o.rank)]
        self.at(t + latency + o.done_ps, o.name, RESPONSE, self.answered, o, OK, old)
        if o.note & 1:
            self.notice(p, t, o, OK)
        if self.words[p, o.word] != old:
            self.tell(p, t, o.word)
        self.tell(p, t)
        self.gone(t, o)

    # ---- mine
    def local(self, t, key, o):
        p, words = o.rank, ()
        if o.op:
            words = (o.word,)
            o.old = self.words[p, o.word]
            self.words[p, o.word] = o.value if o.op == 1 else signed(o.old + o.value)
        if o.done == ALWAYS:
            self.drop_in(p, t, DONE, p, OK, o, o.old, o.nbytes, o, o, o.file)
        self.tell(p, t, *words)

    # ---- matching
    @staticmethod
    def fits(receive, send):
        same = receive.context == send.context and receive.source in (-1, send.rank)
        return same and (send.tag & receive.mask) == (receive.tag & receive.mask)

    def message(self, t, key, o):
        p = o.peer
        receive = next((x for x in self.posted[p] if self.fits(x, o)), None)
        if receive:
            self.posted[p].remove(receive)
            if self.pair(t, receive, o):
                self.refuse(t, o, LENGTH)
                return
        elif o.rnr_retries >= 0:
            self.refuse(t, o, RNR)
            return
        else:
            self.unexpected[p].append(o)
            self.drop_in(p, t, UNEXPECTED, o.rank, OK, o, o.user_a, o.nbytes, o, o, o.file)
            if not o.pull_bytes:
                self.acknowledge(t, o)
        self.take_effect(t, o)

    def pair(self, t, receive, o, late=False):
        """A send meets its receive; True if the sender must be refused."""
        p, long = o.peer, not o.log_kind and o.nbytes > receive.capacity
        status, file = LENGTH if long else OK, NOWHERE if o.log_kind or long else o.file
        self.drop_in(p, t, MATCH, o.rank, status, receive, o.user_a, o.nbytes, o, receive, file)
        if long and o.rnr_retries >= 0:
            return True
        if long and o.real_bytes:
            self.logs[p].append((t, self.event_key, LOG_DROP, o))
        if o.log_kind:
            self.logs[p].append((t, self.event_key, LOG_PUT, o))
        if o.pull_bytes and not long:
            request = self.machine(o.plane).request_latency_ps[self.kind(p, o.rank)]
            self.at(t + request, receive.name | 1 << 6, EGRESS, self.pulled, receive, o)
        elif o.pull_bytes or not late:
            self.acknowledge(t, o)
        return False

    def pulled(self, t, key, receive, o):
        self.carry(t, key, o.rank, o.peer, o.pull_bytes, o.plane, GET, 0, self.pull_in, receive, o)

    def pull_in(self, t, key, receive, o):
        p, file = o.peer, NOWHERE if o.log_kind else o.file
        self.drop_in(p, t, DONE, o.rank, OK, receive, o.user_a, o.pull_bytes, o, receive, file)
        self.acknowledge(t, o)
        self.tell(p, t)

    def receive(self, t, key, o):
        p = o.rank
        send = next((x for x in self.unexpected[p] if self.fits(o, x)), None)
        if send:
            self.unexpected[p].remove(send)
            self.pair(t, o, send, late=True)
        else:
            self.posted[p].append(o)
        self.tell(p, t)

    def close(self, t, key, o):
        r, silent = o.rank, o.done == NEVER
        if o.stream:
            self.end_stream(t, r, o.stream, -1, silent)
        posted = [x for x in self.posted[r] if x.context == o.context != 0 and o.compare in (0, x.seq)]
        for x in posted:
            self.posted[r].remove(x)
            if not silent:
                self.drop_in(r, t, DONE, -1, FLUSH, x, 0, 0, x, x, NOWHERE)
        for x in [x for x in self.unexpected[r] if x.context == o.context != 0 and not o.compare]:
            self.unexpected[r].remove(x)
            if x.log_kind or x.real_bytes:
                self.logs[r].append((t, self.event_key, LOG_DROP, x))
            if x.pull_bytes:
                self.at(t + self.ack(x), x.name, FAIL, self.fail, x, FLUSH)
        self.tell(r, t)
