"""Published measurements, how the engine reproduces each, and the closed form it must equal exactly.

`rows(machine)` measures them all on one machine ("oracle", "python" or "c"). A row is gated unless its source
was superseded by another (the profile says why) or is from memory. A given range counts as met inside it.
"""

from dataclasses import dataclass
from functools import cache

from engine_pair import Pair, row

from emulator.engine.posts import K_PUT
from emulator.profile import exact, load_profile

KB, US, GB = 1024, 10**6, 10**9
BIG = 1_500_000_000
BATCH = 32
STREAM = 64
BLOCKS_KB = (32, 128, 256, 512, 2048, 4096, 16384)
DMA_US = {
    "same-chip": (12.5, 10.2, 11.3, 13.6, 23.7, 35.5, 102.5),
    "same-node": (15.5, 15.6, 15.9, 16.3, 29.5, 45.8, 139),
}
DMA_GB_PER_S = {
    "same-chip": (9.7, 39.98, 76.26, 151.8, 179.9, 184.2, 186.6),
    "same-node": (9.79, 37.72, 71.15, 93.1, 122, 118.6, 133.9),
}
MEMFABRIC = "Ascend/memfabric_hybrid example/trans/perf"
CLOUDMATRIX, STRATACL, UBEP = "arXiv 2506.12708", "arXiv 2607.26444", "arXiv 2607.06202"
PERFTEST, UCCL, UMDK = "HDR100 perftest note", "UCCL, 16 under way", "openeuler-mirror/umdk"


@dataclass(frozen=True)
class Row:
    """One measurement: what was published (a range), what the engine gives, in `unit`; both times in ps."""

    group: str
    name: str
    source: str
    given: tuple[float, float]
    measured_ps: int
    formula_ps: int
    nbytes: int  # 0: a latency in us, else bytes moved in that time, for GB/s
    gated: bool = True
    note: str = ""

    @property
    def unit(self) -> str:
        return "GB/s" if self.nbytes else "us"

    @property
    def value(self) -> float:
        return self.nbytes * 1000 / self.measured_ps if self.nbytes else self.measured_ps / US

    @property
    def error(self) -> float:
        """Relative to the nearer end of what was published; 0 inside a range."""
        low, high = self.given
        if low < high and low <= self.value <= high:
            return 0.0
        end = low if self.value < low else high
        return (self.value - end) / end


class Machine:
    """One profile on one machine, and the formulas of its numbers, which use the profile alone."""

    def __init__(self, profile: str, machine: str) -> None:
        self.profile, self.machine = load_profile(profile), machine
        self.call_ps = self.profile.ps("engine.call_price_ns")

    def pair(self, pair: str) -> Pair:
        return Pair(self.profile, pair, self.machine)

    # --- memory semantics
    def put(self, pair: str, nbytes: int, cores: int | None = None) -> tuple[int, int]:
        on = self.pair(pair)
        formula = self.call_ps + self.latency(pair) + ser(nbytes, self.mte(pair, "write", cores))
        return on.put_ps(nbytes, on.fabric.put(on.cls, nbytes, "mte", cores)), formula

    def get(self, pair: str, nbytes: int, cores: int | None = None) -> tuple[int, int]:
        on = self.pair(pair)
        formula = self.call_ps + self.latency(pair) + ser(nbytes, self.mte(pair, "read", cores))
        return on.get_ps(nbytes, on.fabric.get(on.cls, nbytes, "mte", cores)), formula

    def dma(self, pair: str, block: int, count: int) -> tuple[int, int]:
        on, p = self.pair(pair), self.profile
        measured = on.deliveries([row(K_PUT, block, on.fabric.put(on.cls, block, "dma"))] * count)[-1]
        latency = self.latency(pair)
        one = latency + ser(block, min(p.per_s("dma.gb_per_s"), p.per_s(key(pair, "write"))))
        start = self.call_ps + p.ps("dma.start_us") + p.integer("dma.turns") * latency
        return measured, start + (count - 1) * max(p.ps("dma.block_us"), one) + one

    def latency(self, pair: str) -> int:
        return self.profile.ps(f"ub.latency_{NAMES[pair]}_us")

    def mte(self, pair: str, direction: str, cores: int | None) -> int:
        used = cores or self.profile.integer("mte.cores")
        return min(self.profile.per_s(key(pair, direction)), used * self.profile.per_s("mte.core_gb_per_s"))

    # --- work requests
    def caller(self) -> int:
        return self.profile.ps("rdma.post_us") + self.profile.ps("rdma.doorbell_us")

    def wire(self, pair: str) -> int:
        hops = self.profile.integer(f"rdma.hops_{NAMES[pair]}")
        return self.times("nic", "roce") + hops * self.profile.ps("rdma.hop_us")

    def times(self, *parts: str) -> int:
        return sum(self.profile.ps(f"rdma.{part}_us") for part in parts)

    def nic(self, nbytes: int) -> int:
        line = self.profile.per_s("rdma.gb_per_s") * exact(self.profile.value("rdma.efficiency"))
        return ser(nbytes, int(line))

    def write(self, pair: str, nbytes: int, inline: bool = True) -> tuple[int, int]:
        on = self.pair(pair)
        formula = self.call_ps + self.caller() + self.wire(pair) + self.nic(nbytes) + self.times("pcie")
        formula += 0 if inline else self.times("fetch", "pcie")
        return on.put_ps(nbytes, on.fabric.verbs("write", nbytes, inline), self.caller()), formula

    def send(self, pair: str, nbytes: int) -> tuple[int, int]:
        on = self.pair(pair)
        formula = self.write(pair, nbytes)[1] + self.times("cqe")
        return on.send_ps(nbytes, on.fabric.verbs("send", nbytes, True), self.caller()), formula

    def read(self, pair: str, nbytes: int) -> tuple[int, int]:
        on = self.pair(pair)
        formula = self.call_ps + self.caller() + 2 * self.wire(pair) + self.nic(nbytes)
        formula += self.times("pcie", "pcie", "cqe")
        return on.get_ps(nbytes, on.fabric.verbs("read", nbytes, True), self.caller()), formula

    def stream(self, nbytes: int) -> tuple[int, int]:
        """Time from the first to the last of a train of writes, and what the NIC takes for as many."""
        on = self.pair("same-node")
        posts = [row(K_PUT, nbytes, on.fabric.verbs("write", nbytes, False))] * (STREAM + 1)
        times = on.deliveries(posts, self.profile.ps("rdma.post_us"))
        return times[-1] - times[0], STREAM * max(self.times("gap"), self.nic(nbytes))

    def hop(self) -> tuple[int, int]:
        near, far = (self.write(pair, 2)[0] for pair in ("same-node", "cross-node"))
        hops = self.profile.integer("rdma.hops_inter") - self.profile.integer("rdma.hops_intra")
        return (far - near) // hops, self.times("hop")

    # --- URMA
    def urma_send(self, pair: str, nbytes: int) -> tuple[int, int]:
        on, side = self.pair(pair), self.profile.ps("urma.side_us")
        formula = self.call_ps + self.caller() + self.times("fetch", "cqe") + 2 * side + self.latency(pair)
        formula += ser(nbytes, self.profile.per_s(key(pair, "write")))
        return on.send_ps(nbytes, on.fabric.urma("send", nbytes, on.cls), self.caller()), formula

    def urma_atomic(self, pair: str) -> tuple[int, int]:
        on, side = self.pair(pair), self.profile.ps("urma.side_us")
        formula = self.call_ps + self.caller() + self.times("fetch", "cqe") + 3 * side + self.latency(pair)
        formula += self.profile.ps("urma.atomic_us") + ser(8, self.profile.per_s(key(pair, "read")))
        return on.get_ps(8, on.fabric.urma("atomic", 8, on.cls), self.caller()), formula

    def urma_stream(self, pair: str, nbytes: int) -> tuple[int, int]:
        on = self.pair(pair)
        posts = [row(K_PUT, nbytes, on.fabric.urma("write", nbytes, on.cls))] * (STREAM + 1)
        times = on.deliveries(posts, self.profile.ps("rdma.post_us"))
        taken = max(self.profile.ps("urma.gap_us"), ser(nbytes, self.profile.per_s(key(pair, "write"))))
        return times[-1] - times[0], STREAM * taken


NAMES = {"same-chip": "chip", "same-node": "intra", "cross-node": "inter"}


def key(pair: str, direction: str) -> str:
    return f"ub.{direction}_{NAMES[pair]}_gb_per_s"


def ser(nbytes: int, per_s: int) -> int:
    """Time of bytes at a rate, rounded up to a picosecond."""
    return -(-nbytes * 10**12 // per_s)


@cache
def rows(machine: str) -> list[Row]:
    """Every published point, measured on `machine`."""
    return [*ub_rows(machine), *dma_rows(machine), *verbs_rows(machine), *urma_rows(machine)]


def ub_rows(machine: str) -> list[Row]:
    on = Machine("cloudmatrix384", machine)
    put = {pair: on.put(pair, 512) for pair in NAMES}
    get = {pair: on.get(pair, 512) for pair in NAMES}
    superseded = f"superseded by {CLOUDMATRIX}"
    latencies = [
        ("die to die in a chip, put", STRATACL, 0.2, put["same-chip"], True, "get equals put"),
        ("die to die in a chip, put", UBEP, 0.218, put["same-chip"], True, "second source, agrees"),
        ("in a node, get 512 B", CLOUDMATRIX, 1.2, get["same-node"], True, ""),
        ("in a node, put 512 B", CLOUDMATRIX, 1.2, put["same-node"], True, "direction not stated"),
        ("across nodes, put 512 B", STRATACL, 2.1, put["cross-node"], True, ""),
        ("across nodes, get 512 B", STRATACL, 2.1, get["cross-node"], True, "direction not stated"),
        ("in a node, put 512 B", STRATACL, 0.7, put["same-node"], False, superseded),
        ("in a node, put 512 B", UBEP, 0.929, put["same-node"], False, superseded),
        ("across nodes, put 512 B", UBEP, 2.5, put["cross-node"], False, "breaks '1.2 us and less than 1'"),
    ]
    rates = [
        ("die to die in a chip", STRATACL, 210, on.put("same-chip", BIG), True, ""),
        ("in a node, read", MEMFABRIC, 166.5, on.get("same-node", BIG), True, ""),
        ("in a node, write", MEMFABRIC, 138, on.put("same-node", BIG), True, ""),
        ("across nodes, read", CLOUDMATRIX, 164, on.get("cross-node", BIG), True, ""),
        ("across nodes, write", CLOUDMATRIX, 135, on.put("cross-node", BIG), True, ""),
        ("in a node, read", STRATACL, 170, on.get("same-node", BIG), True, "direction not stated"),
        ("across nodes, read", STRATACL, 150, on.get("cross-node", BIG), True, "direction not stated"),
        ("across nodes, write", STRATACL, 150, on.put("cross-node", BIG), True, "direction not stated"),
    ]
    return [
        Row("UB", name, source, (given, given), *times, nbytes, gated, note)
        for table, nbytes in ((latencies, 0), (rates, BIG))
        for name, source, given, times, gated, note in table
    ]


def dma_rows(machine: str) -> list[Row]:
    on, found = Machine("cloudmatrix384", machine), []
    for pair in DMA_US:
        for size, lat, rate in zip(BLOCKS_KB, DMA_US[pair], DMA_GB_PER_S[pair], strict=True):
            block, name = size * KB, f"{pair}, {size} KB"
            found.append(Row("DMA", name, MEMFABRIC, (lat, lat), *on.dma(pair, block, 1), 0))
            moved = BATCH * block
            found.append(
                Row("DMA", f"{name} x 32", MEMFABRIC, (rate, rate), *on.dma(pair, block, BATCH), moved)
            )
    return found


def verbs_rows(machine: str) -> list[Row]:
    hdr, far = Machine("ib-hdr", machine), "cross-node"
    near, roce = "same-node", Machine("rdma-400g", machine)
    found = [
        Row("verbs", "write 2 B, one leaf", PERFTEST, (1.26, 1.26), *hdr.write(near, 2), 0),
        Row("verbs", "send 2 B, one leaf", PERFTEST, (1.27, 1.27), *hdr.send(near, 2), 0),
        Row("verbs", "read 2 B, one leaf", PERFTEST, (2.39, 2.39), *hdr.read(near, 2), 0),
        Row("verbs", "write 2 B, across leaves", PERFTEST, (1.7, 1.7), *hdr.write(far, 2), 0),
        Row("verbs", "one more hop", PERFTEST, (0.24, 0.24), *hdr.hop(), 0),
    ]
    for size, given in ((32, (27.0, 30.0)), (128, (50.0, 50.0)), (256, (50.0, 50.0))):
        moved = STREAM * size * KB
        found.append(Row("verbs", f"writes of {size} KB, 400G", UCCL, given, *roce.stream(size * KB), moved))
    return found


def urma_rows(machine: str) -> list[Row]:
    on, found = Machine("cloudmatrix384", machine), []
    for pair in ("same-node", "cross-node"):
        note = "the source names no distance"
        found += [
            Row("URMA", f"send 2 B, {pair}", UMDK, (3.03, 3.52), *on.urma_send(pair, 2), 0, True, note),
            Row("URMA", f"compare and swap, {pair}", UMDK, (5, 5), *on.urma_atomic(pair), 0, True, note),
        ]
    moved = STREAM * 8 * KB
    found.append(
        Row("URMA", "writes of 8 KB", UMDK, (21.25,) * 2, *on.urma_stream("same-node", 8 * KB), moved)
    )
    return found


def table(found: list[Row]) -> str:
    """The rows as text, and each group's median and worst error."""
    lines = []
    for r in found:
        low, high = r.given
        given = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        gate = "" if r.gated else "(not gated) "
        head = f"{r.group:5} {r.name:28} {r.source[:32]:32} {given:>12} {r.value:9.3f} {r.unit:4}"
        lines.append(f"{head} {100 * r.error:+6.1f} % {gate}{r.note}".rstrip())
    for group in ("UB", "DMA", "verbs", "URMA", ""):
        errors = sorted(abs(r.error) for r in found if r.gated and (not group or r.group == group))
        middle = 50 * (errors[(len(errors) - 1) // 2] + errors[len(errors) // 2])
        name = group or "all"
        lines.append(f"{name}: {len(errors)} gated, median {middle:.1f} %, worst {100 * errors[-1]:.1f} %")
    return "\n".join(lines)
