"""Which jobs of ranks measure the published rows, and what is made of what each returns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from collectives.calibrate import emulated
from collectives.calibrate.a2e_job import ATTENTION, EXPERT_DIES
from collectives.calibrate.cases import CASES
from collectives.calibrate.emulated import Value
from collectives.calibrate.links_job import RANKS
from collectives.calibrate.p2p_job import RANKS as P2P_RANKS
from collectives.calibrate.xccl_job import MANAGED_BYTES

GROUPS: Final = ("links", "p2p", "ep", "xccl", "a2e")


@dataclass(frozen=True)
class Job:
    """One job: `ranks` of `profile` run module `collectives.calibrate.<module>` with `arguments` and a file.

    group: what a caller chooses by. values: from the file's content to values by row.
    """

    group: str
    title: str
    profile: str
    ranks: int
    module: str
    arguments: tuple[str, ...]
    values: Callable[[Mapping[str, Any]], dict[str, Value]]
    managed_bytes: int = 4 << 20


def _exchanges(profile: str) -> Job:
    most = max(case.ranks for case in CASES if case.machine == profile)
    title = f"dispatch and combine pushed, up to {most} ranks of {profile}"
    return Job("ep", title, profile, most, "job", (profile,), emulated.exchanges)


_POD: Final = "cloudmatrix384"

JOBS: Final = (
    Job("links", "links and DMA", _POD, RANKS["ub"], "links_job", ("ub",), emulated.links),
    Job("links", "work requests, HDR", "ib-hdr", RANKS["hdr"], "links_job", ("hdr",), emulated.links),
    Job("links", "work requests, 400G", "rdma-400g", RANKS["400g"], "links_job", ("400g",), emulated.links),
    Job("p2p", "XCCL send", _POD, P2P_RANKS, "p2p_job", (), emulated.point_to_point),
    _exchanges(_POD),
    _exchanges("h800-ib"),
    Job("xccl", "XCCL by batch", _POD, 128, "xccl_job", ("sweep",), emulated.sweep, MANAGED_BYTES),
    Job("xccl", "XCCL in situ", _POD, 288, "xccl_job", ("in-situ",), emulated.in_situ, MANAGED_BYTES),
    Job("a2e", "A2E, E2A", _POD, ATTENTION + EXPERT_DIES, "a2e_job", (), emulated.relays, MANAGED_BYTES),
)


def chosen(groups: list[str]) -> list[Job]:
    """Return the jobs of these groups, all of them for an empty list."""
    return [job for job in JOBS if not groups or job.group in groups]
