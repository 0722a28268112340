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

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from collectives.agreement import DTYPES, KINDS, OPS, Descriptor, number_in
from collectives.algorithms.steps import Exchange
from collectives.buffers import Array, check_count, check_same, dtype_of, fill, fill_elements, raw_of
from collectives.groups import Group
from collectives.reduction import check_op, fold
from collectives.work import Phase, Work
from emulator.errors import SizeError

__all__ = [
    "How", "all_gather", "all_gather_v", "all_reduce", "all_to_all", "all_to_all_v", "barrier", "broadcast",
    "gather", "gather_v", "recv", "reduce", "reduce_scatter", "reduce_scatter_v", "scatter", "scatter_v",
    "send",
]  # fmt: skip
Counts = Sequence[int] | npt.NDArray[np.int64]


class How(TypedDict, total=False):
    """Keywords of every collective; see the module."""

    algorithm: str | None
    async_op: bool
    charge_bytes: int | None
    dtype: str | None


def _begin(
    group: Group, kind: str, algorithm: str, phases: Callable[[int], list[Phase]], how: How, **fields: int
) -> Work:
    group.calls += 1
    call = group.calls
    charge = how.get("charge_bytes")
    numbers = {"dtype": -1, "count": -1, "counts": -1, "op": -1, "root": -1} | fields
    descriptor = Descriptor(call, KINDS.index(kind), charge=-1 if charge is None else charge, **numbers)
    work = Work(group, descriptor, algorithm, phases(call))
    work.start()
    if not how.get("async_op"):
        work.wait()
    return work


def barrier(group: Group, **how: Unpack[How]) -> Work:
    """Wait until all ranks of the group are here."""
    return _begin(group, "barrier", "full-mesh", lambda call: [Phase(Exchange(32))], how)


def all_to_all(group: Group, send: Array, recv: Array, **how: Unpack[How]) -> Work:
    """Give block i of `send` to rank i; block j of `recv` comes from rank j. Blocks are equal."""
    kind, size, store = "all_to_all", group.size, group.store
    name = dtype_of(send, how.get("dtype"), kind)
    check_same(kind, send, recv)
    check_count(kind, "recv", recv, send.size, "as send")
    if send.size % size:
        raise group.error(SizeError, f"{kind}: {send.size} elements are not {size} equal blocks", send.size)
    unit = send.nbytes // size
    priced = how.get("charge_bytes")

    def phases(call: int) -> list[Phase]:
        return [
            Phase(
                Exchange(unit if priced is None else priced),
                lambda: store.publish(call, raw_of(send), unit),
                lambda: fill(recv, store.column(call, group.rank, unit)) if unit else None,
            )
        ]

    fields = {"dtype": DTYPES.index(name), "count": send.size // size}
    return _begin(group, kind, "full-mesh", phases, how, **fields)


def all_gather(group: Group, send: Array, recv: Array, **how: Unpack[How]) -> Work:
    """Give `send` to all; `recv` holds the ranks' one after the other."""
    kind, store = "all_gather", group.store
    name = dtype_of(send, how.get("dtype"), kind)
    check_same(kind, send, recv)
    check_count(kind, "recv", recv, send.size * group.size, f"{group.size} times send")
    unit, priced = send.nbytes, how.get("charge_bytes")

    def phases(call: int) -> list[Phase]:
        return [
            Phase(
                Exchange(unit if priced is None else priced),
                lambda: store.publish(call, raw_of(send), unit),
                lambda: fill(recv, store.column(call, 0, unit)) if unit else None,
            )
        ]

    return _begin(group, kind, "full-mesh", phases, how, dtype=DTYPES.index(name), count=send.size)


def all_reduce(group: Group, send: Array, recv: Array, op: str = "sum", **how: Unpack[How]) -> Work:
    """Reduce `send` of all ranks, element by element, into `recv` of each."""
    kind, store = "all_reduce", group.store
    name, number = _reducible(send, recv, op, kind, how)
    unit, priced = send.nbytes, how.get("charge_bytes")

    def take(call: int) -> None:
        if unit:
            fill_elements(recv, fold(store.column(call, 0, unit).view(send.dtype), op, name))

    def phases(call: int) -> list[Phase]:
        flow = Exchange(unit if priced is None else priced)
        return [Phase(flow, lambda: store.publish(call, raw_of(send), unit), lambda: take(call))]

    check_count(kind, "recv", recv, send.size, "as send")
    return _begin(group, kind, "full-mesh", phases, how, dtype=DTYPES.index(name), count=send.size, op=number)


def reduce_scatter(group: Group, send: Array, recv: Array, op: str = "sum", **how: Unpack[How]) -> Work:
    """Reduce `send` of all ranks and give block i to rank i."""
    kind, store = "reduce_scatter", group.store
    name, number = _reducible(send, recv, op, kind, how)
    check_count(kind, "send", send, recv.size * group.size, f"{group.size} times recv")
    unit, priced = recv.nbytes, how.get("charge_bytes")

    def take(call: int) -> None:
        if unit:
            fill_elements(recv, fold(store.column(call, group.rank, unit).view(send.dtype), op, name))

    def phases(call: int) -> list[Phase]:
        flow = Exchange(unit if priced is None else priced)
        return [Phase(flow, lambda: store.publish(call, raw_of(send), unit), lambda: take(call))]

    return _begin(group, kind, "full-mesh", phases, how, dtype=DTYPES.index(name), count=recv.size, op=number)


def _reducible(send: Array, recv: Array, op: str, kind: str, how: How) -> tuple[str, int]:
    name = dtype_of(send, how.get("dtype"), kind)
    check_same(kind, send, recv)
    number = number_in(OPS, op, "op", kind)
    check_op(op, name, kind)
    return name, number


def all_gather_v(
    group: Group, send: Array, recv: Array, counts: Counts, displs: Counts | None = None, **how: Unpack[How]
) -> Work:
    """Give `send` (counts[rank] elements) to all; that of rank i begins at element displs[i] of `recv`."""
    raise NotImplementedError


def reduce_scatter_v(
    group: Group, send: Array, recv: Array, counts: Counts, op: str = "sum", **how: Unpack[How]
) -> Work:
    """Reduce `send` of all ranks; rank i gets counts[i] elements, those after the ranks' before."""
    raise NotImplementedError


def all_to_all_v(
    group: Group,
    send: Array,
    send_counts: Counts,
    recv: Array,
    recv_counts: Counts,
    send_displs: Counts | None = None,
    recv_displs: Counts | None = None,
    **how: Unpack[How],
) -> Work:
    """Give send_counts[i] elements from send_displs[i] of `send` to rank i, and take as many as it sends.

    Counts and displacements are in elements; displacements are dense where they are not given.
    """
    raise NotImplementedError


def broadcast(group: Group, buffer: Array, root: int = 0, **how: Unpack[How]) -> Work:
    """Give `buffer` of the root to all."""
    raise NotImplementedError


def reduce(
    group: Group, send: Array, recv: Array | None, op: str = "sum", root: int = 0, **how: Unpack[How]
) -> Work:
    """Reduce `send` of all ranks into `recv` of the root; the others' recv is not looked at."""
    raise NotImplementedError


def gather(group: Group, send: Array, recv: Array | None, root: int = 0, **how: Unpack[How]) -> Work:
    """Give `send` to the root, whose `recv` holds the ranks' one after the other."""
    raise NotImplementedError


def gather_v(
    group: Group,
    send: Array,
    recv: Array | None,
    counts: Counts,
    displs: Counts | None = None,
    root: int = 0,
    **how: Unpack[How],
) -> Work:
    """Give `send` (counts[rank] elements) to the root; that of rank i begins at displs[i] of its `recv`."""
    raise NotImplementedError


def scatter(group: Group, send: Array | None, recv: Array, root: int = 0, **how: Unpack[How]) -> Work:
    """Give block i of the root's `send` to rank i."""
    raise NotImplementedError


def scatter_v(
    group: Group,
    send: Array | None,
    counts: Counts,
    recv: Array,
    displs: Counts | None = None,
    root: int = 0,
    **how: Unpack[How],
) -> Work:
    """Give counts[i] elements from displs[i] of the root's `send` to rank i."""
    raise NotImplementedError


def send(group: Group, buffer: Array, dest: int, tag: int = 0, async_op: bool = False) -> Any:
    """Send `buffer` to rank `dest` of the group."""
    raise NotImplementedError


def recv(group: Group, buffer: Array, source: int | None, tag: int = 0, async_op: bool = False) -> Any:
    """Receive into `buffer` from rank `source` of the group, None for any. Returns the Work; see `send`."""
    raise NotImplementedError
