"""The planes of the fabric: UB scale-up links, RDMA scale-out NICs, and the plane to the outside (VPC).

Each has ports of its own, and a latency and a rate for every link class. UB's stand in `emulator.topology`;
this module has the others, in the form the event engine wants.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from emulator.engine.api import EngineConfig, PlaneConfig
from emulator.profile import Profile, exact
from emulator.profile_keys import UB_CLASSES

PLANES = ("ub", "rdma", "vpc")
"""Names of the planes, by number."""
PerClass = tuple[int, int, int, int]
"""One number for each `LinkClass`."""


class Plane(IntEnum):
    """A fabric of its own ports and links."""

    UB = 0
    RDMA = 1
    VPC = 2


def rdma_bytes_per_s(profile: Profile) -> int:
    """Return what the RDMA NIC of a die moves: line rate times efficiency, B/s."""
    return max(1, int(profile.per_s("rdma.gb_per_s") * exact(profile.value("rdma.efficiency"))))


def rdma_wire_ps(profile: Profile) -> PerClass:
    """Return, per link class, one passage from NIC to NIC; a loop-back within a die crosses no switch."""
    base = profile.ps("rdma.nic_us") + profile.ps("rdma.roce_us")
    hops = (0, *(profile.integer(f"rdma.hops_{c}") for c in UB_CLASSES))
    local, chip, intra, inter = (base + n * profile.ps("rdma.hop_us") for n in hops)
    return local, chip, intra, inter


def plane_configs(profile: Profile) -> tuple[PlaneConfig, PlaneConfig]:
    """Return latencies and rates of the planes beside UB, RDMA first.

    An RDMA request reaches memory through the target's PCIe, so the request of a get holds one passage of it;
    what lands passes it in the operation's tail.
    """
    wire, pcie = rdma_wire_ps(profile), profile.ps("rdma.pcie_us")
    request = (wire[0] + pcie, wire[1] + pcie, wire[2] + pcie, wire[3] + pcie)
    rdma, far = _all(rdma_bytes_per_s(profile)), _all(profile.ps("vpc.latency_us"))
    vpc = _all(profile.per_s("vpc.gb_per_s"))
    return PlaneConfig(wire, request, wire, wire, rdma, rdma), PlaneConfig(far, far, far, far, vpc, vpc)


def latencies_ps(config: EngineConfig, classes: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return int64 [planes, ranks]: least time on each plane over links of `classes`, uint8 [ranks]."""
    by_class = [config.put_latency_ps, *(plane.put_latency_ps for plane in config.planes)]
    return np.array(by_class, np.int64)[:, classes]


def _all(value: int) -> PerClass:
    return value, value, value, value
