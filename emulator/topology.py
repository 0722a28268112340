"""Who is near whom: dies on chips, chips in nodes, nodes in the pod, and what each distance costs.

Rank r is die r of the pod, filled in order: chip r // 2, node r // 16 on a CloudMatrix384. Between two dies
there are four link classes; latency and bandwidth belong to the class. Routes, planes and switches are left
out: the pod's switch fabric is non-blocking (arXiv 2506.12708 3.3), so only the ports of the dies queue.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.engine.api import EngineConfig
from emulator.errors import UsageError
from emulator.planes import PerClass, plane_configs
from emulator.profile import Profile, exact
from emulator.profile_keys import UB_CLASSES


class LinkClass(IntEnum):
    """Distance between two dies."""

    SELF = 0
    CHIP = 1
    NODE = 2
    POD = 3


@dataclass(frozen=True)
class Topology:
    """The pod's shape and how many of its dies a run uses (`num_ranks`, from die 0 on)."""

    num_ranks: int
    dies_per_chip: int
    chips_per_node: int
    nodes: int

    def __post_init__(self) -> None:
        """Check the rank count. Raises: UsageError."""
        if self.num_ranks < 1:
            raise UsageError(f"a run needs at least 1 rank, got {self.num_ranks}")
        if self.num_ranks > self.num_dies:
            raise UsageError(f"{self.num_ranks} ranks asked for, the pod has {self.num_dies} dies")

    @classmethod
    def from_profile(cls, profile: Profile, num_ranks: int) -> "Topology":
        """Return the topology of `num_ranks` dies. Raises UsageError when the pod has fewer."""
        return cls(
            num_ranks=num_ranks,
            dies_per_chip=profile.integer("pod.dies_per_chip"),
            chips_per_node=profile.integer("pod.chips_per_node"),
            nodes=profile.integer("pod.nodes"),
        )

    @property
    def dies_per_node(self) -> int:
        """Dies of one node."""
        return self.dies_per_chip * self.chips_per_node

    @property
    def num_dies(self) -> int:
        """Dies of the whole pod, used or not."""
        return self.dies_per_node * self.nodes

    def chip_of(self, rank: int) -> int:
        """Return the chip that carries `rank`."""
        return rank // self.dies_per_chip

    def node_of(self, rank: int) -> int:
        """Return the node that carries `rank`."""
        return rank // self.dies_per_node

    def link_class(self, a: int, b: int) -> LinkClass:
        """Return the class of the link between ranks `a` and `b`; it is the same both ways."""
        if a == b:
            return LinkClass.SELF
        if self.chip_of(a) == self.chip_of(b):
            return LinkClass.CHIP
        return LinkClass.NODE if self.node_of(a) == self.node_of(b) else LinkClass.POD

    def classes(self, rank: int) -> NDArray[np.uint8]:
        """Return uint8[num_ranks]: the link class from `rank` to every rank."""
        peers = np.arange(self.num_ranks)
        result = np.full(self.num_ranks, LinkClass.POD, dtype=np.uint8)
        result[peers // self.dies_per_node == self.node_of(rank)] = LinkClass.NODE
        result[peers // self.dies_per_chip == self.chip_of(rank)] = LinkClass.CHIP
        result[rank] = LinkClass.SELF
        return result


def put_latency_ps(profile: Profile) -> PerClass:
    """Return, per link class, the time from a put's start to its first byte's arrival."""
    chip, intra, inter = (profile.ps(f"ub.latency_{name}_us") for name in UB_CLASSES)
    return profile.ps("ub.latency_self_us"), chip, intra, inter


def read_bytes_per_s(profile: Profile) -> PerClass:
    """Return, per link class, the bandwidth of a get's response."""
    chip, intra, inter = (profile.per_s(f"ub.read_{name}_gb_per_s") for name in UB_CLASSES)
    return profile.per_s("ub.self_gb_per_s"), chip, intra, inter


def write_bytes_per_s(profile: Profile) -> PerClass:
    """Return, per link class, the bandwidth of a put."""
    chip, intra, inter = (profile.per_s(f"ub.write_{name}_gb_per_s") for name in UB_CLASSES)
    return profile.per_s("ub.self_gb_per_s"), chip, intra, inter


def engine_config(profile: Profile, num_ranks: int, **settings: Any) -> EngineConfig:
    """Return the event engine's configuration for `num_ranks` dies of the profile's machine.

    Args:
        profile: where every time and rate comes from.
        num_ranks: ranks of the run.
        settings: fields of `EngineConfig` that are no property of the machine (words_per_rank, channels, …).

    Raises:
        UsageError: more ranks than dies.
    """
    topology = Topology.from_profile(profile, num_ranks)
    put = put_latency_ps(profile)
    request = _shares(put, profile, "ub.request_share")
    return EngineConfig(
        num_ranks=num_ranks,
        dies_per_chip=topology.dies_per_chip,
        dies_per_node=topology.dies_per_node,
        put_latency_ps=put,
        request_latency_ps=request,
        response_latency_ps=(
            put[0] - request[0],
            put[1] - request[1],
            put[2] - request[2],
            put[3] - request[3],
        ),
        ack_latency_ps=_shares(put, profile, "ub.ack_share"),
        write_bytes_per_s=write_bytes_per_s(profile),
        read_bytes_per_s=read_bytes_per_s(profile),
        call_price_ps=max(1, profile.ps("engine.call_price_ns")),
        poll_price_ps=max(1, profile.ps("engine.poll_price_ns")),
        poll_max_polls=profile.integer("engine.poll_max_polls"),
        planes=plane_configs(profile),
        **settings,
    )


def _shares(latency_ps: PerClass, profile: Profile, key: str) -> PerClass:
    share = exact(profile.value(key))
    local, chip, intra, inter = (round(ps * share) for ps in latency_ps)
    return local, chip, intra, inter
