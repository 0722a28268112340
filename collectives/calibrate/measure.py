"""Pushed exchanges on emulated ports: each rank stores its rows at every peer, then waits for all of theirs.

    compute(start)   passes over the peers, some rows to each   all rows for me are in   compute(end)

Passes are short, so that no receiver waits while others are served: 16 rows a peer, or as many as keep a rank
at 256 puts. (Cores that take one row after another mix peers even more.) In a pass every rank meets another
peer at every step. Charged bytes and messages are the library's; rows are not moved here (collectives.ep
moves them), so a case of 256 ranks takes a fraction of a second. Times are per rank, from a common moment to
its own end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.calibrate.cases import HIDDEN, NODE_RANKS, TOPK, Case
from collectives.calibrate.routing import experts_of, rows_to
from collectives.libraries import EpCharges, charges, load_library
from emulator import Device
from emulator.device import BARRIER_CHANNEL
from emulator.engine.api import ADD, GE
from emulator.engine.posts import K_PUT, new_posts
from emulator.fabric import Shape
from emulator.planes import Plane
from emulator.topology import LinkClass
from emulator.transport import Area

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
_MARGIN_PS = 10**9
PASS_ROWS, MOST_PUTS = 16, 256


class Moment(NamedTuple):
    """When the ranks of a case began (all at once), and my own end; ps."""

    start_ps: int
    end_ps: int


class Meter:
    """Puts by charged bytes alone, and waiting for them.

    Args:
        device: this rank. Collective: takes two signal words and a channel.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        _, word, self.channel = device.symmetric.carve(Area.MANAGED, 64, "calibrate", words=2, channels=1)
        self.words, self.due = (word, word + 1), [0, 0]

    def together(self) -> int:
        """Return a moment at which all ranks of the run now are; ps."""
        device = self.device
        tags = device.exchange(BARRIER_CHANNEL, None, 0, tag=device.now_ps).tags
        start = int(tags.max()) + _MARGIN_PS
        device.sleep_ps(max(0, start - device.now_ps - device.engine.config.call_price_ps))
        # Under the wall clock the others may have gone on without me; the run says so.
        assert device.now_ps == start or device.config.clock == "wall"
        return start

    def counts(self, mine: Int32 | None) -> Int32:
        """Return what each rank has for me, int32 [n], given what I have for each (None: nothing)."""
        full = np.zeros(self.device.num_ranks, np.int32)
        if mine is not None:
            full[: mine.size] = mine
        return self.device.exchange(self.channel, full, 1).counts

    def put(self, peers: Int64, nbytes: Int64, plane: Plane, which: int = 0) -> None:
        """Post one put to each of `peers`, adding 1 to its word number `which`."""
        shape = self._shape(plane)
        self.device.post(
            new_posts(
                peers.size, kind=K_PUT, peer=peers, nbytes=nbytes, plane=int(plane),
                start_ps=shape.start_ps, tail_ps=shape.tail_ps, word=self.words[which], op=ADD, value=1,
            )
        )  # fmt: skip

    def _shape(self, plane: Plane) -> Shape:
        """Fetch and landing of a work request on the NIC, whose port is its own queue; nothing on UB."""
        if plane == Plane.UB:
            return Shape()
        verbs = self.device.fabric.verbs("write", 0, inline=False)
        return Shape(start_ps=verbs.start_ps, tail_ps=verbs.tail_ps)

    def await_puts(self, number: int, which: int = 0) -> None:
        """Wait until `number` more puts than ever awaited before have come to word number `which`."""
        self.due[which] += number
        self.device.wait([(self.words[which], GE, self.due[which])])

    def compute(self, ps: int) -> None:
        """Let priced work pass."""
        if ps:
            self.device.compute(ps)


def charges_of(device: Device, case: Case) -> EpCharges:
    """Return what the case's library charges on this machine."""
    return charges(
        load_library(case.library), device.profile, case.operation,
        ranks=case.ranks, hidden=HIDDEN, topk=TOPK, tokens=case.tokens,
    )  # fmt: skip


def ring(me: int, size: int) -> Int64:
    """Return me+1, ..., me modulo `size`, int64 [size]."""
    found: Int64 = (me + 1 + np.arange(size)) % size
    return found


def one_hop(meter: Meter, case: Case) -> Moment:
    """Measure a case whose rows go straight to their ranks. All ranks of the run call it."""
    device, member = meter.device, meter.device.rank < case.ranks
    rows = rows_to(experts_of(case, device.rank), case.ranks, case.counted != "expert") if member else None
    back = meter.counts(rows)
    if case.operation == "combine":
        rows = back[: case.ranks]
    start = meter.together()
    if rows is None or not member:
        return Moment(start, start)
    costs = charges_of(device, case)
    meter.compute(costs.start_ps)
    peers = peers_of(device.rank, case)
    planes = np.array([plane_of(device, case, int(peer)) for peer in peers])
    rows_a_peer = -(-case.tokens * TOPK // case.ranks)
    passes = max(1, min(MOST_PUTS // case.ranks, -(-rows_a_peer // PASS_ROWS)))
    for plane in np.unique(planes):
        chosen = peers[planes == plane]
        for number in range(passes):
            meter.put(chosen, part(rows[chosen], number, passes) * costs.row_bytes, Plane(plane))
    meter.await_puts(case.ranks * passes)
    meter.compute(costs.pull_start_ps)
    return Moment(start, device.now_ps)


def peers_of(me: int, case: Case) -> Int64:
    """Return all ranks in the order I go over them: by node from mine on, in a node by number from mine on.

    At each step all ranks are at different peers, on each plane too. The NPU machine is one node of all here.
    """
    size = NODE_RANKS if case.machine == "h800-ib" else case.ranks
    node, number = divmod(me, size)
    nodes = np.roll(ring(node, case.ranks // size), 1)
    found: Int64 = (nodes[:, None] * size + ring(number, size)).ravel()
    return found


def part(rows: Int32 | Int64, number: int, parts: int) -> Int64:
    """Return the `number`-th of `parts` nearly equal parts of some rows, int64."""
    whole = rows.astype(np.int64)
    found: Int64 = whole * (number + 1) // parts - whole * number // parts
    return found


def plane_of(device: Device, case: Case, peer: int) -> Plane:
    """Which ports carry rows to `peer`: UB on the NPU machine; on h800-ib the NIC, but NVLink inside a node
    for the legacy library (its first version had the NIC everywhere)."""
    near = device.fabric.link_class(device.rank, peer)
    if case.machine != "h800-ib" or near == LinkClass.SELF:
        return Plane.UB
    return Plane.UB if near <= LinkClass.NODE and case.library == "deepep-legacy" else Plane.RDMA
