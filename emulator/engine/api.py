"""What a rank sees of the event engine: one configuration, one protocol, two implementations ("c", "python").

Every call costs its caller `call_price_ps` (at least 1 ps) of virtual time *before* it takes effect. Every
blocking call is an observation point: when it returns at `now_ps`, everything that reached this rank at or
before `now_ps` is final, applied to its words and in its apply log. Times are integer picoseconds, sizes
bytes.

Link classes: 0 SELF, 1 CHIP, 2 NODE, 3 POD. A die has one egress port and one ingress port for classes 1 to
3 and a local port for class 0.

    put       EGRESS at me -> INGRESS at dst (put latency later) -> DELIVER (log entry, word) -> ACK at me
    get       request -> EGRESS at src (snapshot entry in src's log) -> INGRESS at me -> done
    atomic    request -> applied at dst -> response
    exchange  a metadata record to every rank; when all n have arrived, the rows are pulled with gets
    post      all that point-to-point operations can do, one row or a batch; see `posts`
    schedule  steps of compute, puts and a wait, carried out while the rank sleeps; see `schedules`
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from emulator.engine.posts import NUM_PORTS, Inbox, Posts
from emulator.engine.schedules import Sends, Steps

__all__ = [
    "ADD",
    "ATOMIC_ADD",
    "ATOMIC_AND",
    "ATOMIC_OR",
    "ATOMIC_XOR",
    "CAS",
    "CLASSES",
    "CHIP",
    "EQ",
    "GE",
    "GT",
    "HERE",
    "KIND_GET",
    "KIND_META",
    "KIND_PULL",
    "KIND_PUT",
    "KIND_SEND",
    "KIND_WORD",
    "LE",
    "LOG_DROP",
    "LOG_DTYPE",
    "LOG_PUT",
    "LOG_RMW",
    "LOG_SNAPSHOT",
    "LT",
    "MAX_RANKS",
    "NE",
    "NODE",
    "POD",
    "PORT_EGRESS",
    "PORT_INGRESS",
    "PORT_LOCAL",
    "RECORD_DTYPE",
    "SELF",
    "SET",
    "SWAP",
    "TIMEOUT",
    "ChainStep",
    "Engine",
    "EngineConfig",
    "EngineKind",
    "ExchangeResult",
    "LogRef",
    "PlaneConfig",
    "Statistics",
]

EngineKind = Literal["c", "python"]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

CLASSES = ("self", "chip", "node", "pod")
SELF, CHIP, NODE, POD = range(4)
EQ, NE, GT, GE, LT, LE = range(6)
HERE = 6
"""Comparison of a condition of `wait` about an exchange."""
NO_OP, SET, ADD = range(3)
ATOMIC_ADD, SWAP, CAS, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR = range(6)
TIMEOUT = -1
"""What `wait` returns when its time-out came first."""
LOG_PUT, LOG_SNAPSHOT, LOG_RMW, LOG_DROP = range(1, 5)
PORT_EGRESS, PORT_INGRESS, PORT_LOCAL = range(3)
KIND_PUT, KIND_GET, KIND_META, KIND_PULL, KIND_SEND, KIND_WORD = range(6)
MAX_RANKS = 4095
MAX_CHANNELS = 1024

LOG_DTYPE = np.dtype(
    [
        ("time_ps", "i8"),  # when the entry took effect at this target
        ("kind", "i4"),  # LOG_; LOG_DROP: an operation ended without effect (a: its kind, b: its log_kind)
        ("rank", "i4"),  # who posted: the writer of a put, the reader of a get
        ("file_id", "i8"),  # where the put's bytes are staged, or where the snapshot goes
        ("file_offset", "i8"),
        ("offset", "i8"),  # in the target's memory: first byte written or read; -1 dropped payload of a SEND
        ("nbytes", "i8"),
        ("op_id", "i8"),  # the poster's own number
        ("key", "i8"),  # order among entries of one instant
        ("a", "i8"),  # log_a, log_b of the post
        ("b", "i8"),
    ]
)
"""One entry of a target's apply log, in key order. The engine never touches payload bytes."""

RECORD_DTYPE = np.dtype(
    [
        ("time_ps", "i8"),  # arrival at the port
        ("key", "i8"),  # (rank, sequence, sub-index, stage) of the operation
        ("start_ps", "i8"),
        ("end_ps", "i8"),
        ("nbytes", "i8"),
        ("rank", "i4"),  # whose port
        ("peer", "i4"),  # the other end; -1 for a row of metadata records at its egress
        ("port", "i4"),  # PORT_* + 3 * plane, or posts.PORT_UNIT + unit
        ("kind", "i4"),  # KIND_*
    ]
)
"""One reservation of a port, as written to the trace file descriptor. In key order per port, not across
ports."""


class PlaneConfig(NamedTuple):
    """A further fabric between the same dies with ports of its own; fields as in `EngineConfig`."""

    put_latency_ps: tuple[int, int, int, int]
    request_latency_ps: tuple[int, int, int, int]
    response_latency_ps: tuple[int, int, int, int]
    ack_latency_ps: tuple[int, int, int, int]
    write_bytes_per_s: tuple[int, int, int, int]
    read_bytes_per_s: tuple[int, int, int, int]


class WallConfig(NamedTuple):
    """The wall clock; all zero for the virtual one.

    dilation_ppm: host time per emulated time, millionths.
    grace_ns: host time a running rank may be late before the others go on without it.
    spin_ns: spin, instead of sleeping, for this last part of a sleep.
    delays: how many of its last delays each rank keeps for the report.
    measured_ppm: charge the thread's real time times this, millionths, for compute; 0: the price.
    """

    dilation_ppm: int = 0
    grace_ns: int = 0
    spin_ns: int = 0
    delays: int = 0
    measured_ppm: int = 0


@dataclass(frozen=True)
class EngineConfig:
    """What the engine needs to know of the machine. Tuples of four are indexed by link class.

    Args:
        num_ranks: 1 to `MAX_RANKS`.
        dies_per_chip, dies_per_node: rank r sits on chip r // dies_per_chip and node r // dies_per_node.
        put_latency_ps: first byte of a put, from leaving egress to reaching ingress.
        request_latency_ps, response_latency_ps: the two halves of a get or an atomic.
        ack_latency_ps: from delivery of a put to its poster.
        write_bytes_per_s, read_bytes_per_s: integer bandwidth of puts and of get responses.
        call_price_ps: virtual cost of every call, at least 1.
        poll_price_ps, poll_max_polls: tick of an unsuccessful `test`, and how many ticks it may skip.
        words_per_rank: 64-bit words for signals and atomics. `words_per_rank` itself is the number of one
            more word that only the engine writes: how many records my inbox ever got (`Engine.inbox_word`).
        channels: independent sequences of exchanges.
        chain_steps: longest chain of one `exchange`.
        log_entries: ring size of each target's apply log, a power of two.
        lookahead: use latencies to settle earlier (False is slower and gives the same result).
        wall_deadline_s: host seconds without any engine entry of any rank that end the run with a report.
        keep_going: survivors go on after a rank died.
        livelock_polls: failed `test` calls in a row, of every rank, that count as polling in vain.
        trace_records: ring of port reservations for tracing, 0 for none.
        node_bytes: arena for pending events; 0 chooses by num_ranks.
        planes: planes 1, 2, ... (at most posts.MAX_PLANES - 1); plane 0 is described above. Exchanges use
            plane 0.
        conditions: most conditions of one `wait`.
        inbox_entries: ring of records that a rank has not taken yet.
        schedule_bytes: room for the steps of one rank's schedule, a multiple of 64; a longer one costs a
            wake-up for each piece.
        wall: the wall clock, if the run has it.
    """

    num_ranks: int
    dies_per_chip: int
    dies_per_node: int
    put_latency_ps: tuple[int, int, int, int]
    request_latency_ps: tuple[int, int, int, int]
    response_latency_ps: tuple[int, int, int, int]
    ack_latency_ps: tuple[int, int, int, int]
    write_bytes_per_s: tuple[int, int, int, int]
    read_bytes_per_s: tuple[int, int, int, int]
    call_price_ps: int = 1
    poll_price_ps: int = 100_000
    poll_max_polls: int = 1_000_000
    words_per_rank: int = 256
    channels: int = 8
    chain_steps: int = 512
    log_entries: int = 4096
    lookahead: bool = True
    wall_deadline_s: float = 600.0
    keep_going: bool = False
    livelock_polls: int = 200
    trace_records: int = 0
    node_bytes: int = 0
    planes: tuple[PlaneConfig, ...] = ()
    conditions: int = 256
    inbox_entries: int = 4096
    schedule_bytes: int = 65536
    wall: WallConfig = WallConfig()


class LogRef(NamedTuple):
    """What the apply log of the target will say about this operation; opaque to the engine."""

    file_id: int
    file_offset: int
    offset: int
    nbytes: int
    op_id: int


class ChainStep(NamedTuple):
    """An exchange to be posted on my behalf with zero rows, `call_price_ps + compute_ps` after the one
    before ended."""

    channel: int
    compute_ps: int
    meta_bytes: int
    pull_start_ps: int = 0
    record_ps: int = 0


class ExchangeResult(NamedTuple):
    """How an exchange ended for me.

    index: which exchange of the chain woke me (0 is the one I posted myself).
    time_ps: when the last row was in (equals `now_ps`).
    records_ps: when the last of the n metadata records was in.
    counts: int32 [n] rows I received, by source (in a group: by place in it).
    offsets: int32 [n] what each source said in its record for me (where my rows begin in its buffer); 0
        where it has no rows for me.
    tags: int64 [n] what each source said to everybody.
    """

    index: int  # type: ignore[assignment]
    time_ps: int
    records_ps: int
    counts: Int32Array
    offsets: Int32Array
    tags: Int64Array


class Statistics(NamedTuple):
    """Counters since the start, of the whole pod where not said otherwise. Arrays are int64, by rank.

    Host-dependent: `entries` and `wake_ups` (never put them into a result that must be reproducible).
    busy_ps: [n, 3] by port of plane 0. all_busy_ps: [n, posts.NUM_PORTS], units too.
    bytes_by_class: [n, 4] charged bytes by poster or reader. wait_ps: [n] blocked.
    """

    events: int
    entries: int
    wake_ups: Int64Array
    polls_skipped: Int64Array
    busy_ps: Int64Array
    bytes_by_class: Int64Array
    wait_ps: Int64Array
    all_busy_ps: Int64Array = np.zeros((0, NUM_PORTS), dtype=np.int64)


class Engine(Protocol):
    """One rank's face of the engine. Not thread-safe. Any blocking call may raise DeadlockError,
    RankLostError, WallDeadlineError or InternalError; bad arguments raise UsageError before any time
    passes."""

    remarks: Callable[[], str] | None
    """What ranks have remarked outside virtual time, for reports; see `emulator.remarks`."""

    @property
    def now_ps(self) -> int:
        """My virtual clock."""

    @property
    def rank(self) -> int: ...

    @property
    def num_ranks(self) -> int: ...

    @property
    def config(self) -> EngineConfig: ...

    @property
    def last_seq(self) -> int:
        """Sequence number of my last call that took one: after `fence`, what a post's `fence` has to be."""

    def link_class(self, peer: int) -> int:
        """Class of the path between me and `peer`."""

    def compute(self, ps: int, kind: int = 0, publish: bool = True) -> None:
        """Let `ps` pass, priced work. Call it *before* the real arithmetic: `publish` tells the others at
        once that I issue nothing until then, so they can go on meanwhile. `kind` only labels the region in
        the digest."""

    def sleep(self, ps: int) -> None:
        """Let `ps` pass doing nothing; same as an unlabelled compute."""

    def put(
        self,
        dst: int,
        charged_bytes: int,
        log: LogRef | None = None,
        word: int | None = None,
        op: int = SET,
        value: int = 0,
    ) -> None:
        """Post a put; buffered in this process, no engine entry. At delivery `log` is appended to dst's
        apply log, then `word` of dst is set to `value` or has it added (SET, ADD). Complete after `quiet`."""

    def get(self, src: int, charged_bytes: int, log: LogRef | None = None) -> int:
        """Post a get; buffered. `log` is appended to *src*'s apply log (LOG_SNAPSHOT) when the response
        leaves. Returns a handle for `wait_get`."""

    def wait_get(self, handle: int) -> None:
        """Block until that get's response is in."""

    def atomic(self, dst: int, word: int, op: int, value: int, compare: int = 0) -> int:
        """ATOMIC_ADD, SWAP or CAS on a word of dst. Blocks; returns the old value (64-bit, wraps)."""

    def post(self, posts: Posts, step_ps: int = 0) -> int:
        """Post all rows in order; see `posts`.

        Post i leaves at now + (i + 1) * (call_price_ps + step_ps), which is then `now_ps`. Buffered, no
        engine entry; a batch equals a loop of single posts to the bit in virtual time and digest.

        Args:
            posts: [count] of POST_DTYPE, C-contiguous; copied.
            step_ps: what each post costs me besides the call price.

        Returns: the sequence number of the first; they are consecutive. `wait_get` takes that of a K_GET or
            K_WORD.

        Raises: UsageError naming the row and field, before any time passes.
        Completion: see `done` (DONE records), `note`, `quiet` (all K_PUT, K_GET and K_WORD of mine; not
            K_SEND, which may wait for a receive for ever).
        """

    def schedule(self, steps: Steps, sends: Sends, step_ps: int = 0, timeout_ps: int | None = None) -> int:
        """Carry out steps in order: compute, puts, wait for one of my words. See `schedules`.

        Equal to the loop of the calls `compute`, `post` and `wait` in everything but host time: one engine
        entry and one wake-up (one for each `schedule_bytes` of steps and sends). An observation point, up to
        its last wait: what follows that is only buffered, as in the loop.

        Args:
            steps: [count] of STEP_DTYPE, copied.
            sends: the puts they refer to, of SEND_DTYPE, copied. `quiet` waits for them as for all puts.
            step_ps: what each put costs me besides the call price.
            timeout_ps: after so long from now the wait under way ends, or the next one as it begins if its
                condition does not hold then, and with it the schedule; None for never.

        Returns: how many steps were carried out: all, or up to the one whose wait timed out.

        Raises: UsageError naming the row and field, before any time passes; DeadlockError (and so on) naming
            the step and word.
        """

    def retire(self, stream: int) -> None:
        """Forget a stream that I closed or that failed, and never use its number again. No time passes. Every
        operation of it must have ended."""

    def inbox(self) -> Inbox:
        """Take my records of times up to my last observation, in key order. No time passes."""

    @property
    def inbox_word(self) -> int:
        """Number of the word that counts records ever appended to my inbox; for `wait`, `test` and `read`."""

    def fence(self) -> None:
        """Puts to one target posted before are delivered before those posted after. (The fabric keeps that
        order anyway; it only costs the call.)"""

    def quiet(self) -> None:
        """Block until every put of mine is acknowledged and every get of mine is in."""

    def flush(self) -> None:
        """Hand the buffered posts over now. Costs nothing in virtual time and changes no result; a rank that
        will be busy on the host for long without any other call should do it."""

    def wait(
        self, conditions: Sequence[tuple[int, int, int]], any_: bool = False, timeout_ps: int | None = None
    ) -> int:
        """Block until all (or any) of my (word, comparison, value) hold at one instant. A condition
        (channel, HERE, 0): the exchange I posted there has all its records here.

        Returns the index of the first that holds (0 for all), or TIMEOUT at exactly the time-out; a delivery
        at the same instant beats the time-out."""

    def test(self, word: int, cmp: int, value: int) -> bool:
        """Does the comparison hold now? If not, my clock moves to the first poll tick at which the answer may
        differ: when it came to hold, when another word of mine changed, or `poll_max_polls` ticks later."""

    def read(self, word: int) -> int:
        """Value of my word, everything up to now included."""

    def observe(self) -> None:
        """Everything up to now is final and in my words and my apply log when this returns."""

    def exchange(
        self,
        channel: int,
        counts: Int32Array | None,
        row_bytes: int,
        meta_bytes: int,
        pull_start_ps: int = 0,
        record_ps: int = 0,
        chain: Sequence[ChainStep] = (),
        offsets: Int32Array | None = None,
        tag: int = 0,
        record_bytes: Int64Array | None = None,
    ) -> ExchangeResult:
        """Take part in the next exchange of `channel`; all ranks (of my group, see `open_group`) do, each
        channel in its own order. n, me and the order of ranks are those of the group.

        1. A record of meta_bytes leaves for me+1, me+2, ..., me. All n are in at M, here.
        2. For each source with counts > 0 for me, in the order me+1, ..., me, the i-th such (from 0) at
           M + pull_start_ps + i * record_ps a get of counts * row_bytes (row_bytes as that source gave it).
        3. I resume when the last is in, or at M + pull_start_ps if there is none.

        Args:
            counts: int32 [n], rows I hold for each target; None for none (barrier, status all-gather).
            offsets: int32 [n], given to each target as they are; None for zeros.
            tag: 64-bit, given to everybody.
            record_bytes: int64 [n], size of my record to each target, instead of meta_bytes; 0 is still a
                record. Charged data that goes with the records: an all-to-all of any sizes is one exchange.
            chain: what else I take part in, asleep, as long as I receive no rows; I resume with the first
            exchange
                that brings me rows, or after the last. (A chain uses `len(chain)` sequence numbers.)
        """

    def exchange_post(
        self,
        channel: int,
        counts: Int32Array | None,
        row_bytes: int,
        meta_bytes: int,
        offsets: Int32Array | None = None,
        tag: int = 0,
        record_bytes: Int64Array | None = None,
    ) -> None:
        """Step 1 alone, without blocking; at most one exchange of a channel may be open."""

    def exchange_wait(self, channel: int, pull_start_ps: int = 0, record_ps: int = 0) -> ExchangeResult:
        """Steps 2 and 3 of the exchange I posted on `channel`; the pull begins at M or now, whichever is
        later."""

    def open_group(self, channel: int, members: Int32Array) -> None:
        """From my next exchange of `channel` on it is among `members`, int32 [g] ranks in any order, me among
        them: arrays are [g] in that order, "me+1, ..., me" goes by it. No time passes.

        Each member calls it with the same list, before its first exchange there. Disjoint groups may use one
        channel at the same time. A channel may be opened anew, with other members or all ranks, once its
        exchanges have ended for all members: after they have met elsewhere.

        Raises: UsageError: a list with a rank twice, without me, or of ranks that do not exist; an exchange
            of the channel is under way. (Exchanges raise it on all ranks where members gave different lists.)
        """

    def log_lock(self, target: int) -> None:
        """Take target's apply lock (robust: the lock of a killed holder is taken over)."""

    def log_unlock(self, target: int) -> None: ...

    def log_view(self, target: int) -> np.ndarray[Any, np.dtype[Any]]:
        """A copy (LOG_DTYPE) of the entries not yet taken off, oldest first. Entries of a time after your own
        `now_ps` may be there already: stop at them. Hold the apply lock."""

    def log_advance(self, target: int, count: int) -> None:
        """Take the oldest `count` entries off. Hold the apply lock."""

    def finish(self) -> None:
        """I issue nothing any more (end or early exit); operations under way go on. Idempotent."""

    def mark_dead(self, rank: int) -> None:
        """The supervisor saw this rank die. Safe to call from any attached process, more than once."""

    def dead_ranks(self) -> list[int]:
        """Ranks known to be dead."""

    def subscribe(self) -> None:
        """Tell me of deaths: when every rank is blocked for good and some have died since the last change,
        all blocked ranks (subscribed, all of them) are resumed at the latest of their clocks with
        MembershipChanged, instead of a report. Exchanges under way are over and their channels as new; they
        go on among the living, who open their group there (`open_group`)."""

    def lost(self) -> Int64Array:
        """int64 [n]: number (from 1) of the change of membership that found a rank dead, 0 for the living;
        the same for all who ask between two changes."""

    def abort(self, reason: str) -> None:
        """End the run: every rank's next or current call raises InternalError with this reason."""

    def digest(self, rank: int) -> bytes:
        """32 bytes: over every reservation of that rank's ports in key order, and over its own calls (kind,
        start, end, peer, bytes) in program order. Stable once the rank has finished and nothing is under
        way."""

    def start_clock(self) -> None:
        """Wall clock: all living ranks meet on the host, and time goes on from the latest clock among them.
        Who is blocked waits for nobody at the meeting: they go on unslept, and time starts when it has come.
        Nothing under the virtual clock. Raises WallDeadlineError if some rank does not come."""

    def hold_clock(self) -> None:
        """Wall clock: the same meeting, after which emulated time passes without being slept and without
        counting, until `start_clock`. Nothing under the virtual clock."""

    def wall(self, rank: int) -> "tuple[Int64Array, Int64Array]":
        """Sums and last delays of a rank under the wall clock, host ns.

        Returns:
            int64 [9]: delays, requested, achieved, sum of |achieved - requested|, delays off by more than
            5 %, worst lateness, times the others went on without this rank, by how much in all (ps), and
            CLOCK_MONOTONIC at emulated time 0;
            int64 [k, 4]: requested, achieved, lateness and kind (`codes.W_...`) of its last k delays.
        """

    def statistics(self) -> Statistics:
        """See Statistics."""

    def set_trace(self, fd: int) -> None:
        """Where port reservations are written (RECORD_DTYPE, O_APPEND), by whoever enters the engine, when
        the ring of `trace_records` fills. Every attached process must set it."""

    def drain(self) -> None:
        """Write what is left in the trace ring."""

    def set_jitter(self, probability: float, max_us: int, seed: int) -> None:
        """Sleep at random on the host in engine calls, inside and outside the lock. Tests only; results must
        not change."""
