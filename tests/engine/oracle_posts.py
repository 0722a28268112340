"""The definition of right for posts: units, planes, order flags, guards, retries, streams, inbox, matching.

Built on the sequential `Oracle`: one queue, one event at a time, every question asked of plain lists. Calls
added to programs: ("post", {"posts": tuple of field dicts, "step": ps}) answers the first sequence number,
("inbox", {}) the records up to now as tuples, ("retire", {"stream": s}) nothing; the last two take no time.
"""

import heapq
from collections import defaultdict

from oracle import (
    ACK,
    ATOMIC,
    DELIVER,
    EGRESS,
    GET,
    IN,
    INGRESS,
    LATE,
    LOCAL,
    OUT,
    PUT,
    RESPONSE,
    Oracle,
    signed,
)

START, HERE, RETRY, FAIL = 0, 15, 16, 17
K_PUT, K_GET, K_WORD, K_SEND, K_LOCAL, K_RECV, K_CLOSE = range(7)
TRACK, STRONG, STREAM, FENCE = 1, 2, 4, 8
NEVER, ALWAYS, ON_ERROR, SENT = range(4)
DONE, NOTE, MATCH, UNEXPECTED = range(1, 5)
OK, REGION, LOST, RNR, FLUSH, LENGTH = range(6)
LOG_PUT, LOG_SNAPSHOT, LOG_RMW, LOG_DROP = range(1, 5)
FOREVER, UNITS = 7, 12
NOWHERE = (-1, 0, 0)
PORT_KIND = (PUT, GET, 5, 4, 5)  # by kind of the post


class Item:
    """An operation: the fields of its post, and what has become of it."""

    kind = peer = plane = nbytes = start_ps = unit_ps = tail_ps = done_ps = order = stream = fence = 0
    rd_below = word = op = value = compare = region_tag = region_offset = region_bytes = region_need = 0
    deny_mask = lost_retries = done = note = user_a = user_b = context = tag = pull_bytes = log_kind = 0
    file_offset = offset = real_bytes = op_id = log_a = log_b = 0
    unit = region_word = state_word = state_mask = source = mask = rnr_retries = file_id = -1
    rnr_ps = lost_ps = 1
    capacity = 1 << 62
    finished = void = silent = False
    status = old = 0

    def __init__(self, rank, seq, posted, fields):
        self.rank, self.seq, self.posted = rank, seq, posted
        self.__dict__.update(fields)
        self.rnr_left, self.lost_left = self.rnr_retries, self.lost_retries

    @property
    def name(self):
        return self.rank << 50 | self.seq << 18

    @property
    def rmw(self):
        return self.kind == K_GET and self.log_kind & 7 == LOG_RMW

    @property
    def rendezvous(self):
        return self.kind == K_SEND and self.pull_bytes > 0

    @property
    def file(self):
        return self.file_id, self.file_offset, self.real_bytes


def atomically(op, old, value, compare):
    """What a word becomes: add, swap, compare and swap, and, or, xor."""
    if op == 2:
        return value if old == compare else old
    return (signed(old + value), value, None, old & value, old | value, old ^ value)[op]


class PostsOracle(Oracle):
    def __init__(self, cfg, programs):
        super().__init__(cfg, programs)
        self.flying = defaultdict(list)  # (poster, target) -> operations not gone at the target
        self.held = defaultdict(list)  # operation -> later ones that wait for it where it goes
        self.kept = defaultdict(list)  # poster -> operations waiting to start
        self.streams = defaultdict(list)  # (poster, stream) -> operations not reported
        self.failed, self.dead = set(), set()  # (poster, stream) as the target, as the poster knows it
        self.posted, self.unexpected = defaultdict(list), defaultdict(list)
        self.inboxes, self.fresh = defaultdict(list), set()
        self.again, self.refused = (
            set(),
            set(),
        )  # sends retried for ever; refused since
        self.seen = [0] * self.n  # when each rank observed last
        self.logs = defaultdict(list)  # target -> (time, kind, operation)

    # ---- calls
    def call(self, r, call, args):
        if call == "inbox":
            mine = [x for x in self.inboxes[r] if x[0] <= self.seen[r]]
            del self.inboxes[r][: len(mine)]
            self.log[r].append((tuple(mine), self.clock[r]))
        elif call == "retire":
            self.log[r].append((0, self.clock[r]))
        elif call == "post":
            first = self.seq[r] + 1
            for fields in args["posts"]:
                self.clock[r] += self.cfg.call_price_ps + args["step"]
                self.seq[r] += 1
                self.issue(r, fields)
            self.log[r].append((first, self.clock[r]))
        else:
            return super().call(r, call, args)
        return False

    def put(self, r, dst, nbytes, word, op, value):
        op = 0 if word is None else op
        self.issue(r, {"peer": dst, "nbytes": nbytes, "word": word, "op": op, "value": value})

    def get(self, r, src, nbytes):
        return self.issue(r, {"kind": K_GET, "peer": src, "nbytes": nbytes})

    def issue(self, r, fields):
        o = Item(r, self.seq[r], self.clock[r], fields)
        if o.kind == K_PUT:
            self.unacked[r] += 1
        elif o.kind in (K_GET, K_WORD):
            self.open_gets[r].add(o)
        if o.kind in (K_PUT, K_SEND, K_WORD) or (o.kind == K_GET and (o.stream or o.rmw)):
            self.flying[r, o.peer].append(o)
        t = o.posted + o.start_ps
        if o.kind >= K_LOCAL:
            action = {K_LOCAL: self.local, K_RECV: self.receive, K_CLOSE: self.close}[o.kind]
            self.at(t, o.name, HERE, action, o)
        elif o.unit >= 0 or o.stream or o.rd_below:
            if o.stream:
                self.streams[r, o.stream].append(o)
            self.at(t, o.name, START, self.start, o)
        else:
            self.launch(t, o)
        return o.seq

    def go(self, r, t, value):
        self.seen[r] = t
        super().go(r, t, value)

    def truth(self, r):
        """Handles of gets are sequence numbers."""
        w = self.wait[r]
        if w["call"] == "wait_get":
            return all(o.seq != w["handle"] for o in self.open_gets[r]), 0
        return super().truth(r)

    # ---- at the poster
    def machine(self, plane):
        return self.cfg.planes[plane - 1] if plane else self.cfg

    def start(self, t, key, o):
        r = o.rank
        if not o.finished and o.stream and (r, o.stream) in self.dead:
            self.finish(t, o, FLUSH)
        if o.finished:
            self.void(t, o)
        elif not self.may_start(o) or any(x.stream == o.stream > 0 and x.seq < o.seq for x in self.kept[r]):
            self.kept[r].append(o)
        elif o.unit >= 0:
            kind = PORT_KIND[o.kind]
            self.launch(self.serve(r, UNITS + o.unit, t, key, o.unit_ps, o.nbytes, kind, o.peer), o)
        else:
            self.launch(t, o)
        self.tell(r, t)

    def may_start(self, o):
        earlier = [x for x in self.open_gets[o.rank] if x.seq < o.seq and o.stream in (0, x.stream)]
        return not o.rd_below or len(earlier) < o.rd_below

    def go_on(self, t, r):
        """An answer came: who may start now?"""
        stuck = set()
        for o in sorted(self.kept[r], key=lambda x: x.seq):
            if o.stream not in stuck and self.may_start(o):
                self.kept[r].remove(o)
                self.at(t, o.name, START, self.start, o)
            elif o.stream:
                stuck.add(o.stream)

    def launch(self, t, o):
        """The operation leaves its poster at t."""
        request = t + self.machine(o.plane).request_latency_ps[self.kind(o.rank, o.peer)]
        if o.kind in (K_PUT, K_SEND):
            self.at(t, o.name, EGRESS, self.depart, o)
        elif o.kind == K_GET:
            self.at(request, o.name, EGRESS, self.reach, o)
        else:
            self.at(request + o.tail_ps, o.name, ATOMIC, self.reach, o)

    def void(self, t, o):
        """The operation ended before it left: its target hears that nothing comes."""
        o.void = True
        latency = self.machine(o.plane).put_latency_ps[self.kind(o.rank, o.peer)]
        self.at(t + latency, o.name, DELIVER, self.reach, o)

    def depart(self, t, key, o):
        if o.finished:
            self.void(t, o)
            return
        kind = PORT_KIND[o.kind]
        key = o.name | EGRESS
        end = self.carry(t, key, o.rank, o.peer, o.nbytes, o.plane, kind, o.tail_ps, self.reach, o)
        if o.done == SENT:
            self.at(end + o.done_ps, o.name, ACK, self.answered, o, OK)

    def carry(self, t, key, p, to, nbytes, plane, kind, tail, action, *args):
        """Bytes from p over a plane; `action` when they are in. Returns when they have left."""
        m, k = self.machine(plane), self.kind(p, to)
        ser = self.ps(nbytes, (m.read_bytes_per_s if kind == GET else m.write_bytes_per_s)[k])
        latency = (m.response_latency_ps if kind == GET else m.put_latency_ps)[k]
        start = self.serve(p, 3 * plane + (OUT if k else LOCAL), t, key, ser, nbytes, kind, to)
        if not k:
            self.at(start + ser + latency + tail, key, DELIVER, action, *args)
            return start + ser

        def arrive(t, key, *args):
            start = self.serve(to, 3 * plane + IN, t, key, ser, nbytes, kind, p)
            self.at(start + ser + tail, key, DELIVER, action, *args)

        self.at(start + latency, key, INGRESS, arrive, *args)
        return start + ser

    def answered(self, t, key, o, status, old=0):
        self.finish(t, o, status, old)
        self.tell(o.rank, t)

    def finish(self, t, o, status, old=0):
        if o.finished:
            return
        o.finished, o.status, o.old = True, status, old
        self.unacked[o.rank] -= o.kind == K_PUT
        if o in self.open_gets[o.rank]:
            self.open_gets[o.rank].remove(o)
            self.go_on(t, o.rank)
        mine = self.streams[o.rank, o.stream] if o.stream else [o]
        if o.rendezvous:
            mine.remove(o)
            self.report(t, o)
        late = [x for x in mine if not x.rendezvous]
        while late and late[0].finished:
            mine.remove(late[0])
            self.report(t, late.pop(0))

    def report(self, t, o):
        if not o.silent and (o.done in (ALWAYS, SENT) or (o.done == ON_ERROR and o.status != OK)):
            self.drop_in(o.rank, t, DONE, o.peer, o.status, o, o.old, o.nbytes, o, o, o.file)

    def retry(self, t, key, o):
        if o.finished:
            self.void(t, o)
        elif o.kind in (K_PUT, K_SEND):
            self.depart(t, key, o)
        else:
            self.launch(t, o)

    def fail(self, t, key, o, status):
        self.finish(t, o, status)
        if o.stream and (o.rank, o.stream) not in self.dead:
            self.end_stream(t, o.rank, o.stream, o.seq)
        self.tell(o.rank, t)

    def end_stream(self, t, r, stream, after, silent=False):
        self.dead.add((r, stream))
        late = [o for o in self.streams[r, stream] if o.seq > after and o.posted < t]
        for o in late:
            o.silent |= silent
        for o in late:
            self.finish(t, o, FLUSH)
            if o in self.kept[r]:
                self.kept[r].remove(o)
                self.void(t, o)

    # ---- records
    def drop_in(self, p, t, kind, rank, status, who, value, nbytes, what, user, file):
        """A record in p's inbox: `who` gives its number, `what` tag and context, `user` the user's."""
        low = (what.context + 2**31) % 2**32 - 2**31
        self.inboxes[p].append(
            (t, self.event_key, who.seq, value, nbytes, what.tag, what.context, user.user_a, user.user_b)
            + (*file, kind, rank, status, low)
        )
        self.words[p, self.cfg.words_per_rank] += 1
        self.fresh.add(p)

    def tell(self, p, t, *words):
        """Everything an event changed at p is in place: is p's wait decided?"""
        self.look(p, t)
        for word in words:
            self.look(p, t, word)
        if p in self.fresh:
            self.fresh.discard(p)
            self.look(p, t, self.cfg.words_per_rank)

    # ---- at the target
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

    def apply_log(self, p):
        """p's apply log as LOG_DTYPE has it."""
        return [
            (t, kind, o.rank, *o.file[:2], offset, o.real_bytes, o.op_id, key, a, b)
            for t, key, kind, o in self.logs[p]
            for offset, a, b in [
                (o.offset, o.log_a, o.log_b)
                if kind != LOG_DROP
                else (o.offset if o.log_kind else -1, o.kind, o.log_kind)
            ]
        ]

    def run(self):
        """As the base: (log per rank, blocked per rank, records per (rank, port))."""
        for r in range(self.n):
            self.advance(r, None)
        while self.heap and not len(self.heap) == len(self.again) == len(self.refused):
            t, key, _, action, args = heapq.heappop(self.heap)
            self.event_key = key
            if not key & LATE and not self.again.intersection(args):
                self.refused.clear()
            action(t, key, *args)
        return self.log, [w is not None for w in self.wait], self.records
