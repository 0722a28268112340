"""What A2E and E2A are charged beside the bytes of their rows. Pure.

    who begins        start_ps (attention dies in A2E, expert dies in E2A), write_ps for each record stored
    who waits         poll_ps for each record it waited for, and settle_ps once
    who pulls         issue_ps between two pulls, the rows' bytes on the fabric
    a trampoline      copy_row_ps for each row of others that it writes into its own block, then write_ps

The prices are those of XCCL's dispatch and combine (`collectives/libraries`); nothing is fitted to A2E or
E2A. The library's `rank` is one die's scalar work on one peer's record, write and poll together (that is
what it was fitted to), so each is half of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from collectives.libraries import charges, load_library, ready_ps
from emulator.profile import Profile


@dataclass(frozen=True)
class RelayCosts:
    """One direction's costs; times in ps, sizes in bytes. See the module."""

    row_bytes: int
    start_ps: int = 0
    write_ps: int = 0
    poll_ps: int = 0
    issue_ps: int = 0
    settle_ps: int = 0
    copy_row_ps: int = 0
    meta_bytes: int = 32


def a2e_costs(profile: Profile, hidden: int, rows: int, in_situ: bool = False) -> RelayCosts:
    """Costs of A2E on this machine: rows quantised to INT8.

    Args:
        hidden: values of a row as charged.
        rows: charged rows (tokens times slots) an attention die sends.
        in_situ: beside other kernels: the machine's in-situ overhead at each wait.
    """
    return _costs(profile, "dispatch", hidden, rows, in_situ)


def e2a_costs(profile: Profile, hidden: int, rows: int, in_situ: bool = False) -> RelayCosts:
    """Costs of E2A: BF16 rows. `rows`: charged rows an expert die sends home; the rest as `a2e_costs`."""
    return _costs(profile, "combine", hidden, rows, in_situ)


def _costs(profile: Profile, operation: str, hidden: int, rows: int, in_situ: bool) -> RelayCosts:
    library = load_library("xccl")
    found = charges(library, profile, operation, ranks=1, hidden=hidden, topk=1, tokens=rows)
    rank = library.ps("rank")
    return RelayCosts(
        row_bytes=found.row_bytes,
        start_ps=found.start_ps,
        write_ps=rank // 2,
        poll_ps=rank - rank // 2,
        issue_ps=rank,
        settle_ps=profile.ps("exchange.in_situ_us") if in_situ else 0,
        copy_row_ps=ready_ps(profile, "combine", found.row_bytes),
        meta_bytes=found.meta_bytes,
    )
