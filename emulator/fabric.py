"""What a transfer costs beside ports and links: start-up, units, tails, completions. Pure.

The event engine serves three planes (`Plane`), each with a latency and a rate for every link class, and
queues what shares a port or a unit of a die. This module says, for one operation, what to tell it: a `Shape`.

    caller   call price, and for work requests `post` and `doorbell`: the caller's own time, not in a shape
    start    until the operation asks for its unit
    unit     how long that unit is taken, in order of asking
    link     latency and port time, the engine's
    tail     from the last byte at the port to its delivery
    done     added to the acknowledgement or answer

All formulas are in the profile beside their numbers; there is no table by size. Times are int ps, rounded up
to a picosecond where bytes are divided by a rate.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from emulator.errors import UsageError
from emulator.npu import ceil_ps
from emulator.planes import PLANES, Plane, rdma_bytes_per_s
from emulator.profile import Profile, nearest
from emulator.topology import LinkClass, Topology, put_latency_ps, read_bytes_per_s, write_bytes_per_s

__all__ = [
    "ENGINES",
    "PLANES",
    "VERBS_OPCODES",
    "Fabric",
    "MessageShape",
    "Plane",
    "Shape",
    "Transaction",
    "Unit",
]

ENGINES = ("mte", "dma")
VERBS_OPCODES = ("write", "send", "read", "atomic")


class Unit(IntEnum):
    """What serves one operation after another on a die, before its ports."""

    NONE = -1
    DMA = 0
    NIC = 1
    URMA = 2
    ATOMIC = 3


class Transaction(IntEnum):
    """What a path of moving bytes does beside moving them; each is counted by `emulator.ledger`."""

    DESCRIPTOR = 0  # given to a DMA unit
    DOORBELL = 1
    WQE_FETCH = 2  # a NIC fetches a work request (and its payload) from memory
    COMPLETION = 3  # an entry of a completion queue
    MATCH = 4  # an envelope is held against the posted receives
    COPY = 5  # a payload is copied once more
    HANDSHAKE = 6  # request, pull or end of a rendezvous
    FLAG = 7  # a signal or record is stored


class Shape(NamedTuple):
    """What the engine is told of one operation, as fields of a post record of the same names. Times in ps."""

    start_ps: int = 0
    unit: int = Unit.NONE
    unit_ps: int = 0
    tail_ps: int = 0
    done_ps: int = 0
    plane: int = Plane.UB


class MessageShape(NamedTuple):
    """How a message of some size travels.

    Attributes:
        eager: the payload goes with the envelope.
        send_ps, isend_ps, recv_ps: the callers' own time.
        copy_ps: the receiver's own time to copy an eager payload out; 0 for a rendezvous.
        envelope_bytes: charged for the first message (control, and an eager payload).
        pull_bytes: what the receiver's side then fetches; 0 for an eager message.
        envelope: shape of the first message; its tail holds the match.
    """

    eager: bool
    send_ps: int
    isend_ps: int
    recv_ps: int
    copy_ps: int
    envelope_bytes: int
    pull_bytes: int
    envelope: Shape


class Fabric:
    """Costs on one machine.

    Args:
        profile: where every number comes from.
        topology: which class the link between two ranks has.
    """

    def __init__(self, profile: Profile, topology: Topology) -> None:
        self.profile, self.topology = profile, topology
        self._latency = put_latency_ps(profile)
        self._read, self._write = read_bytes_per_s(profile), write_bytes_per_s(profile)
        self._core_per_s = profile.per_s("mte.core_gb_per_s")
        self._dma_per_s = profile.per_s("dma.gb_per_s")
        self._nic_per_s = rdma_bytes_per_s(profile)
        self._ps = {key: profile.ps(key) for key, entry in profile.items() if entry.unit == "us"}

    def link_class(self, a: int, b: int) -> LinkClass:
        """Return the class of the link between two ranks."""
        return self.topology.link_class(a, b)

    # --- memory semantics -------------------------------------------------------------------------------

    def put(self, cls: int, nbytes: int, engine: str = "mte", cores: int | None = None) -> Shape:
        """Return the shape of a put of `nbytes` (charged) over a link of class `cls`.

        Args:
            engine: "mte" (cores store remote memory themselves) or "dma" (a descriptor of the DMA unit).
            cores: AIV cores of an mte transfer, 1 to those of a die; `mte.cores` by default.

        Raises:
            UsageError: unknown engine, or cores out of range or given to dma.
        """
        return self._move(self._write[cls], cls, nbytes, engine, cores)

    def get(self, cls: int, nbytes: int, engine: str = "mte", cores: int | None = None) -> Shape:
        """Return the shape of a get; arguments as `put`."""
        return self._move(self._read[cls], cls, nbytes, engine, cores)

    def blocks(self, cls: int, nbytes: int, block: int, engine: str = "dma") -> list[tuple[int, Shape]]:
        """Return (bytes, shape) of each piece of a put of `nbytes` cut into blocks of `block` bytes; none of
        an empty one. Raises: UsageError, block below 1."""
        if block < 1:
            raise UsageError(f"blocks: a block has at least 1 byte, got {block}")
        sizes = [block] * (nbytes // block) + [nbytes % block] * (nbytes % block > 0)
        shapes = {size: self.put(cls, size, engine) for size in set(sizes)}
        return [(size, shapes[size]) for size in sizes]

    def atomic(self, cls: int) -> Shape:
        """Return the shape of an atomic on a word or element over UB: a get of 8 bytes by mte."""
        return self.get(cls, 8)

    def _move(self, rate: int, cls: int, nbytes: int, engine: str, cores: int | None) -> Shape:
        if engine == "mte":
            bound = min(rate, self._cores(cores) * self._core_per_s)
            tail_ps = ceil_ps(nbytes, bound) - ceil_ps(nbytes, rate)
            return Shape(start_ps=self._ps["mte.start_us"], tail_ps=tail_ps)
        if engine != "dma":
            raise UsageError(f"engine {engine!r}: choose mte or dma{nearest(engine, ENGINES)}")
        if cores is not None:
            raise UsageError(f"cores={cores}: the dma engine takes none; give cores to engine mte")
        latency = self._latency[cls]
        moved = ceil_ps(nbytes, min(rate, self._dma_per_s))
        return Shape(
            start_ps=self._ps["dma.start_us"] + self.profile.integer("dma.turns") * latency,
            unit=Unit.DMA,
            unit_ps=max(self._ps["dma.block_us"], latency + moved),
            tail_ps=moved - ceil_ps(nbytes, rate),
        )

    def _cores(self, cores: int | None) -> int:
        if cores is None:
            return self.profile.integer("mte.cores")
        most = self.profile.integer("die.aiv_cores")
        if not 1 <= cores <= most:
            raise UsageError(f"cores={cores}: a die has 1 to {most} AIV cores")
        return cores

    # --- work requests ----------------------------------------------------------------------------------

    @property
    def post_ps(self) -> int:
        """Caller's time to write one work request."""
        return self._ps["rdma.post_us"]

    @property
    def doorbell_ps(self) -> int:
        """Caller's time to ring one doorbell; a list of work requests rings one."""
        return self._ps["rdma.doorbell_us"]

    def verbs(self, opcode: str, nbytes: int, inline: bool) -> Shape:
        """Return the shape of a work request on the RDMA plane; the distance is the plane's latency.

        Args:
            opcode: "write", "send", "read" or "atomic"; with immediate or not.
            nbytes: charged payload.
            inline: write or send: the NIC finds request and payload in the doorbell's write. Reads and
                atomics have no payload to fetch and are posted the same way.

        Raises:
            UsageError: unknown opcode.
        """
        fetches = opcode in ("write", "send") and not inline
        start = self._ps["rdma.fetch_us"] + self._ps["rdma.pcie_us"] if fetches else 0
        unit, landing = self._ps["rdma.gap_us"], self._ps["rdma.pcie_us"]
        if opcode in ("write", "send"):
            unit = max(unit, ceil_ps(nbytes, self._nic_per_s))
            landing += self._ps["rdma.cqe_us"] if opcode == "send" else 0
        elif opcode == "atomic":
            landing += self._ps["rdma.atomic_us"]
        elif opcode != "read":
            raise UsageError(f"work request {opcode!r}{nearest(opcode, VERBS_OPCODES)}")
        return Shape(start, Unit.NIC, unit, landing, self._ps["rdma.cqe_us"], Plane.RDMA)

    def urma(self, opcode: str, nbytes: int, cls: int) -> Shape:
        """Return the shape of an URMA work request on the UB plane; opcodes and errors as `verbs`."""
        side, cqe = self._ps["urma.side_us"], self._ps["rdma.cqe_us"]
        unit, landing = self._ps["urma.gap_us"], side
        if opcode in ("write", "send"):
            unit = max(unit, ceil_ps(nbytes, self._write[cls]))
            landing += cqe if opcode == "send" else 0
        elif opcode in ("read", "atomic"):
            landing += side + (self._ps["urma.atomic_us"] if opcode == "atomic" else 0)
        else:
            raise UsageError(f"work request {opcode!r}{nearest(opcode, VERBS_OPCODES)}")
        return Shape(self._ps["rdma.fetch_us"] + side, Unit.URMA, unit, landing, cqe, Plane.UB)

    def control_ps(self, call: str) -> int:
        """Return the caller's time of a control-plane call: the name in `urma.<call>_us`, or
        "verbs_register"."""
        return self._ps["rdma.register_us" if call == "verbs_register" else f"urma.{call}_us"]

    # --- messages ---------------------------------------------------------------------------------------

    def message(self, cls: int, nbytes: int, over: str, synchronous: bool = False) -> MessageShape:
        """Return how a message of `nbytes` travels.

        Args:
            cls: class of the link.
            over: the plane, "ub", "rdma" or "vpc".
            synchronous: a rendezvous whatever the size.

        Raises:
            UsageError: unknown plane.
        """
        eager = nbytes <= self.profile.integer("message.eager_bytes") and not synchronous
        control = self.profile.integer("message.control_bytes")
        first = control + nbytes if eager else control
        return MessageShape(
            eager=eager,
            send_ps=self._ps["message.send_us"],
            isend_ps=self._ps["message.isend_us"],
            recv_ps=self._ps["message.recv_us"],
            copy_ps=ceil_ps(nbytes, self.profile.per_s("message.copy_gb_per_s")) if eager else 0,
            envelope_bytes=first,
            pull_bytes=0 if eager else nbytes,
            envelope=self._envelope(cls, first, over),
        )

    def _envelope(self, cls: int, nbytes: int, over: str) -> Shape:
        match = self._ps["message.match_us"]
        if over == "ub":
            shape = self.put(cls, nbytes)
        elif over == "rdma":
            shape = self.verbs("send", nbytes, nbytes <= self.profile.integer("rdma.inline_bytes"))
        elif over == "vpc":
            shape = Shape(plane=Plane.VPC)
        else:
            raise UsageError(f"--mpi-over {over}: choose ub, rdma or vpc{nearest(over, PLANES)}")
        return shape._replace(tail_ps=shape.tail_ps + match)
