"""All-to-all of unequal blocks: who sends how much to whom is known to those two alone.

A rank publishes a table {offset, bytes, bytes expected from} of all ranks, then its blocks. Whether what is
sent is what is expected, for every pair, is seen by every rank from one sum (`agreement.balance`).
"""

from __future__ import annotations

from typing import Unpack

import numpy as np

from collectives.agreement import balance
from collectives.buffers import Array, check_same, facts, raw_of, spread, taken
from collectives.calls import Call, Counts, How, Int64, begin, key_of, planned, whole_numbers
from collectives.groups import Group
from collectives.plan import Phase, Plan
from collectives.work import Work

_COLUMNS = 3
_OFFSET, _BYTES, _EXPECTED = range(_COLUMNS)


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

    Raises:
        SizeError: counts or displacements that do not fit the buffers. DtypeError: types differ.
        CollectiveMismatchError: a rank expects another count than is sent; on every rank.
    """
    lists: tuple[Int64, Int64, Int64 | None, Int64 | None] = (
        whole_numbers(group, "all_to_all_v", "send_counts", send_counts),
        whole_numbers(group, "all_to_all_v", "recv_counts", recv_counts),
        None if send_displs is None else whole_numbers(group, "all_to_all_v", "send_displs", send_displs),
        None if recv_displs is None else whole_numbers(group, "all_to_all_v", "recv_displs", recv_displs),
    )
    numbers = tuple(None if values is None else values.tobytes() for values in lists)
    key = key_of("all_to_all_v", how, numbers, *facts(send, "all_to_all_v"), *facts(recv, "all_to_all_v"))
    plan = planned(group, key, lambda: _plan(Call(group, "all_to_all_v", how, send), send, recv, *lists))
    return begin(group, plan, how, send, recv)


def _plan(
    call: Call,
    send: Array,
    recv: Array,
    send_counts: Int64,
    recv_counts: Int64,
    send_displs: Int64 | None,
    recv_displs: Int64 | None,
) -> Plan:
    group, store, me = call.group, call.group.store, call.group.rank
    check_same(call.kind, send, recv)
    out, back = call.counts("send_counts", send_counts), call.counts("recv_counts", recv_counts)
    out_at = call.displacements("send_displs", send_displs, out, send.size)
    back_at = call.displacements("recv_displs", recv_displs, back, recv.size)
    item, every, head = send.itemsize, np.arange(group.size), group.size * _COLUMNS * 8
    mine = raw_of(np.stack([head + (np.cumsum(out) - out) * item, out * item, back * item], axis=1))

    def before(work: Work) -> None:
        store.publish_raw(work.number, [(0, mine), (head, taken(work.send, out_at, out))])

    def after(work: Work) -> None:
        table = store.rows(work.number, me * _COLUMNS * 8, _COLUMNS * 8).view(np.int64)
        data = store.pieces(work.number, every, table[:, _OFFSET], table[:, _BYTES])
        spread(work.recv, back_at, back, data)

    def disagreement(work: Work) -> str:
        table = store.rows(work.number, 0, head).view(np.int64)
        return unlike(table.reshape(group.size, group.size, _COLUMNS), group.members, item)

    priced = call.priced_counts(out, item)
    name = call.choose(int(priced.max(initial=0)))
    [flow] = call.flows(name, priced)
    owed = balance(me, every, out) - balance(every, me, back)
    return call.plan(name, [Phase(flow, before, after)], disagreement, balance=wrapped(owed))


def wrapped(value: int) -> int:
    """The value as a signed 64-bit number."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def unlike(tables: Int64, members: tuple[int, ...], itemsize: int, most: int = 4) -> str:
    """Say which ranks expect other counts than they are sent.

    Args:
        tables: int64 [g, g, 3], {offset, bytes, bytes expected} of every rank for every rank.
    """
    sent, expected = tables[:, :, _BYTES], tables[:, :, _EXPECTED].T
    pairs = np.argwhere(sent != expected)
    parts = [
        f"rank {members[s]} sends {sent[s, t] // itemsize} elements to rank {members[t]}, which expects "
        f"{expected[s, t] // itemsize}"
        for s, t in pairs[:most].tolist()
    ]
    more = f"; and {len(pairs) - most} other pairs" if len(pairs) > most else ""
    return "the ranks disagree on counts: " + "; ".join(parts) + more
