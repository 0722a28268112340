"""Rooted collectives: broadcast, reduce, gather(v), scatter(v). See `collectives.coll` for what all share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from collectives.agreement import balance
from collectives.algorithms import Flow
from collectives.buffers import (
    Array,
    check_count,
    check_same,
    facts,
    fill,
    fill_elements,
    raw_of,
    spread,
    taken,
)
from collectives.calls import Call, Counts, How, Int64, begin, key_of, planned
from collectives.groups import Group
from collectives.plan import Phase, Plan
from collectives.reduction import checked_op
from collectives.store import Units
from collectives.unequal import wrapped
from collectives.work import Work
from emulator.errors import SizeError


def broadcast(group: Group, buffer: Array, root: int = 0, **how: Unpack[How]) -> Work:
    """Give `buffer` of the root to all. Raises: SizeError, no such root. DtypeError."""

    def make() -> Plan:
        call, store = Call(group, "broadcast", how, buffer), group.store
        mine, nbytes = call.root(root) == group.rank, buffer.nbytes
        sizes = np.zeros(group.size, np.int64)
        sizes[root] = nbytes
        name = call.choose(call.priced(nbytes))
        [flow] = call.flows(name, call.priced(nbytes), root)

        def before(work: Work) -> None:
            store.publish_dense(work.number, sizes, raw_of(work.send))

        def after(work: Work) -> None:
            fill(work.recv, store.dense(work.number, sizes))

        phase = Phase(flow, before if mine else None, None if mine else after)
        return call.plan(name, [phase], length=buffer.size, root=root)

    key = key_of("broadcast", how, type(root), root, *facts(buffer, "broadcast"))
    return begin(group, planned(group, key, make), how, buffer, buffer)


def reduce(
    group: Group, send: Array, recv: Array | None, op: str = "sum", root: int = 0, **how: Unpack[How]
) -> Work:
    """Reduce `send` of all ranks into `recv` of the root; the others' recv is not looked at.

    Raises:
        SizeError: recv has another size, or there is no such root. DtypeError: types differ, or have no `op`.
    """
    out = recv if group.rank == root else None

    def make() -> Plan:
        call, kind = Call(group, "reduce", how, send), send.dtype
        checked_op(op, call.dtype, call.kind)
        if call.root(root) == group.rank:
            target = needed(call, "recv", out)
            check_same(call.kind, send, target)
            check_count(call.kind, "recv", target, send.size, "as send")
        name, units = call.choose(call.priced(send.nbytes)), group.store.units(send.nbytes, 1)
        [flow] = call.flows(name, call.priced(send.nbytes), root)

        def after(work: Work) -> None:
            fill_elements(work.recv, work.group.fold(units.column(work.number, 0).view(kind), op, call.dtype))

        before = _published(units)
        phase = Phase(flow, before, after if out is not None else None)
        return call.plan(name, [phase], length=send.size, op=op, root=root)

    key = key_of("reduce", how, type(root), root, op, *facts(send, "reduce"), *_facts_of_root(out, "reduce"))
    return begin(group, planned(group, key, make), how, send, out)


def gather(group: Group, send: Array, recv: Array | None, root: int = 0, **how: Unpack[How]) -> Work:
    """Give `send` to the root, whose `recv` holds the ranks' one after the other.

    Raises:
        SizeError: recv is not as large as all of them, or there is no such root. DtypeError: types differ.
    """
    out = recv if group.rank == root else None

    def make() -> Plan:
        call = Call(group, "gather", how, send)
        if call.root(root) == group.rank:
            target = needed(call, "recv", out)
            check_same(call.kind, send, target)
            check_count(call.kind, "recv", target, send.size * group.size, f"{group.size} times send")
        name, units = call.choose(call.priced(send.nbytes)), group.store.units(send.nbytes, 1)
        [flow] = call.flows(name, call.priced(send.nbytes), root)

        def after(work: Work) -> None:
            fill(work.recv, units.column(work.number, 0))

        phase = Phase(flow, _published(units), after if out is not None else None)
        return call.plan(name, [phase], length=send.size, root=root)

    key = key_of("gather", how, type(root), root, *facts(send, "gather"), *_facts_of_root(out, "gather"))
    return begin(group, planned(group, key, make), how, send, out)


def scatter(group: Group, send: Array | None, recv: Array, root: int = 0, **how: Unpack[How]) -> Work:
    """Give block i of the root's `send` to rank i; the others' send is not looked at. Raises: as `gather`."""
    given = send if group.rank == root else None

    def make() -> Plan:
        call = Call(group, "scatter", how, recv)
        if call.root(root) == group.rank:
            source = needed(call, "send", given)
            check_same(call.kind, source, recv)
            check_count(call.kind, "send", source, recv.size * group.size, f"{group.size} times recv")
        name, units = call.choose(call.priced(recv.nbytes)), group.store.units(recv.nbytes, group.size)
        [flow] = call.flows(name, call.priced(recv.nbytes), root)

        def after(work: Work) -> None:
            fill(work.recv, units.of_rank(work.number, root, group.rank))

        phase = Phase(flow, _published(units) if given is not None else None, after)
        return call.plan(name, [phase], length=recv.size, root=root)

    key = key_of("scatter", how, type(root), root, *facts(recv, "scatter"), *_facts_of_root(given, "scatter"))
    return begin(group, planned(group, key, make), how, given, recv)


def _published(units: Units) -> Callable[[Work], None]:
    return lambda work: units.publish(work.number, raw_of(work.send))


def _facts_of_root(array: Array | None, call: str) -> tuple[Any, ...]:
    return () if array is None else facts(array, call)


def gather_v(
    group: Group,
    send: Array,
    recv: Array | None,
    counts: Counts | None,
    displs: Counts | None = None,
    root: int = 0,
    **how: Unpack[How],
) -> Work:
    """Give `send` (counts[rank] elements) to the root; that of rank i begins at displs[i] of its `recv`.

    Args:
        counts: of all ranks; None is enough off the root by the algorithm "direct".

    Raises:
        SizeError: counts or displacements that do not fit. CollectiveMismatchError: the root expects other
        counts; on every rank.
    """
    call, store, me = Call(group, "gather_v", how, send), group.store, group.rank
    root = call.root(root)
    out = needed(call, "recv", recv) if me == root else None
    counted = _counts(call, counts, send.size, me == root)
    starts = counted
    if out is not None:
        check_same(call.kind, send, out)
        starts = call.displacements("displs", displs, counted, out.size)
    elif counts is not None:
        check_count(call.kind, "send", send, int(counted[me]), f"counts[{me}]")
    item, every, head = send.itemsize, np.arange(group.size), 8 + 8 * group.size

    def after(work: Work) -> None:
        if out is not None:
            begin = np.where(every == root, head, 8)
            spread(out, starts, counted, store.pieces(work.number, every, begin, counted * item))

    def before(work: Work) -> None:
        size, table = np.array([send.size], np.int64), [(8, raw_of(counted))] if out is not None else []
        data = (head if out is not None else 8, raw_of(send))
        store.publish_raw(work.number, [(0, raw_of(size)), *table, data])

    def disagreement(work: Work) -> str:
        sent = store.rows(work.number, 0, 8).view(np.int64)[:, 0]
        table = _of_root(work, root, 8, head)
        return f"the root expects other counts than are sent: {_unlike(group, 'sends', sent, table)}"

    name, flows = _unequal(call, counted, item, root)
    owed = balance(me, root, send.size) - (balance(every, root, counted) if out is not None else 0)
    phase = Phase(flows[0], before, after)
    plan = call.plan(name, [phase], disagreement, root=root, balance=wrapped(owed))
    return begin(group, plan, how, send, out)


def scatter_v(
    group: Group,
    send: Array | None,
    counts: Counts | None,
    recv: Array,
    displs: Counts | None = None,
    root: int = 0,
    **how: Unpack[How],
) -> Work:
    """Give counts[i] elements from displs[i] of the root's `send` to rank i. Args, Raises: as `gather_v`."""
    call, store, me = Call(group, "scatter_v", how, recv), group.store, group.rank
    root = call.root(root)
    given = needed(call, "send", send) if me == root else None
    counted = _counts(call, counts, recv.size, me == root)
    item, every, head = recv.itemsize, np.arange(group.size), 8 + 16 * group.size

    def before(work: Work) -> None:
        pieces = [(0, raw_of(np.array([recv.size], np.int64)))]
        if given is not None:
            check_same(call.kind, given, recv)
            starts = call.displacements("displs", displs, counted, given.size)
            table = np.stack([head + (np.cumsum(counted) - counted) * item, counted * item], 1)
            pieces += [(8, raw_of(table)), (head, taken(given, starts, counted))]
        store.publish_raw(work.number, pieces)

    def after(work: Work) -> None:
        at, place = np.array([root]), _of_root(work, root, 8 + 16 * me, 24 + 16 * me)
        fill(recv, store.pieces(work.number, at, place[:1], place[1:]))

    def disagreement(work: Work) -> str:
        expected = store.rows(work.number, 0, 8).view(np.int64)[:, 0]
        sent = _of_root(work, root, 8, head).reshape(-1, 2)[:, 1] // item
        return f"ranks expect other counts than the root sends: {_unlike(group, 'expects', expected, sent)}"

    name, flows = _unequal(call, counted, item, root)
    owed = (balance(root, every, counted) if given is not None else 0) - balance(root, me, recv.size)
    phase = Phase(flows[0], before, after)
    plan = call.plan(name, [phase], disagreement, root=root, balance=wrapped(owed))
    return begin(group, plan, how, given, recv)


def _of_root(work: Work, root: int, begin: int, end: int) -> Int64:
    """Numbers that the root has published, from byte `begin` to `end`."""
    at, first, size = np.array([root]), np.array([begin]), np.array([end - begin])
    numbers: Int64 = work.group.store.pieces(work.number, at, first, size).view(np.int64)
    return numbers


def _unlike(group: Group, does: str, theirs: Int64, roots: Int64, most: int = 12) -> str:
    """Whose number is not the root's for it."""
    places = np.flatnonzero(theirs != roots).tolist()
    parts = [f"rank {group.members[r]} {does} {theirs[r]}, the root has {roots[r]}" for r in places[:most]]
    return "; ".join(parts) + ("; …" if len(places) > most else "")


def needed(call: Call, name: str, array: Array | None) -> Array:
    """The root's buffer. Raises: SizeError, it has none."""
    if array is None:
        raise call.group.error(SizeError, f"{call.kind}: the root needs {name}, got None", None)
    return array


def _counts(call: Call, counts: Counts | None, own: int, needed: bool) -> Int64:
    """Counts of all ranks; where they are not given, this rank's own alone."""
    if counts is not None:
        return call.counts("counts", counts)
    if needed:
        raise call.group.error(SizeError, f"{call.kind}: the root needs counts, got None", None)
    alone = np.zeros(call.group.size, np.int64)
    alone[call.group.rank] = own
    return alone


def _unequal(call: Call, counted: Int64, itemsize: int, root: int) -> tuple[str, list[Flow]]:
    name = call.choose(0)
    return name, call.flows(name, call.priced_counts(counted, itemsize), root)
