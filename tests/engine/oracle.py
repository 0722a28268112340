"""The definition of right: one event queue, one message at a time, no bounds, no shared memory.

A program is a generator that yields (call, arguments) and is sent (value, time). `Oracle(cfg,
programs).run()` gives every rank's list of (value, time), whether it ended blocked,
and every port's reservations in order.
"""

import heapq
from collections import defaultdict

ROW, EGRESS, INGRESS, DELIVER, ACK, ATOMIC, RESPONSE, PULL, PULL_IN = range(1, 10)
CHECK, TIMEOUT, POLL, RESUME = range(11, 15)
LATE = 1 << 62
PUT, GET, META, PULLED = range(4)
OUT, IN, LOCAL = range(3)
COMPARE = (
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
)


def signed(value):
    return (value + 2**63) % 2**64 - 2**63


class Oracle:
    def __init__(self, cfg, programs):
        n = self.n = cfg.num_ranks
        self.cfg, self.programs = cfg, programs
        self.heap, self.count = [], 0
        self.clock, self.seq = [0] * n, [0] * n
        self.wait = [None] * n
        self.log = [[] for _ in range(n)]
        self.free = defaultdict(int)
        self.records = defaultdict(list)
        self.words = defaultdict(int)
        self.unacked, self.open_gets = [0] * n, [set() for _ in range(n)]
        self.rounds = defaultdict(int)
        self.groups = defaultdict(lambda: tuple(range(n)))
        self.exchanges = defaultdict(lambda: {"rows": {}, "in": defaultdict(int), "done": {}})
        self.open_posts = {}

    def kind(self, a, b):
        c = self.cfg
        if a == b:
            return 0
        if a // c.dies_per_chip == b // c.dies_per_chip:
            return 1
        return 2 if a // c.dies_per_node == b // c.dies_per_node else 3

    def key(self, r, stage, sub=0, seq=None):
        return r << 50 | (self.seq[r] if seq is None else seq) << 18 | sub << 6 | stage

    def at(self, t, key, stage, action, *args):
        self.count += 1
        heapq.heappush(self.heap, (t, key & ~63 | stage, self.count, action, args))

    def serve(self, p, port, t, key, ser, nbytes, kind, peer):
        start = max(t, self.free[p, port])
        self.free[p, port] = start + ser
        self.records[p, port].append((t, key, start, start + ser, nbytes, kind + 8 * (peer + 1)))
        return start

    @staticmethod
    def ps(nbytes, bandwidth):
        return (nbytes * 10**12 + bandwidth - 1) // bandwidth

    # ---- messages
    def leave(self, t, key, p, to, nbytes, kind, landed):
        """A message of a put, get or pull at p's egress (or p's local port)."""
        c, k = self.cfg, self.kind(p, to)
        ser = self.ps(nbytes, (c.write_bytes_per_s if kind == PUT else c.read_bytes_per_s)[k])
        latency = (c.put_latency_ps if kind == PUT else c.response_latency_ps)[k]
        start = self.serve(p, OUT if k else LOCAL, t, key, ser, nbytes, kind, to)
        if k:
            stage = PULL_IN if kind == PULLED else INGRESS
            self.at(start + latency, key, stage, self.arrive, to, p, nbytes, ser, kind, landed)
        else:
            self.at(start + latency + ser, key, DELIVER, landed)

    def arrive(self, t, key, p, source, nbytes, ser, kind, landed):
        start = self.serve(p, IN, t, key, ser, nbytes, kind, source)
        self.at(start + ser, key, DELIVER, landed)

    def put(self, r, dst, nbytes, word, op, value):
        def landed(t, key):
            self.at(t + self.cfg.ack_latency_ps[self.kind(dst, r)], key, ACK, acked)
            if word is not None:
                self.words[dst, word] = value if op == 1 else signed(self.words[dst, word] + value)
                self.look(dst, t, word)

        def acked(t, key):
            self.unacked[r] -= 1
            self.look(r, t)

        self.unacked[r] += 1
        self.at(self.clock[r], self.key(r, EGRESS), EGRESS, self.leave, r, dst, nbytes, PUT, landed)

    def get(self, r, src, nbytes):
        handle = self.seq[r]

        def landed(t, key):
            self.open_gets[r].discard(handle)
            self.look(r, t)

        self.open_gets[r].add(handle)
        t = self.clock[r] + self.cfg.request_latency_ps[self.kind(r, src)]
        self.at(t, self.key(r, EGRESS), EGRESS, self.leave, src, r, nbytes, GET, landed)
        return handle

    def atomic(self, r, dst, word, op, value, compare):
        def apply(t, key):
            old = self.words[dst, word]
            if op == 0:
                self.words[dst, word] = signed(old + value)
            elif op == 1 or old == compare:
                self.words[dst, word] = value
            self.at(t + self.cfg.response_latency_ps[self.kind(dst, r)], key, RESPONSE, answered, old)
            if self.words[dst, word] != old:
                self.look(dst, t, word)

        def answered(t, key, old):
            self.wait[r]["answer"] = old
            self.look(r, t)

        t = self.clock[r] + self.cfg.request_latency_ps[self.kind(r, dst)]
        self.at(t, self.key(r, ATOMIC), ATOMIC, apply)

    # ---- exchanges
    def post_row(self, r, channel, row, when, seq):
        """row: (counts, row_bytes, meta_bytes, offsets, tag, sizes by target or None), by place in the
        group."""
        group = self.groups[r, channel]
        name = channel, group, self.rounds[r, channel, group]
        self.rounds[r, channel, group] += 1
        self.at(when, self.key(r, ROW, seq=seq), ROW, self.row, r, name, row)
        return name

    def row(self, t, key, r, name, row):
        c, group = self.cfg, name[1]
        n, me, sizes = len(group), group.index(r), row[5]
        if sizes is None:
            sizes = [row[2]] * n
        self.exchanges[name]["rows"][r] = row
        start = begin = max(t, self.free[r, OUT])
        for j in range(1, n):
            place = (me + j) % n
            p, nbytes = group[place], sizes[place]
            ser = self.ps(nbytes, c.write_bytes_per_s[self.kind(r, p)])
            latency = c.put_latency_ps[self.kind(r, p)]
            self.at(start + latency, key, INGRESS, self.record_in, p, r, name, nbytes, ser)
            start += ser
        if n > 1:
            self.free[r, OUT] = start
            self.records[r, OUT].append((t, key, begin, start, sum(sizes) - sizes[me], META))
        ser = self.ps(sizes[me], c.write_bytes_per_s[0])
        own = self.serve(r, LOCAL, t, key, ser, sizes[me], META, r)
        self.at(own + ser + c.put_latency_ps[0], key, DELIVER, self.record_done, r, name)

    def record_in(self, t, key, p, source, name, meta, ser):
        start = self.serve(p, IN, t, key, ser, meta, META, source)
        self.at(start + ser, key, DELIVER, self.record_done, p, name)

    def record_done(self, t, key, p, name):
        exchange = self.exchanges[name]
        exchange["in"][p] += 1
        if exchange["in"][p] == len(name[1]):
            exchange["done"][p] = t
            w = self.wait[p]
            if w and w["call"] == "exchange" and w["armed"] and w["name"] == name:
                self.start_pull(p, max(t, w["base"]))

    def start_pull(self, r, base):
        w = self.wait[r]
        group, rows = w["name"][1], self.exchanges[w["name"]]["rows"]
        n, me = len(group), group.index(r)
        w["records"] = self.exchanges[w["name"]]["done"][r]
        first = w["last"] = base + w["pull_start"]
        w["left"] = found = 0

        def landed(t, key):
            w["left"] -= 1
            w["last"] = max(w["last"], t)
            if not w["left"]:
                self.end_exchange(r, w["last"], True)

        for j in range(1, n + 1):
            q = group[(me + j) % n]
            counts, row_bytes = rows[q][:2]
            if counts is None or counts[me] <= 0:
                continue
            t = first + found * w["record"] + self.cfg.request_latency_ps[self.kind(r, q)]
            found += 1
            nbytes = counts[me] * row_bytes
            key = self.key(r, PULL, found, w["seq"])
            self.at(max(t, base + 1), key, PULL, self.leave, q, r, nbytes, PULLED, landed)
        w["left"] = found
        if not found:
            self.end_exchange(r, first, False)

    def end_exchange(self, r, t, rows):
        w = self.wait[r]
        if rows or w["index"] == len(w["chain"]):
            group, posted = w["name"][1], self.exchanges[w["name"]]["rows"]
            table, me = [posted[q] for q in group], group.index(r)
            counts = tuple(0 if row[0] is None else row[0][me] for row in table)
            offsets = tuple(
                0 if row[3] is None or not count else row[3][me]
                for row, count in zip(table, counts, strict=True)
            )
            tags = tuple(row[4] for row in table)
            self.decide(r, t, (w["index"], w["records"], counts, offsets, tags))
            return
        channel, compute, meta, w["pull_start"], w["record"] = w["chain"][w["index"]]
        w["index"] += 1
        w["seq"] += 1
        w["base"] = t + self.cfg.call_price_ps + compute
        w["name"] = self.post_row(r, channel, (None, 0, meta, None, 0, None), w["base"], w["seq"])

    # ---- waits
    def block(self, r, call, **facts):
        t = self.clock[r]
        self.wait[r] = {
            "call": call,
            "base": t,
            "armed": False,
            "decided": False,
            "number": self.seq[r],
            **facts,
        }
        self.at(t, LATE | self.key(r, CHECK), CHECK, self.check, r, self.seq[r])

    def truth(self, r):
        """(decided, value) of r's wait as things stand."""
        w = self.wait[r]
        call = w["call"]
        if call == "wait":
            found = [COMPARE[k](self.words[r, word], value) for word, k, value in w["conditions"]]
            if w["any_"]:
                return True in found, found.index(True) if True in found else None
            return all(found), 0
        if call == "quiet":
            return not self.unacked[r] and not self.open_gets[r], 0
        if call == "wait_get":
            return w["handle"] not in self.open_gets[r], 0
        if call == "atomic":
            return "answer" in w, w.get("answer")
        if call in ("test", "poll"):
            yes = COMPARE[w["cmp"]](self.words[r, w["word"]], w["value"])
            return yes, int(yes)
        if call == "read":
            return True, self.words[r, w["word"]]
        return call == "observe", 0

    def check(self, t, key, r, number):
        w = self.wait[r]
        w["armed"] = True
        if w["call"] == "exchange":
            if r in self.exchanges[w["name"]]["done"]:
                self.start_pull(r, max(t, self.exchanges[w["name"]]["done"][r]))
            return
        yes, value = self.truth(r)
        if yes:
            self.go(r, t, value)
        elif w["call"] == "test":
            w["call"], w["base"] = "poll", t
            end = t + self.cfg.poll_price_ps * self.cfg.poll_max_polls
            self.at(end, LATE | self.key(r, POLL), POLL, self.late, r, number, 0)

    def look(self, r, t, changed=None):
        """Is r's wait decided by what happened at t?"""
        w = self.wait[r]
        if not w or not w["armed"] or w["decided"] or w["call"] == "exchange":
            return
        yes, value = self.truth(r)
        if w["call"] == "poll":
            if changed is not None and (yes or changed != w["word"]):
                poll = self.cfg.poll_price_ps
                self.decide(r, w["base"] + max(1, -(-(t - w["base"]) // poll)) * poll, 0)
        elif yes:
            self.decide(r, t, value)

    def decide(self, r, t, value):
        w = self.wait[r]
        w["decided"] = True
        self.at(max(t, w["base"]), LATE | self.key(r, RESUME), RESUME, self.resume, r, value)

    def resume(self, t, key, r, value):
        self.go(r, t, value)

    def late(self, t, key, r, number, value):
        """A time-out, or the end of a poll."""
        w = self.wait[r]
        if w and w["number"] == number and not w["decided"]:
            self.go(r, t, value)

    # ---- ranks
    def go(self, r, t, value):
        w, self.wait[r], self.clock[r] = self.wait[r], None, t
        self.seq[r] += len(w.get("chain", ()))
        self.log[r].append((value, t))
        self.advance(r, (value, t))

    def advance(self, r, sent):
        """Run rank r until it blocks or ends."""
        while True:
            try:
                call, args = self.programs[r].send(sent)
            except StopIteration:
                return
            if self.call(r, call, dict(args)):
                return
            sent = self.log[r][-1]

    def call(self, r, call, args):
        """Start a call; True if it blocks."""
        if call in ("flush", "open_group"):
            if call == "open_group":
                self.groups[r, args["channel"]] = tuple(args["members"])
            self.log[r].append((0, self.clock[r]))
            return False
        self.clock[r] += self.cfg.call_price_ps
        self.seq[r] += 1
        value = 0
        if call == "compute":
            self.clock[r] += args["ps"]
        elif call == "put":
            self.put(r, args["dst"], args["nbytes"], args["word"], args["op"], args["value"])
        elif call == "get":
            value = self.get(r, args["src"], args["nbytes"])
        elif call == "exchange_post":
            self.open_posts[r, args["channel"]] = self.post_row(
                r, args["channel"], args["row"], self.clock[r], self.seq[r]
            )
        elif call != "fence":
            self.start_wait(r, call, args)
            return True
        self.log[r].append((value, self.clock[r]))
        return False

    def start_wait(self, r, call, args):
        if call == "exchange":
            name = self.post_row(r, args["channel"], args["row"], self.clock[r], self.seq[r])
            self.block_exchange(r, name, args, args["chain"])
        elif call == "exchange_wait":
            self.block_exchange(r, self.open_posts.pop((r, args["channel"])), args, ())
        elif call == "atomic":
            self.block(r, call)
            self.atomic(r, **args)
        else:
            timeout = args.pop("timeout", None)
            self.block(r, call, **args)
            if timeout is not None:
                late = LATE | self.key(r, TIMEOUT)
                self.at(self.clock[r] + timeout, late, TIMEOUT, self.late, r, self.seq[r], -1)

    def block_exchange(self, r, name, args, chain):
        facts = {"name": name, "pull_start": args["pull_start"], "record": args["record"]}
        self.block(r, "exchange", chain=chain, index=0, seq=self.seq[r], **facts)

    def run(self):
        """(log per rank, blocked per rank, records per (rank, port))."""
        for r in range(self.n):
            self.advance(r, None)
        while self.heap:
            t, key, _, action, args = heapq.heappop(self.heap)
            action(t, key, *args)
        return self.log, [w is not None for w in self.wait], self.records
