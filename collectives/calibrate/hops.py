"""DeepEP's normal kernels across nodes: a row a distinct node by the NIC, a row a distinct rank by NVLink.

    dispatch   to the rank of my number in each other node; it forwards inside its node as chunks come in
    combine    inside the node to the rank of the owner's number; it adds up and sends one row home as chunks
               are complete

A chunk is one round of tokens (`exchange.round_tokens` of the machine). Both hops run at once, a chunk apart.
"""

from __future__ import annotations

import numpy as np

from collectives.calibrate.cases import NODE_RANKS, Case
from collectives.calibrate.measure import Int64, Meter, Moment, charges_of, part, ring
from collectives.calibrate.routing import experts_of, rows_to
from emulator.planes import Plane


class Hops:
    """Rows between me and my partners of the two hops.

    far: int64 [nodes], rows between me and the rank of my number in each node. near: int64 [8], rows between
    me and each rank of my node.
    """

    def __init__(self, meter: Meter, case: Case) -> None:
        me, nodes = meter.device.rank, case.nodes
        self.member = me < case.ranks
        self.node, self.number = divmod(me, NODE_RANKS)
        experts = experts_of(case, me) if self.member else None
        by_rank = meter.counts(None if experts is None else rows_to(experts, case.ranks, True))
        arriving = by_rank[: case.ranks].reshape(nodes, NODE_RANKS).sum(0)
        sent = np.zeros(case.ranks, np.int32)
        if self.member:
            sent[self.node * NODE_RANKS + np.arange(NODE_RANKS)] = arriving
        forwarded = meter.counts(sent if self.member else None)
        own = np.zeros(case.ranks, np.int32)
        if experts is not None:
            own[np.arange(nodes) * NODE_RANKS + self.number] = rows_to(experts, nodes, True)
        from_far = meter.counts(own if self.member else None)
        mine = slice(self.node * NODE_RANKS, (self.node + 1) * NODE_RANKS)
        dispatch = case.operation == "dispatch"
        if self.member:
            self.near: Int64 = (forwarded[mine] if dispatch else arriving).astype(np.int64)
            self.far: Int64 = (own if dispatch else from_far)[self.number : case.ranks : NODE_RANKS].astype(
                np.int64
            )

    def near_peers(self) -> tuple[Int64, Int64]:
        """The other ranks of my node, and my rows for each."""
        numbers = ring(self.number, NODE_RANKS)[:-1]
        return self.node * NODE_RANKS + numbers, self.near[numbers]

    def far_peers(self) -> tuple[Int64, Int64]:
        """The ranks of my number in other nodes, and my rows for each."""
        nodes = ring(self.node, self.far.size)[:-1]
        return nodes * NODE_RANKS + self.number, self.far[nodes]


def two_hops(meter: Meter, case: Case) -> Moment:
    """Measure a case that goes through two hops. All ranks of the run call it."""
    hops, device = Hops(meter, case), meter.device
    start = meter.together()
    if not hops.member:
        return Moment(start, start)
    costs = charges_of(device, case)
    tokens = device.profile.integer("exchange.round_tokens")
    chunks = max(1, -(-case.tokens // tokens))
    far, near = (Plane.RDMA, hops.far_peers()), (Plane.UB, hops.near_peers())
    first, second = (far, near) if case.operation == "dispatch" else (near, far)
    meter.compute(costs.start_ps)
    for chunk in range(chunks):
        _put_chunk(meter, first, 0, chunk, chunks, costs.row_bytes)
    for chunk in range(chunks):
        meter.await_puts(first[1][0].size, 0)
        _put_chunk(meter, second, 1, chunk, chunks, costs.row_bytes)
    meter.await_puts(chunks * second[1][0].size, 1)
    meter.compute(costs.pull_start_ps)
    return Moment(start, device.now_ps)


def _put_chunk(
    meter: Meter, hop: tuple[Plane, tuple[Int64, Int64]], which: int, chunk: int, chunks: int, row_bytes: int
) -> None:
    plane, (peers, rows) = hop
    meter.put(peers, part(rows, chunk, chunks) * row_bytes, plane, which)
