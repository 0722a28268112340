"""Collectives over real bytes and virtual time: what a group's ranks call.

    group = Group.world(device)
    coll.all_reduce(group, send, recv)                       # numpy arrays of any strides
    work = coll.all_to_all(group, send, recv, async_op=True)
    work.wait()

Keywords of all:
    algorithm     a name, see `collectives.select`; None for the selector's choice
    async_op      return at once; complete after `Work.wait`
    charge_bytes  priced instead of the real bytes: of the block to one peer (all_to_all), of one rank's share
                  (gather, scatter, all_gather, reduce_scatter), of the buffer (the rest), of one element (v)
    dtype         "bfloat16" for 16-bit integers that hold it

A reduction adds in the order of group ranks, whatever the algorithm (`collectives.reduction`). A collective
ends on no rank before all ranks have entered it. Buffers may be reused when it is complete; send and recv
may be the same memory. Copies inside a die and the additions are not charged: as in HCCL the addition rides
on the write. Ranks that disagree all get CollectiveMismatchError.
"""

from __future__ import annotations

from typing import Unpack

from collectives import p2p, rooted, unequal
from collectives.algorithms import ONE_EXCHANGE, WHOLE, Flow
from collectives.at_once import allowed, at_once, meeting, too_long
from collectives.buffers import Array, check_count, check_same, facts, fill_elements, raw_of, spread
from collectives.calls import Call, Counts, How, begin, key_of, planned
from collectives.groups import Group
from collectives.plan import Phase, Plan
from collectives.reduction import checked_op
from collectives.refusals import told
from collectives.sums import Fold, Sums
from collectives.work import Work
from emulator.errors import SizeError

__all__ = [
    "How",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "barrier",
    "broadcast",
    "check_time",
    "gather",
    "gather_v",
    "meet",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "scatter",
    "scatter_v",
    "send",
]
broadcast, reduce, all_to_all_v = told(rooted.broadcast), told(rooted.reduce), told(unequal.all_to_all_v)
gather, gather_v = told(rooted.gather), told(rooted.gather_v)
scatter, scatter_v = told(rooted.scatter), told(rooted.scatter_v)
send, recv = told(p2p.send), told(p2p.recv)
_BARRIER = [(key_of("barrier", {}), False, apart) for apart in (False, True)]
"""Keys of barriers' plans, see `calls.planned`."""


def barrier(group: Group, **how: Unpack[How]) -> Work:
    """Wait until all ranks of the group are here."""
    plan = None if how else group.plans.get(_BARRIER[group.apart])
    if plan is not None and plan.single and allowed(group):
        return at_once(group, plan)
    return _barrier(group, **how)


def meet(group: Group) -> None:
    """As `barrier`, where nobody asks for the work: in less code from the second call on (`Group.quick`)."""
    took_ps = -1 if group.quick is None else group.quick()
    if took_ps >= 0:
        check_time(group, took_ps)
        return
    plan = _barrier(group).plan
    group.quick = meeting(group, plan) if plan.single and allowed(group) else None


def check_time(group: Group, took_ps: int, limit_ps: int | None = None) -> None:
    """Look at the time-out of the barrier that `Group.quick` has just passed.

    Args:
        took_ps: what it returned. limit_ps: the call's own time-out, None for the group's.

    Raises: CollectiveTimeoutError, it took longer.
    """
    limit_ps = group.timeout_ps if limit_ps is None else limit_ps
    if limit_ps is not None and took_ps > limit_ps:
        raise too_long(group, _plan_of_barrier(group, {}), limit_ps)


@told
def _barrier(group: Group, **how: Unpack[How]) -> Work:
    return begin(group, _plan_of_barrier(group, how), how)


def _plan_of_barrier(group: Group, how: How) -> Plan:
    def make() -> Plan:
        call = Call(group, "barrier", how)
        name = call.choose(0)
        return call.plan(name, [Phase(flow) for flow in call.flows(name)])

    return planned(group, key_of("barrier", how), make)


@told
def all_to_all(group: Group, send: Array, recv: Array, **how: Unpack[How]) -> Work:
    """Give block i of `send` to rank i; block j of `recv` comes from rank j. Blocks are equal.

    Raises:
        SizeError: recv is no block for each rank, or has another size. DtypeError: types differ.
    """

    def make() -> Plan:
        call, size = Call(group, "all_to_all", how, send), group.size
        check_same(call.kind, send, recv)
        check_count(call.kind, "recv", recv, send.size, "as send")
        if send.size % size:
            text = f"all_to_all: {send.size} elements are not {size} equal blocks"
            raise group.error(SizeError, text, send.size)
        priced = call.priced(send.nbytes // size)
        name = call.choose(priced)
        phase = _crossing(group, call.flows(name, priced)[0], send.nbytes // size)
        return call.plan(name, [phase], length=send.size // size)

    key = key_of("all_to_all", how, *facts(send, "all_to_all"), *facts(recv, "all_to_all"))
    return begin(group, planned(group, key, make), how, send, recv)


def _crossing(group: Group, flow: Flow, unit: int) -> Phase:
    """A block of `unit` bytes of each rank for each rank."""
    crossed = group.store.crossed(unit)
    if crossed is not None:
        return Phase(
            flow,
            lambda work: crossed.publish(work.number, raw_of(work.send)),
            lambda work: crossed.take(work.number, work.recv),
        )
    units, me = group.store.units(unit, group.size), group.rank
    return Phase(
        flow,
        lambda work: units.publish(work.number, raw_of(work.send)),
        lambda work: units.take(work.number, me, work.recv),
    )


@told
def all_gather(group: Group, send: Array, recv: Array, **how: Unpack[How]) -> Work:
    """Give `send` to all; `recv` holds the ranks' one after the other. Raises: as `all_to_all`."""

    def make() -> Plan:
        call = Call(group, "all_gather", how, send)
        check_same(call.kind, send, recv)
        check_count(call.kind, "recv", recv, send.size * group.size, f"{group.size} times send")
        name, units = call.choose(call.priced(send.nbytes)), group.store.units(send.nbytes, 1)
        [flow] = call.flows(name, call.priced(send.nbytes))
        phase = Phase(
            flow,
            lambda work: units.publish(work.number, raw_of(work.send)),
            lambda work: units.take(work.number, 0, work.recv),
        )
        return call.plan(name, [phase], length=send.size)

    key = key_of("all_gather", how, *facts(send, "all_gather"), *facts(recv, "all_gather"))
    return begin(group, planned(group, key, make), how, send, recv)


@told
def reduce_scatter(group: Group, send: Array, recv: Array, op: str = "sum", **how: Unpack[How]) -> Work:
    """Reduce `send` of all ranks and give block i to rank i.

    Raises:
        SizeError: send is no block as large as recv for each rank. DtypeError: types differ, or have no `op`.
    """

    def make() -> Plan:
        call = Call(group, "reduce_scatter", how, send)
        check_same(call.kind, send, recv)
        checked_op(op, call.dtype, call.kind)
        check_count(call.kind, "send", send, recv.size * group.size, f"{group.size} times recv")
        name, units = call.choose(call.priced(recv.nbytes)), group.store.units(recv.nbytes, group.size)
        [flow], kind, me = call.flows(name, call.priced(recv.nbytes)), send.dtype, group.rank

        def after(work: Work) -> None:
            fill_elements(
                work.recv, work.group.fold(units.column(work.number, me).view(kind), op, call.dtype)
            )

        phase = Phase(flow, lambda work: units.publish(work.number, raw_of(work.send)), after)
        return call.plan(name, [phase], length=recv.size, op=op)

    key = key_of("reduce_scatter", how, op, *facts(send, "reduce_scatter"), *facts(recv, "reduce_scatter"))
    return begin(group, planned(group, key, make), how, send, recv)


@told
def all_reduce(group: Group, send: Array, recv: Array, op: str = "sum", **how: Unpack[How]) -> Work:
    """Reduce `send` of all ranks, element by element, into `recv` of each. Raises: as `reduce_scatter`."""

    def make() -> Plan:
        call = Call(group, "all_reduce", how, send)
        check_same(call.kind, send, recv)
        checked_op(op, call.dtype, call.kind)
        check_count(call.kind, "recv", recv, send.size, "as send")
        name = call.choose(call.priced(send.nbytes))
        way = _whole if name in WHOLE else _together if name == ONE_EXCHANGE else _in_blocks
        phases = way(call, name, send, op)
        return call.plan(name, phases, length=send.size, op=op)

    key = key_of("all_reduce", how, op, *facts(send, "all_reduce"), *facts(recv, "all_reduce"))
    return begin(group, planned(group, key, make), how, send, recv)


def _whole(call: Call, name: str, send: Array, op: str) -> list[Phase]:
    """Every rank reads all vectors and adds them up."""
    units, kind, dtype = call.group.store.units(send.nbytes, 1), send.dtype, call.dtype

    def after(work: Work) -> None:
        fill_elements(work.recv, work.group.fold(units.column(work.number, 0).view(kind), op, dtype))

    [flow] = call.flows(name, call.priced(send.nbytes))
    return [Phase(flow, lambda work: units.publish(work.number, raw_of(work.send)), after)]


def _in_blocks(call: Call, name: str, send: Array, op: str) -> list[Phase]:
    """Rank i sees that block i of all is added up, and gives it to all. Blocks are equal; the last may be
    short or none."""
    sums, fold = _sums(call, send, op)
    first, second = call.flows(name, _priced_block(call, send))
    publish = Phase(first, lambda work: sums.publish(work.number, raw_of(work.send)))
    return [
        publish,
        Phase(
            second,
            lambda work: sums.add_mine(work.number, fold),
            lambda work: sums.take(work.number, work.recv),
        ),
    ]


def _together(call: Call, name: str, send: Array, op: str) -> list[Phase]:
    """Blocks as `_in_blocks`, but whoever needs a block first adds it up: nobody waits for its owner."""
    sums, fold = _sums(call, send, op)
    [flow] = call.flows(name, _priced_block(call, send))

    def before(work: Work) -> None:
        sums.publish(work.number, raw_of(work.send))

    def after(work: Work) -> None:
        sums.add_all(work.number, fold)
        sums.take(work.number, work.recv)

    return [Phase(flow, before, after, lambda work: sums.pledge(work.number))]


def _sums(call: Call, send: Array, op: str) -> tuple[Sums, Fold]:
    """Where the blocks of all and their sums lie, and how they are added up."""
    group, kind, dtype = call.group, send.dtype, call.dtype
    sums = group.store.sums(-(-send.size // group.size) * send.itemsize)
    sums.compile(group.device, op, dtype)
    return sums, lambda rows: group.fold(rows.view(kind), op, dtype)


def _priced_block(call: Call, send: Array) -> int:
    """Bytes of a block as they are charged."""
    if call.charge is None:
        return -(-send.size // call.group.size) * send.itemsize
    return -(-call.charge // call.group.size)


@told
def all_gather_v(
    group: Group, send: Array, recv: Array, counts: Counts, displs: Counts | None = None, **how: Unpack[How]
) -> Work:
    """Give `send` (counts[rank] elements) to all; that of rank i begins at element displs[i] of `recv`.

    Raises:
        SizeError: counts or displacements that do not fit the buffers. DtypeError: types differ.
    """
    call, store = Call(group, "all_gather_v", how, send), group.store
    check_same(call.kind, send, recv)
    counted = call.counts("counts", counts)
    check_count(call.kind, "send", send, int(counted[group.rank]), f"counts[{group.rank}]")
    starts, sizes = call.displacements("displs", displs, counted, recv.size), counted * send.itemsize
    priced = call.priced_counts(counted, send.itemsize)
    name = call.choose(int(priced.max(initial=0)))
    [flow] = call.flows(name, priced)
    phase = Phase(
        flow,
        lambda work: store.publish_dense(work.number, sizes, raw_of(work.send)),
        lambda work: spread(work.recv, starts, counted, store.dense(work.number, sizes)),
    )
    return begin(group, call.plan(name, [phase], counts=counted), how, send, recv)


@told
def reduce_scatter_v(
    group: Group, send: Array, recv: Array, counts: Counts, op: str = "sum", **how: Unpack[How]
) -> Work:
    """Reduce `send` of all ranks; rank i gets counts[i] elements, those after the ranks' before.

    Raises:
        SizeError: counts that do not fit the buffers. DtypeError: types differ, or have no `op`.
    """
    call, store = Call(group, "reduce_scatter_v", how, send), group.store
    check_same(call.kind, send, recv)
    checked_op(op, call.dtype, call.kind)
    counted = call.counts("counts", counts)
    check_count(call.kind, "send", send, int(counted.sum()), "the sum of counts")
    check_count(call.kind, "recv", recv, int(counted[group.rank]), f"counts[{group.rank}]")
    start, nbytes = int(counted[: group.rank].sum()) * send.itemsize, recv.nbytes
    priced = call.priced_counts(counted, send.itemsize)
    name = call.choose(int(priced.max(initial=0)))

    def after(work: Work) -> None:
        rows = store.rows(work.number, start, nbytes).view(send.dtype)
        fill_elements(work.recv, work.group.fold(rows, op, call.dtype))

    [flow] = call.flows(name, priced)
    phase = Phase(flow, lambda work: store.publish_raw(work.number, [(0, raw_of(work.send))]), after)
    return begin(group, call.plan(name, [phase], counts=counted, op=op), how, send, recv)
