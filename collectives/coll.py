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

import numpy as np

from collectives import rooted
from collectives.algorithms import WHOLE
from collectives.buffers import Array, check_count, check_same, fill, fill_elements, raw_of, spread
from collectives.calls import Call, Counts, How
from collectives.groups import Group
from collectives.p2p import recv, send
from collectives.reduction import checked_op, fold
from collectives.unequal import all_to_all_v
from collectives.work import Phase, Work
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
    "gather",
    "gather_v",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "scatter",
    "scatter_v",
    "send",
]
broadcast, reduce = rooted.broadcast, rooted.reduce
gather, gather_v, scatter, scatter_v = rooted.gather, rooted.gather_v, rooted.scatter, rooted.scatter_v


def barrier(group: Group, **how: Unpack[How]) -> Work:
    """Wait until all ranks of the group are here."""
    call = Call(group, "barrier", how)
    name = call.choose(0)
    return call.begin(name, [Phase(flow) for flow in call.flows(name)])


def all_to_all(group: Group, send: Array, recv: Array, **how: Unpack[How]) -> Work:
    """Give block i of `send` to rank i; block j of `recv` comes from rank j. Blocks are equal.

    Raises:
        SizeError: recv is no block for each rank, or has another size. DtypeError: types differ.
    """
    call, size, store = Call(group, "all_to_all", how, send), group.size, group.store
    check_same(call.kind, send, recv)
    check_count(call.kind, "recv", recv, send.size, "as send")
    if send.size % size:
        raise group.error(
            SizeError, f"all_to_all: {send.size} elements are not {size} equal blocks", send.size
        )
    unit, number = send.nbytes // size, call.number
    name = call.choose(call.priced(unit))

    def after() -> None:
        fill(recv, store.column(number, group.rank, unit))

    [flow] = call.flows(name, call.priced(unit))
    phase = Phase(flow, lambda: store.publish(number, raw_of(send), unit), after)
    return call.begin(name, [phase], length=send.size // size)


def all_gather(group: Group, send: Array, recv: Array, **how: Unpack[How]) -> Work:
    """Give `send` to all; `recv` holds the ranks' one after the other. Raises: as `all_to_all`."""
    call, store, unit = Call(group, "all_gather", how, send), group.store, send.nbytes
    check_same(call.kind, send, recv)
    check_count(call.kind, "recv", recv, send.size * group.size, f"{group.size} times send")
    name, number = call.choose(call.priced(unit)), call.number
    [flow] = call.flows(name, call.priced(unit))
    phase = Phase(
        flow,
        lambda: store.publish(number, raw_of(send), unit),
        lambda: fill(recv, store.column(number, 0, unit)),
    )
    return call.begin(name, [phase], length=send.size)


def reduce_scatter(group: Group, send: Array, recv: Array, op: str = "sum", **how: Unpack[How]) -> Work:
    """Reduce `send` of all ranks and give block i to rank i.

    Raises:
        SizeError: send is no block as large as recv for each rank. DtypeError: types differ, or have no `op`.
    """
    call, store, unit = Call(group, "reduce_scatter", how, send), group.store, recv.nbytes
    check_same(call.kind, send, recv)
    checked_op(op, call.dtype, call.kind)
    check_count(call.kind, "send", send, recv.size * group.size, f"{group.size} times recv")
    name, number = call.choose(call.priced(unit)), call.number

    def after() -> None:
        rows = store.column(number, group.rank, unit).view(send.dtype)
        fill_elements(recv, fold(rows, op, call.dtype))

    [flow] = call.flows(name, call.priced(unit))
    phase = Phase(flow, lambda: store.publish(number, raw_of(send), unit), after)
    return call.begin(name, [phase], length=recv.size, op=op)


def all_reduce(group: Group, send: Array, recv: Array, op: str = "sum", **how: Unpack[How]) -> Work:
    """Reduce `send` of all ranks, element by element, into `recv` of each. Raises: as `reduce_scatter`."""
    call = Call(group, "all_reduce", how, send)
    check_same(call.kind, send, recv)
    checked_op(op, call.dtype, call.kind)
    check_count(call.kind, "recv", recv, send.size, "as send")
    name = call.choose(call.priced(send.nbytes))
    phases = _whole(call, name, send, recv, op) if name in WHOLE else _in_blocks(call, name, send, recv, op)
    return call.begin(name, phases, length=send.size, op=op)


def _whole(call: Call, name: str, send: Array, recv: Array, op: str) -> list[Phase]:
    """Every rank reads all vectors and adds them up."""
    store, number, unit = call.group.store, call.number, send.nbytes

    def after() -> None:
        fill_elements(recv, fold(store.column(number, 0, unit).view(send.dtype), op, call.dtype))

    [flow] = call.flows(name, call.priced(unit))
    return [Phase(flow, lambda: store.publish(number, raw_of(send), unit), after)]


def _in_blocks(call: Call, name: str, send: Array, recv: Array, op: str) -> list[Phase]:
    """Rank i adds up block i of all, and gives it to all. Blocks are equal; the last may be short or
    empty."""
    group, store, number = call.group, call.group.store, call.number
    each = -(-send.size // group.size)
    unit, base = each * send.itemsize, store.end_of(each * send.itemsize, group.size)
    priced = call.priced(unit) if call.charge is None else -(-call.charge // group.size)
    first, second = call.flows(name, priced)

    def publish() -> None:
        store.publish(number, padded_to(raw_of(send), unit * group.size), unit)

    def add_up() -> None:
        mine = fold(store.column(number, group.rank, unit).view(send.dtype), op, call.dtype)
        store.publish(number, raw_of(mine), unit, base)

    def after() -> None:
        fill(recv, store.column(number, 0, unit, base).reshape(-1)[: recv.nbytes])

    return [Phase(first, publish), Phase(second, add_up, after)]


def padded_to(raw: Array, nbytes: int) -> Array:
    """`raw`, uint8, with zeros after it up to `nbytes`."""
    return raw if raw.size == nbytes else np.concatenate([raw, np.zeros(nbytes - raw.size, np.uint8)])


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
    starts = call.displacements("displs", displs, counted, recv.size)
    sizes, number = counted * send.itemsize, call.number
    total, ends = int(sizes.sum()), np.cumsum(sizes)
    name = call.choose(int(call.priced_counts(counted, send.itemsize).max(initial=0)))
    [flow] = call.flows(name, call.priced_counts(counted, send.itemsize))
    before = int(ends[group.rank] - sizes[group.rank])
    phase = Phase(
        flow,
        lambda: store.publish_dense(number, before, total, raw_of(send)),
        lambda: spread(recv, starts, counted, store.dense(number, total)),
    )
    return call.begin(name, [phase], counts=counted)


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
    number, start = call.number, int(counted[: group.rank].sum()) * send.itemsize
    name = call.choose(int(call.priced_counts(counted, send.itemsize).max(initial=0)))

    def after() -> None:
        rows = np.ascontiguousarray(store.rows(number, start, recv.nbytes)).view(send.dtype)
        fill_elements(recv, fold(rows, op, call.dtype))

    [flow] = call.flows(name, call.priced_counts(counted, send.itemsize))
    phase = Phase(flow, lambda: store.publish_raw(number, [(0, raw_of(send))]), after)
    return call.begin(name, [phase], counts=counted, op=op)
