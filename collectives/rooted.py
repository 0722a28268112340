"""Rooted collectives: broadcast, reduce, gather(v), scatter(v). See `collectives.coll` for what all share."""

from __future__ import annotations

from typing import Unpack

import numpy as np

from collectives.agreement import balance
from collectives.buffers import Array, check_count, check_same, fill, fill_elements, raw_of, spread, taken
from collectives.calls import Call, Counts, How, Int64
from collectives.groups import Group
from collectives.reduction import checked_op, fold
from collectives.unequal import wrapped
from collectives.work import Phase, Work
from emulator.errors import SizeError


def _nothing() -> None:
    return None


def broadcast(group: Group, buffer: Array, root: int = 0, **how: Unpack[How]) -> Work:
    """Give `buffer` of the root to all. Raises: SizeError, no such root. DtypeError."""
    call, store = Call(group, "broadcast", how, buffer), group.store
    root, number, unit = call.root(root), call.number, buffer.nbytes
    mine = group.rank == root
    name = call.choose(call.priced(unit))
    [flow] = call.flows(name, call.priced(unit), root)

    def before() -> None:
        store.publish_dense(number, 0, unit, raw_of(buffer))

    def after() -> None:
        fill(buffer, store.dense(number, unit))

    phase = Phase(flow, before if mine else _nothing, _nothing if mine else after)
    return call.begin(name, [phase], length=buffer.size, root=root)


def reduce(
    group: Group, send: Array, recv: Array | None, op: str = "sum", root: int = 0, **how: Unpack[How]
) -> Work:
    """Reduce `send` of all ranks into `recv` of the root; the others' recv is not looked at.

    Raises:
        SizeError: recv has another size, or there is no such root. DtypeError: types differ, or have no `op`.
    """
    call, store = Call(group, "reduce", how, send), group.store
    root, number, unit = call.root(root), call.number, send.nbytes
    checked_op(op, call.dtype, call.kind)
    out = _of_root(call, "recv", recv, root)
    if out is not None:
        check_same(call.kind, send, out)
        check_count(call.kind, "recv", out, send.size, "as send")
    name = call.choose(call.priced(unit))
    [flow] = call.flows(name, call.priced(unit), root)

    def after() -> None:
        if out is not None:
            fill_elements(out, fold(store.column(number, 0, unit).view(send.dtype), op, call.dtype))

    phase = Phase(flow, lambda: store.publish(number, raw_of(send), unit), after)
    return call.begin(name, [phase], length=send.size, op=op, root=root)


def gather(group: Group, send: Array, recv: Array | None, root: int = 0, **how: Unpack[How]) -> Work:
    """Give `send` to the root, whose `recv` holds the ranks' one after the other.

    Raises:
        SizeError: recv is not as large as all of them, or there is no such root. DtypeError: types differ.
    """
    call, store = Call(group, "gather", how, send), group.store
    root, number, unit = call.root(root), call.number, send.nbytes
    out = _of_root(call, "recv", recv, root)
    if out is not None:
        check_same(call.kind, send, out)
        check_count(call.kind, "recv", out, send.size * group.size, f"{group.size} times send")
    name = call.choose(call.priced(unit))
    [flow] = call.flows(name, call.priced(unit), root)

    def after() -> None:
        if out is not None:
            fill(out, store.column(number, 0, unit))

    phase = Phase(flow, lambda: store.publish(number, raw_of(send), unit), after)
    return call.begin(name, [phase], length=send.size, root=root)


def scatter(group: Group, send: Array | None, recv: Array, root: int = 0, **how: Unpack[How]) -> Work:
    """Give block i of the root's `send` to rank i; the others' send is not looked at. Raises: as `gather`."""
    call, store = Call(group, "scatter", how, recv), group.store
    root, number, unit = call.root(root), call.number, recv.nbytes
    given = _of_root(call, "send", send, root)
    if given is not None:
        check_same(call.kind, given, recv)
        check_count(call.kind, "send", given, recv.size * group.size, f"{group.size} times recv")
    name = call.choose(call.priced(unit))
    [flow] = call.flows(name, call.priced(unit), root)

    def before() -> None:
        if given is not None:
            store.publish(number, raw_of(given), unit)

    def after() -> None:
        fill(recv, store.unit_of(number, root, group.rank, unit))

    return call.begin(name, [Phase(flow, before, after)], length=recv.size, root=root)


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
    root, number = call.root(root), call.number
    out = _of_root(call, "recv", recv, root)
    counted = _counts(call, counts, send.size, me == root)
    starts = counted
    if out is not None:
        check_same(call.kind, send, out)
        starts = call.displacements("displs", displs, counted, out.size)
    elif counts is not None:
        check_count(call.kind, "send", send, int(counted[me]), f"counts[{me}]")
    item, every = send.itemsize, np.arange(group.size)

    def after() -> None:
        if out is not None:
            zeros = np.zeros(group.size, np.int64)
            spread(out, starts, counted, store.pieces(number, every, zeros + 8, counted * item))

    def before() -> None:
        size = np.array([send.nbytes], np.int64)
        store.publish_raw(number, [(0, raw_of(size)), (8, raw_of(send))])

    def disagreement() -> str:
        sizes = np.ascontiguousarray(store.rows(number, 0, 8)).view(np.int64)[:, 0] // item
        return f"the root expects other counts than are sent: {_pairs(group, sizes)}"

    name, flows = _unequal(call, counted, item, root)
    owed = balance(me, root, send.size) - (balance(every, root, counted) if out is not None else 0)
    return call.begin(name, [Phase(flows[0], before, after)], disagreement, root=root, balance=wrapped(owed))


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
    root, number = call.root(root), call.number
    given = _of_root(call, "send", send, root)
    counted = _counts(call, counts, recv.size, me == root)
    item, every, head = recv.itemsize, np.arange(group.size), 16 * group.size

    def before() -> None:
        if given is not None:
            check_same(call.kind, given, recv)
            starts = call.displacements("displs", displs, counted, given.size)
            table = np.stack([head + (np.cumsum(counted) - counted) * item, counted * item], 1)
            store.publish_raw(number, [(0, raw_of(table)), (head, taken(given, starts, counted))])

    def after() -> None:
        at = np.array([root])
        place = store.pieces(number, at, at * 0 + 16 * me, at * 0 + 16).view(np.int64)
        fill(recv, store.pieces(number, at, place[:1], place[1:]))

    def disagreement() -> str:
        at = np.array([root])
        table = store.pieces(number, at, at * 0, at * 0 + head).view(np.int64).reshape(-1, 2)
        return f"ranks expect other counts than the root sends: {_pairs(group, table[:, 1] // item)}"

    name, flows = _unequal(call, counted, item, root)
    owed = (balance(root, every, counted) if given is not None else 0) - balance(root, me, recv.size)
    return call.begin(name, [Phase(flows[0], before, after)], disagreement, root=root, balance=wrapped(owed))


def _pairs(group: Group, counts: Int64, most: int = 12) -> str:
    parts = [f"rank {m} {c}" for m, c in zip(group.members[:most], counts[:most].tolist(), strict=True)]
    return ", ".join(parts) + (", …" if group.size > most else "")


def _of_root(call: Call, name: str, array: Array | None, root: int) -> Array | None:
    """The root's buffer, None on other ranks. Raises: SizeError, the root has none."""
    if call.group.rank != root:
        return None
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


def _unequal(call: Call, counted: Int64, itemsize: int, root: int):  # type: ignore[no-untyped-def]
    name = call.choose(0)
    return name, call.flows(name, call.priced_counts(counted, itemsize), root)
