"""The program of the ranks for links: puts, gets, DMA blocks and work requests between two dies.

    python -m collectives.calibrate links_job ub|hdr|400g out.json

Each figure is one operation or batch of rank 0, timed from a common moment to its end: at the target for
what is written, at rank 0 for what is read. Rank 1 is on the same chip, 2 in the same node, 16 in another (on
ib-hdr 40 is under another leaf). Work requests include post and doorbell.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import emulator
from collectives.calibrate.measure import Meter
from emulator import Device
from emulator.device import BARRIER_CHANNEL
from emulator.engine.api import ADD
from emulator.engine.posts import K_GET, K_PUT, new_posts
from emulator.fabric import Shape

KB = 1024
BIG = 1_500_000_000
BATCH, STREAM = 32, 64
BLOCKS_KB = (32, 128, 256, 512, 2048, 4096, 16384)
PAIRS = {"same_chip": 1, "cross_chip": 2, "cross_node": 16}
RANKS = {"ub": 17, "hdr": 41, "400g": 2}
Figures = dict[str, float]


class Bench:
    """Operations between rank 0 and another, in us."""

    def __init__(self, device: Device) -> None:
        self.device, self.meter = device, Meter(device)

    def written_us(self, peer: int, nbytes: int, shape: Shape, count: int = 1, verbs: bool = False) -> float:
        """Return the time of `count` puts of `nbytes` posted at once, until the last is delivered."""
        device = self.device
        start = self.meter.together()
        if device.rank == 0:
            self._call(verbs)
            post = {"nbytes": nbytes, "peer": peer, "word": self.meter.words[0], "op": ADD, "value": 1}
            device.post(new_posts(count, kind=K_PUT, **post, **_fields(shape)))
        if device.rank == peer:
            self.meter.await_puts(count)
        return self._told(start, peer)

    def read_us(self, peer: int, nbytes: int, shape: Shape, verbs: bool = False) -> float:
        """Return the time of a get of `nbytes`."""
        device = self.device
        start = self.meter.together()
        if device.rank == 0:
            self._call(verbs)
            device.engine.wait_get(
                device.post(new_posts(1, kind=K_GET, nbytes=nbytes, peer=peer, **_fields(shape)))
            )
        return self._told(start, 0)

    def _call(self, verbs: bool) -> None:
        if verbs:
            self.device.compute(self.device.fabric.post_ps + self.device.fabric.doorbell_ps)

    def _told(self, start: int, who: int) -> float:
        device = self.device
        return int(device.exchange(BARRIER_CHANNEL, None, 0, tag=device.now_ps - start).tags[who]) / 1e6


def _fields(shape: Shape) -> dict[str, int]:
    return {name: int(value) for name, value in shape._asdict().items()}


def ub(bench: Bench) -> Figures:
    """Latencies, rates and DMA blocks of cloudmatrix384."""
    fabric, link = bench.device.fabric, bench.device.fabric.link_class
    plain = Shape()
    put = {name: bench.written_us(peer, 512, plain) for name, peer in PAIRS.items()}
    get = {name: bench.read_us(peer, 512, plain) for name, peer in PAIRS.items()}
    rate = {name: BIG / bench.read_us(peer, BIG, plain) / 1e3 for name, peer in PAIRS.items()}
    found = {
        "ub.npu_npu.lat_intra": get["cross_chip"],
        "stratacl.d2d_in_chip.lat": put["same_chip"],
        "stratacl.d2d_in_chip.bw": rate["same_chip"],
        "stratacl.intra_node.bw": rate["cross_chip"],
        "stratacl.inter_node.lat": put["cross_node"],
        "memfabric.rd2d": rate["cross_chip"],
        "memfabric.d2rd": BIG / bench.written_us(2, BIG, plain) / 1e3,
        "ub.npu_npu.read_bw_inter": rate["cross_node"],
        "ub.npu_npu.write_bw_inter": BIG / bench.written_us(16, BIG, plain) / 1e3,
        "hw.fabric.inter_node_bw_loss_max": 100 * (1 - rate["cross_node"] / rate["cross_chip"]),
        "hw.fabric.inter_node_latency_extra_max": get["cross_node"] - get["cross_chip"],
    }
    for pair in ("same_chip", "cross_chip"):
        peer = PAIRS[pair]
        for size in BLOCKS_KB:
            shape = fabric.put(link(0, peer), size * KB, "dma")
            found[f"sdma.{pair}.lat.{size}KB"] = bench.written_us(peer, size * KB, shape)
            took = bench.written_us(peer, size * KB, shape, BATCH)
            found[f"sdma.{pair}.bw32.{size}KB"] = BATCH * size * KB / took / 1e3
    send = fabric.urma("send", 2, link(0, 2))
    found["urma.send_lat_2B"] = bench.written_us(2, 2, send, verbs=True)
    found["urma.cas_faa"] = bench.read_us(2, 8, fabric.urma("atomic", 8, link(0, 2)), verbs=True)
    found["urma.bw_8KB_x32"] = 8 * _stream(bench, 2, 8 * KB, fabric.urma("write", 8 * KB, link(0, 2)))
    return found


def hdr(bench: Bench) -> Figures:
    """Work requests of ib-hdr."""
    fabric = bench.device.fabric
    write, send = (fabric.verbs(opcode, 2, True) for opcode in ("write", "send"))
    return {
        "rdma.hdr.write_2B_same_leaf": bench.written_us(1, 2, write, verbs=True),
        "rdma.hdr.send_2B_same_leaf": bench.written_us(1, 2, send, verbs=True),
        "rdma.hdr.read_2B_same_leaf": bench.read_us(1, 2, fabric.verbs("read", 2, True), verbs=True),
        "rdma.hdr.write_2B_cross_leaf": bench.written_us(40, 2, write, verbs=True),
    }


def rdma_400g(bench: Bench) -> Figures:
    """Streams of work requests of rdma-400g, GB/s."""
    verbs = bench.device.fabric.verbs
    return {
        f"rdma.400g.bw_{size}KB": _stream(bench, 1, size * KB, verbs("write", size * KB, False))
        for size in (32, 128)
    }


def _stream(bench: Bench, peer: int, nbytes: int, shape: Shape) -> float:
    """Steady rate of a long queue of work requests, GB/s: what `STREAM` more of them take longer."""
    one, more = (bench.written_us(peer, nbytes, shape, count, verbs=True) for count in (1, STREAM + 1))
    return STREAM * nbytes / (more - one) / 1e3


MACHINES: dict[str, Callable[[Bench], Figures]] = {"ub": ub, "hdr": hdr, "400g": rdma_400g}


def main(what: str, out: str) -> None:
    """Measure and let rank 0 write {row: value}."""
    device = emulator.init()
    found = MACHINES[what](Bench(device))
    emulator.finalize()
    if device.rank == 0:
        Path(out).write_text(json.dumps(found))
