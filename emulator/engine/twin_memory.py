"""The Python twin's shared buffer: columns of 64-bit integers by rank, arrays for exchanges, logs, and a
pickled heap.

Scalars are read through memoryviews, which are faster than NumPy for one element.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from emulator.engine import api
from emulator.engine.api import EngineConfig
from emulator.engine.codes import FATAL_TRACE
from emulator.engine.config import link_class
from emulator.engine.posts import INBOX_DTYPE, NUM_PORTS
from emulator.engine.schedules import SEND_DTYPE, STEP_DTYPE, Send, Step

INF = LATE = 1 << 62
HEADER = 4096
COLUMNS = (
    "word state clock result wait seq since armed decided done a b c num_conditions any bound look unacked "
    "subscribed interrupted lost "
    "vain skipped wakes waited slot pull_start record exchange_seq remaining last records chain_count "
    "chain_at log_head log_tail calls_0 calls_1 inbox_head inbox_tail "
    "steps step_at first_step step_ps deadline "
    "assumed met met_at meeting hold delays_counted requested achieved error off worst moved moved_ps"
)


class Row(NamedTuple):
    """What a rank brings to an exchange; arrays by place in the group, or None."""

    counts: Any
    offsets: Any
    row_bytes: int
    meta_bytes: int
    tag: int
    sizes: Any


class Memory:
    """Views over the buffer. `size` is what it needs; pass buf=None to plan only."""

    LOCK, DIRTY, OWNER, FATAL, CULPRIT, EVENTS, ENTRIES, BLOB, TRACE_HEAD, TRACE_TAIL = 0, *range(16, 25)
    REASON = 32
    WALL_START, WALL_AHEAD, WALL_ROUND, WALL_CHANGED = range(200, 204)

    def __init__(self, cfg: EngineConfig, buf: Any) -> None:
        self.cfg, self.n = cfg, cfg.num_ranks
        self._buf, self._at = buf, HEADER
        self.trace_fd = -1
        n, slots = self.n, 2 * cfg.channels
        self.facts: Any = None if buf is None else memoryview(buf).cast("B")[:HEADER].cast("q")
        for name in COLUMNS.split():
            setattr(self, name, self._column(n))
        self.free, self.busy = ([self._column(n) for _ in range(NUM_PORTS)] for _ in range(2))
        self.hash = [[self._column(n) for _ in range(2)] for _ in range(NUM_PORTS)]
        self.bytes = [self._column(n) for _ in range(4)]
        self.words = self._column(n * (cfg.words_per_rank + 1))  # the last counts inbox records
        self.posted, self.taken, self.rowers, self.round_check = (self._column(slots * n) for _ in range(4))
        self.rounds, self.leader, self.list_size, self.list_check, self.group_check = (
            self._column(n * cfg.channels) for _ in range(5)
        )
        self.grouped = self._column(cfg.channels)
        self._place_arrays(n, slots)
        self.blob_size = (cfg.node_bytes or max(1 << 24, 256 * n * (n + 64))) // 2
        self.blob = self._array(np.uint8, 2, self.blob_size)
        self.size = self._at

    def __getattr__(self, name: str) -> Any:  # the columns, for the type checker
        raise AttributeError(name)

    def _take(self, nbytes: int) -> int:
        at = self._at
        self._at = (at + nbytes + 63) & ~63
        return at

    def _column(self, length: int) -> Any:
        at = self._take(8 * length)
        return None if self._buf is None else memoryview(self._buf).cast("B")[at : at + 8 * length].cast("q")

    def _array(self, dtype: Any, *shape: int) -> Any:
        count = int(np.prod(shape))
        at = self._take(count * np.dtype(dtype).itemsize)
        return None if self._buf is None else np.frombuffer(self._buf, dtype, count, at).reshape(shape)

    def _place_arrays(self, n: int, slots: int) -> None:
        cfg, i8 = self.cfg, np.int64
        self.posted_at, self.keys, self.meta, self.row_bytes = (self._array(i8, slots, n) for _ in range(4))
        self.tags, self.has_rows, self.self_at = (self._array(i8, slots, n) for _ in range(3))
        self.low, self.meta_end, self.records_at = (self._array(i8, slots, n) for _ in range(3))
        self.has_sizes = self._array(np.bool_, slots, n)
        self.sizes, self.lag = (self._array(i8, slots, n, n) for _ in range(2))  # [source, place of target]
        self.lists = self._array(np.int32, cfg.channels, n, n)  # [leader, place]: a group's ranks
        self.group_of, self.place = (self._array(np.int32, slots, n) for _ in range(2))  # of the round there
        self.counts, self.offsets = (self._array(np.int32, slots, n, n) for _ in range(2))
        self.served = self._array(np.bool_, slots, n, n)
        self.classes = self._array(np.uint8, n, n)
        self.conditions = self._array(i8, n, cfg.conditions, 3)
        self.chains = self._array(i8, n, cfg.chain_steps, 5)
        self.logs = self._array(api.LOG_DTYPE, n, cfg.log_entries)
        self.inboxes = self._array(INBOX_DTYPE, n, cfg.inbox_entries)
        self.programs = self._array(np.uint8, n, cfg.schedule_bytes)
        self.delays = self._array(i8, n, cfg.wall.delays, 4)
        self.records_ring = self._array(api.RECORD_DTYPE, cfg.trace_records)

    def initialise(self) -> None:
        """First state; once, before anyone attaches."""
        n, cfg = self.n, self.cfg
        self.facts[self.OWNER] = -1
        self.posted_at[:] = self.low[:] = self.records_at[:] = INF
        ranks = np.arange(n)
        chips, nodes = ranks // cfg.dies_per_chip, ranks // cfg.dies_per_node
        shared = np.eye(n, dtype=int) + (chips[:, None] == chips) + (nodes[:, None] == nodes)
        self.classes[:] = 3 - shared
        for p in range(n):
            self.bound[p], self.slot[p] = cfg.call_price_ps, -1
            self.look[p] = self._least_latency_into(p)

    def _least_latency_into(self, p: int) -> int:
        cfg = self.cfg
        kinds = [
            latency
            for plane in self.seen_planes()
            for latency in (
                plane.put_latency_ps,
                plane.request_latency_ps,
                plane.response_latency_ps,
                plane.ack_latency_ps,
            )
        ]
        classes = {link_class(cfg, p, q) for q in range(self.n) if q != p}
        low = min((latency[k] for latency in kinds for k in classes), default=INF // 2)
        return min(low, INF // 2) if cfg.lookahead else 0

    def seen_planes(self) -> list[Any]:
        """Planes whose latencies bound how early another rank may reach one."""
        return [self.cfg, *self.cfg.planes]

    # ---- small views
    def link(self, p: int, q: int) -> int:
        return int(self.classes[p, q])

    def word_at(self, p: int, word: int) -> int:
        return p * (self.cfg.words_per_rank + 1) + word

    def conditions_of(self, p: int) -> Any:
        return self.conditions[p, : self.num_conditions[p]].tolist()

    def chain_of(self, p: int) -> Any:
        return self.chains[p]

    # ---- schedules
    def program(self, p: int) -> tuple[Any, Any]:
        """Rank p's steps and sends, in its area."""
        area, end = self.programs[p], self.steps[p] * STEP_DTYPE.itemsize
        sends = area[end:][: (len(area) - end) // SEND_DTYPE.itemsize * SEND_DTYPE.itemsize]
        return area[:end].view(STEP_DTYPE), sends.view(SEND_DTYPE)

    def step_of(self, p: int) -> tuple[Step, list[Send]]:
        """Rank p's next step, and its puts."""
        steps, sends = self.program(p)
        step = Step(*steps[self.step_at[p]].tolist())
        return step, [Send(*row) for row in sends[step.first : step.first + step.count].tolist()]

    # ---- groups
    def group(self, channel: int, p: int) -> Any:
        """The ranks of the group whose exchanges p takes part in, in the group's order."""
        leader = self.leader[channel * self.n + p] - 1
        return np.arange(self.n) if leader < 0 else self._list(channel, leader)

    def own_place(self, channel: int, p: int) -> int:
        """My place in that group."""
        return int(np.flatnonzero(self.group(channel, p) == p)[0])

    def own_round(self, slot: int, p: int) -> int:
        """Where the counters of that group's exchange in the slot are."""
        return slot * self.n + max(int(self.leader[slot // 2 * self.n + p]) - 1, 0)

    def _list(self, channel: int, leader: int) -> Any:
        return self.lists[channel, leader, : self.list_size[channel * self.n + leader]]

    def members(self, slot: int, p: int) -> Any:
        """The ranks whose exchange in the slot reaches p; p may not have opened that group yet."""
        leader = int(self.group_of[slot][p]) - 1
        return np.arange(self.n) if leader < 0 else self._list(slot // 2, leader)

    def place_at(self, slot: int, p: int) -> int:
        """p's place among them."""
        return int(self.place[slot][p]) if self.group_of[slot][p] else p

    def round_of(self, slot: int, p: int) -> int:
        """Where the counters of that exchange are."""
        return slot * self.n + max(int(self.group_of[slot][p]) - 1, 0)

    def enter_round(self, slot: int, p: int) -> bool:
        """p's row is the first or next of its group's exchange; False if something else is under way."""
        channel, n = slot // 2, self.n
        leader, ranks = self.leader[channel * n + p], self.group(channel, p)
        check, i = self.group_check[channel * n + p], self.own_round(slot, p)
        if self.posted[i] and self.round_check[i] != check:
            return False
        if leader and self.list_check[channel * n + leader - 1] != check:
            return False
        strange = (self.group_of[slot][ranks] != leader) & (self.posted_at[slot][ranks] < INF)
        if strange.any():
            return False
        self.group_of[slot][ranks] = leader
        if leader:
            self.place[slot][ranks] = np.arange(len(ranks))
        if not self.posted[i]:
            self.rowers[i], self.round_check[i] = 0, check
        return True

    def form(self, channel: int, p: int, members: Any, check: int) -> bool:
        """p's exchanges of the channel are among `members` from now on; False while an older one of p's is
        under way. check: of the members and their order, 0 for all ranks in order."""
        n, first, others = self.n, int(members.min()), False
        for slot in (2 * channel, 2 * channel + 1):
            i = slot * n + first
            if self.posted_at[slot][p] < INF:
                return False
            others |= self.posted[i] > 0 and self.round_check[i] != check  # so will my exchange be refused
        self.rounds[p * self.cfg.channels + channel] = 0
        self.leader[channel * n + p] = first + 1 if check else 0
        self.group_check[channel * n + p] = check
        if check and not others:
            self.list_check[channel * n + first] = check
            self.list_size[channel * n + first] = len(members)
            self.lists[channel, first, : len(members)] = members
            self.grouped[channel] = 1
        return True

    # ---- exchanges
    def arrivals_at(self, slot: int, p: int) -> Any:
        """When each source's record reaches p's ingress [place of the source] (nonsense for those not
        posted, and for p)."""
        ranks = self.members(slot, p)
        at = self.posted_at[slot][ranks] + self.lag[slot][ranks, self.place_at(slot, p)]
        return at + np.asarray(self.cfg.put_latency_ps)[self.classes[p, ranks]]

    def open_slot(self, p: int, channel: int) -> int:
        """Rank p's next exchange on a channel: its slot, or -1 if the slot is still in use."""
        i = p * self.cfg.channels + channel
        slot = 2 * channel + (self.rounds[i] & 1)
        self.rounds[i] += 1
        return -1 if self.posted_at[slot][p] < INF else slot

    def write_row(self, slot: int, p: int, row: "Row") -> None:
        g = len(self.group(slot // 2, p))
        self.counts[slot][p, :g] = 0 if row.counts is None else row.counts
        self.offsets[slot][p, :g] = 0 if row.offsets is None else row.offsets
        self.has_rows[slot][p] = row.counts is not None
        self.has_sizes[slot][p] = row.sizes is not None
        if row.sizes is not None:
            self.sizes[slot][p, :g] = row.sizes
        self.meta[slot][p], self.row_bytes[slot][p] = row.meta_bytes, row.row_bytes
        self.tags[slot][p], self.records_at[slot][p] = row.tag, INF

    def close_round(self, slot: int, p: int) -> None:
        """Everybody of p's group has the records of the exchange."""
        ranks, i = self.members(slot, p), self.round_of(slot, p)
        self.posted[i] = self.taken[i] = 0
        self.posted_at[slot][ranks] = self.low[slot][ranks] = INF
        self.meta_end[slot][ranks] = 0
        self.served[slot][ranks] = False
        self.group_of[slot][ranks] = 0

    def drop_exchanges(self) -> None:
        """Exchanges under way are over; every channel is as new."""
        self.posted_at[:] = self.low[:] = INF
        self.meta_end[:] = self.group_of[:] = 0
        self.served[:] = False
        for column in (self.posted, self.taken, self.rowers, self.round_check, self.rounds):
            for i in range(len(column)):
                column[i] = 0

    # ---- logs and trace
    def append_log(self, p: int, entry: tuple[int, ...]) -> bool:
        if self.log_head[p] - self.log_tail[p] >= self.cfg.log_entries:
            return False
        self.logs[p, self.log_head[p] % self.cfg.log_entries] = entry
        self.log_head[p] += 1
        return True

    def trace(
        self,
        t: int,
        key: int,
        start: int,
        end: int,
        nbytes: int,
        rank: int,
        peer: int,
        port: int,
        kind: int,
        fail: Callable[[int, int], None],
    ) -> None:
        """Append a port reservation to the trace ring, if there is one."""
        size = self.cfg.trace_records
        if not size:
            return
        head = self.facts[self.TRACE_HEAD]
        if head - self.facts[self.TRACE_TAIL] == size:
            if self.trace_fd < 0:
                fail(FATAL_TRACE, rank)
                return
            self.flush_trace()
        self.records_ring[head % size] = (t, key, start, end, nbytes, rank, peer, port, kind)
        self.facts[self.TRACE_HEAD] = head + 1

    def flush_trace(self) -> None:
        """Write the trace ring out."""
        head, tail, size = self.facts[self.TRACE_HEAD], self.facts[self.TRACE_TAIL], self.cfg.trace_records
        left = memoryview(self.records_ring[np.arange(tail, head) % size].tobytes())
        while left:
            left = left[os.write(self.trace_fd, left) :]
        self.facts[self.TRACE_TAIL] = head
