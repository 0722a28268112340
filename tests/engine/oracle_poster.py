"""Posts in the oracle, at their poster: start, unit, ports, answers, streams, records."""

from collections import defaultdict

from oracle import ACK, ATOMIC, DELIVER, EGRESS, GET, IN, INGRESS, LOCAL, OUT, PUT, Oracle

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


class Poster(Oracle):
    """The poster's side, and what all ranks know."""

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
