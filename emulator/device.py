"""One rank's NPU die: its clock, its memory, its ports, and the calls that use them.

Every call records what it did. Every blocking call is an observation point: when it returns, the rank's
own heap shows everything delivered up to its clock and nothing later.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.board import Board
from emulator.config import RunConfig
from emulator.delivery import Delivery
from emulator.device_exchange import BARRIER_CHANNEL, META_BYTES, ExchangeCalls
from emulator.device_posts import PostCalls
from emulator.device_schedule import ScheduleCalls
from emulator.engine.api import SET, Engine
from emulator.errors import RankLostError, StateError, UsageError, misuse
from emulator.fabric import Fabric, Shape
from emulator.faults import Faults, NoFaults
from emulator.futex import wake_all
from emulator.ledger import Ledger
from emulator.memory import Memory, as_bytes
from emulator.npu import PriceList
from emulator.pairs import compiled_calls
from emulator.planes import Plane, latencies_ps
from emulator.posting import Posting
from emulator.profile import Profile
from emulator.rows import RowKernels
from emulator.symmetric import SymmetricSpace
from emulator.topology import Topology
from emulator.tracing import Op, RankTrace
from emulator.transport import Area, Bytes, Transport

__all__ = ["BARRIER_CHANNEL", "META_BYTES", "Device"]

ENDED = "the run has ended on this rank: after finalize() nothing of it can be used"
FORKED = "this process was forked from a rank and is none: nothing of the run can be used here"
_TWO_AT_ONCE = "another thread of this rank is in a call: a rank makes one call at a time"
_NO_BYTES = np.empty(0, np.uint8)


class Device(ExchangeCalls, PostCalls, ScheduleCalls):
    """What a rank program holds after `emulator.init()`.

    Attributes:
        config, profile, topology, prices, fabric: what the run is made of.
        ledger: transactions, bytes and calls of this rank; the libraries above count them.
        faults: the injector; does nothing without a fault plan.
        transport, engine, memory, board, rows, trace: the parts of the machine; for library code.
        library: what libraries above keep for this device, by their class.
        symmetric: allocation of heap, managed memory, signal words and channels, alike on all ranks.
    """

    def __init__(
        self,
        config: RunConfig,
        profile: Profile,
        topology: Topology,
        transport: Transport,
        engine: Engine,
        board: Board,
        rows: RowKernels,
        faults: Faults | None = None,
    ) -> None:
        self.config, self.profile, self.topology = config, profile, topology
        self.transport, self.engine, self.board, self.rows = transport, engine, board, rows
        self.prices, self.fabric = PriceList(profile), Fabric(profile, topology)
        self.memory = Memory(transport, engine, board)
        self.trace = RankTrace(transport.rank, config.trace)
        self.symmetric = SymmetricSpace(self)
        self.rank, self.num_ranks = transport.rank, transport.num_ranks
        self.ledger = Ledger(board.ledger[self.rank])
        self.posting = Posting(self)
        self.delivery = self._make_delivery()
        self.library: dict[Any, Any] = {}
        self.beside = None
        self._told: npt.NDArray[np.uint8] | None = None
        self._epoch = 0
        self.after_barrier: list[Callable[[], None]] = []
        self.faults: Faults = faults or NoFaults()
        stepwise = self.faults.active  # faults fire between the steps of an operation
        self.compiled = None if stepwise else compiled_calls(self, BARRIER_CHANNEL, META_BYTES)
        """Operations as one compiled call each, where that is possible."""
        self._meet = self.compiled.meet if self.compiled else lambda: 0
        self._schedule = self.compiled.schedule if self.compiled else lambda *_: None
        self._exchange_tags = self.compiled.exchange_tags if self.compiled else lambda *_: None

    def _make_delivery(self) -> Delivery:
        if self.config.delivery == "natural":
            return Delivery.natural()
        latency_ps = latencies_ps(self.engine.config, self.topology.classes(self.rank))
        return Delivery.adversarial(self.config.seed, self.rank, latency_ps, self.posting.new_stream)

    @property
    def now_ps(self) -> int:
        """Virtual time of this rank, picoseconds."""
        return self.engine.now_ps

    @property
    def instant_ns(self) -> int:
        """Wall clock: the host's CLOCK_MONOTONIC, ns, to which this rank's `now_ps` belongs. Else 0."""
        ppm = self.engine.config.wall.dilation_ppm
        return int(self.engine.wall(self.rank)[0][8]) + self.now_ps * ppm // 10**9 if ppm else 0

    # --- time -------------------------------------------------------------------------------------------

    def compute(
        self,
        ps: int | None = None,
        *,
        flops: int | None = None,
        bytes: int | None = None,
        kernel: str = "elementwise",
        label: int = 0,
        publish: bool = True,
    ) -> None:
        """Charge priced work. Call it before the real arithmetic: the other ranks go on meanwhile.

        Args:
            ps: the price itself; or
            flops, bytes: operations and HBM bytes of one call of `kernel`, priced by the machine profile.
            label: a small number that names the region in the trace.
            publish: tell the others at once; False where a blocking call follows immediately.

        Raises:
            UsageError: neither or both ways of pricing, negative or unknown values.
        """
        if (ps is None) == (flops is None and bytes is None):
            raise UsageError("compute: give either ps, or flops and bytes of a kernel")
        price = self.prices.price_ps(kernel, flops or 0, bytes or 0) if ps is None else ps
        start = self.engine.now_ps
        self.engine.compute(price, label, publish)
        self.trace.add(Op.COMPUTE, start, self.engine.now_ps, label)

    def sleep_ps(self, ps: int) -> None:
        """Let virtual time pass."""
        start = self.engine.now_ps
        self.engine.sleep(ps)
        self.trace.add(Op.SLEEP, start, self.engine.now_ps)

    # --- one-sided movement of heap bytes ---------------------------------------------------------------

    def put(
        self,
        target: int,
        offset: int,
        data: npt.NDArray[Any],
        charged_bytes: int,
        word: int | None = None,
        op: int = SET,
        value: int = 0,
    ) -> None:
        """Post a put of a C-contiguous array to byte `offset` of the target's heap, then an optional word
        update.

        Completion: `data` may be reused on return; the target sees the bytes at their delivery.
        """
        self._check_alive("put", target)
        raw = as_bytes(data)
        if self.delivery.reorders or self.fence_fields():
            self.put_record(target, offset, raw, charged_bytes, word, op, value)
            return
        self.posting.unquiet = True
        ref = self.memory.stage(target, offset, raw) if raw.size else None
        start = self.engine.now_ps
        self.engine.put(target, charged_bytes, ref, word, op, value)
        self.ledger.moved(Plane.UB, charged_bytes)
        self.trace.add(Op.PUT, start, self.engine.now_ps, target, charged_bytes, self.rows.checksum(raw))

    def get(self, source: int, offset: int, nbytes: int, charged_bytes: int) -> Bytes:
        """Fetch bytes of the source's heap as they are when the response leaves; blocks until they are
        here."""
        return self.wait_get(self.start_get(source, offset, nbytes, charged_bytes))

    def start_get(
        self,
        source: int,
        offset: int,
        nbytes: int,
        charged_bytes: int,
        shape: Shape | None = None,
        **fields: Any,
    ) -> int:
        """Post a get; returns the handle for `wait_get`.

        Args:
            shape: start-up, unit and tail; none of them by default.
            fields: further fields of its post record (order, fence, rd_below, ...).
        """
        self._check_alive("get", source)
        if shape is not None or fields or self.delivery.reorders:
            return self.start_post_get(source, offset, nbytes, charged_bytes, shape, fields)
        start = self.engine.now_ps
        self.ledger.moved(Plane.UB, charged_bytes)
        handle = self.memory.start_get(source, offset, nbytes, charged_bytes)
        self.trace.add(Op.GET, start, self.engine.now_ps, source, charged_bytes)
        return handle

    def wait_get(self, handle: int) -> Bytes:
        """Wait for a get; returns its bytes, uint8."""
        self._blocking(Op.WAIT_GET, self.engine.wait_get, handle, record=False)
        data = self.memory.finish_get(handle) if self.memory.is_expected(handle) else _NO_BYTES
        self.trace.add(
            Op.WAIT_GET, self._started, self.engine.now_ps, -1, data.size, self.rows.checksum(data)
        )
        return data

    def _check_alive(self, call: str, rank: int) -> None:
        """Refuse what can never complete. A rank that has exited is none: its memory stays to the end."""
        if self.dead[rank]:
            raise RankLostError(f"{call}: rank {rank} is dead (rank {self.rank}, {self.now_ps} ps)", [rank])

    # --- ordering, completion, observation --------------------------------------------------------------

    def fence(self) -> None:
        """Order my puts to each target; completes nothing."""
        start = self.engine.now_ps
        self.engine.fence()
        self.posting.fence_seq = self.engine.last_seq
        self.trace.add(Op.FENCE, start, self.engine.now_ps)

    def quiet(self) -> None:
        """Wait until every put of mine is acknowledged and every get is in."""
        self._blocking(Op.QUIET, self.engine.quiet)
        self.posting.unquiet = False

    def wait(
        self, conditions: Sequence[tuple[int, int, int]], any_: bool = False, timeout_ps: int | None = None
    ) -> int:
        """Wait for (word, comparison, value) conditions on my words; see `Engine.wait`."""
        return int(self._blocking(Op.WAIT, self.engine.wait, conditions, any_, timeout_ps))

    def test(self, word: int, cmp: int, value: int) -> bool:
        """Probe a condition; an unsuccessful probe moves my clock to the next tick that may differ."""
        return bool(self._blocking(Op.TEST, self.engine.test, word, cmp, value))

    def read(self, word: int) -> int:
        """Value of my word now."""
        return int(self._blocking(Op.READ, self.engine.read, word))

    def observe(self) -> None:
        """Make my heap show everything up to now."""
        self._blocking(Op.OBSERVE, self.engine.observe)

    def atomic(self, target: int, word: int, op: int, value: int, compare: int = 0) -> int:
        """Atomic on a word of the target; blocks and returns the old value."""
        return int(self._blocking(Op.ATOMIC, self.engine.atomic, target, word, op, value, compare))

    def _blocking(self, op: Op, call: Callable[..., Any], *arguments: Any, record: bool = True) -> Any:
        self._started = self.engine.now_ps
        self._enter()
        self.memory.enter()
        try:
            result = call(*arguments)
        finally:
            self._inside = False
            self.memory.leave()
            if record:
                self.trace.add(op, self._started, self.engine.now_ps)
        if self.posting.owners:
            self.posting.dispatch()
        return result

    def _enter(self) -> None:
        """Begin a call that may block; `_inside` is False again at its end. Raises StateError."""
        if self._inside:
            raise misuse(StateError, _TWO_AT_ONCE, rank=self.rank, now_ps=self.now_ps, value="thread")
        self._inside = True

    def _inbox_word(self) -> int:
        return self.engine.inbox_word

    # --- own memory -------------------------------------------------------------------------------------

    @property
    def heap(self) -> Bytes:
        """My heap, uint8; shows the state at my last observation point."""
        return self.transport.own(Area.HEAP)

    @property
    def dead(self) -> npt.NDArray[np.uint8]:
        """uint8 [n]: the ranks nothing is posted to any more. Those the host has seen die; for a rank that
        subscribed those all have been told of (`Engine.subscribe`): its course does not depend on when the
        host saw it."""
        return self.board.dead if self._told is None else self._told

    def subscribe(self) -> None:
        """Be told of deaths by MembershipChanged, at one time with all others that subscribed."""
        if self._told is None:
            self.engine.subscribe()
            self._told = np.zeros(self.num_ranks, np.uint8)

    def lost(self) -> npt.NDArray[np.int64]:
        """As `Engine.lost`; what it says holds for my posts from now on. Barriers and symmetric allocations
        of a rank that subscribed go on among the living."""
        lost = self.engine.lost()
        if self._told is not None and int(lost.max()) > self._epoch:
            self._epoch = int(lost.max())
            self._told[:] = lost != 0
            living = np.flatnonzero(lost == 0).astype(np.int32)
            self.engine.open_group(BARRIER_CHANNEL, living)
            self._meet = lambda: 0
            self.symmetric.regroup(living)
        return lost

    def renew(self) -> None:
        """Take note of the deaths all have been told of (nothing for a rank that did not subscribe)."""
        if self._told is not None:
            self.lost()

    def mark_dead(self, rank: int, engine: Engine | None = None) -> None:
        """Make known that `rank` died; safe from any rank, more than once. Puts to it and gets from it raise
        RankLostError from now on, and nobody waits for it at the end.

        `engine`: a handle of the caller's own, when that is another thread than the rank's.
        """
        self.board.dead[rank] = 1  # first: whom the engine wakes with RankLostError may look here at once
        (engine or self.engine).mark_dead(rank)
        self.board.finished[rank] = 1
        self.wake_if_all_ended()

    def wake_if_all_ended(self) -> bool:
        """Whether every rank is at its end or dead; wakes those that sleep until then."""
        ended = bool(self.board.finished.all())
        if ended:
            self.done_word[0] = 1
            wake_all(self.done_word)
        return ended

    @property
    def done_word(self) -> npt.NDArray[np.int32]:
        """The futex ranks sleep on at the end of the run."""
        return self.board.header[Board.HEADER_DONE : Board.HEADER_DONE + 1].view(np.int32)[:1]

    def finish(self) -> None:
        """End this rank's part of the run in virtual time; bytes for it are still delivered."""
        self.trace.add(Op.FINISH, self.engine.now_ps, self.engine.now_ps)
        self.engine.finish()
        self.memory.exited()
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.board.digest[self.rank] = np.frombuffer(self.trace.finish(), np.uint8)
        self.board.end_ps[self.rank] = self.engine.now_ps
        self.board.cpu_us[self.rank] = int((used.ru_utime + used.ru_stime) * 1e6)

    def retire(self, why: str = ENDED) -> None:
        """Let go of memory that is unmapped: whoever still holds this device is told that the run has ended.
        (What it held lives on unused, so nothing is tidied up in memory that is gone.)"""
        ended: Any = Ended(self.rank, self.now_ps, why)
        self._retired = self.engine, self.memory, self.transport, self.board, self.ledger, self.compiled
        self.engine = self.memory = self.transport = self.board = self.ledger = ended
        self.compiled, self._meet = None, lambda: ended.meet
        self._schedule = self._exchange_tags = lambda *_: ended.schedule


class Ended:
    """Stands for every part of a machine whose run has ended on this rank; only the time is left of it."""

    def __init__(self, rank: int, now_ps: int, why: str) -> None:
        self.rank, self.now_ps, self._why = rank, now_ps, why

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise misuse(StateError, self._why, rank=self.rank, now_ps=self.now_ps, value=name)
