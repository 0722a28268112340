"""The definition of right for posts: units, planes, order flags, guards, retries, streams, inbox, matching.

Built on the sequential `Oracle`: one queue, one event at a time, every question asked of plain lists. Calls
added to programs: ("post", {"posts": tuple of field dicts, "step": ps}) answers the first sequence number,
("inbox", {}) the records up to now as tuples, ("retire", {"stream": s}) nothing; the last two take no time.
"""

import heapq

from oracle import LATE
from oracle_poster import HERE, K_CLOSE, K_GET, K_LOCAL, K_PUT, K_RECV, K_SEND, K_WORD, LOG_DROP, START, Item
from oracle_target import Target


class PostsOracle(Target):
    """What a program may call, and the queue."""

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
