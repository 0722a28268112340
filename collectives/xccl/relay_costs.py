"""What A2E and E2A are charged beside the bytes of their rows. Pure.

    attention         start_ps, then write_ps for each record it stores
    whoever waits     poll_ps for each record it waited for, and settle_ps once
    whoever pulls     issue_ps between two pulls, the rows' bytes on the fabric
    a trampoline      write_ps for each record it sends on

`xccl.record_us` of the machine's profile is one rank's scalar work on one peer's record, write and poll
together (that is what it was fitted to), so each is half of it. Nothing is fitted to A2E or E2A. At A = 160,
E = 288, 96 rows x 9 slots of 7,680 B out and 14,336 B back, the mean over the dies is 166 us for A2E
(published: 172) and 193 us for E2A (published: 193).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    meta_bytes: int = 32


def a2e_costs(profile: Profile, row_bytes: int, quantised_rows: int = 0) -> RelayCosts:
    """Costs of A2E on this machine, from section [xccl] of its profile.

    Args:
        row_bytes: charged bytes of a row.
        quantised_rows: rows an attention die quantises and groups before it stores its records, 0 without.
    """
    record = profile.ps("xccl.record_us")
    return RelayCosts(
        row_bytes=row_bytes,
        start_ps=profile.ps("xccl.start_us") + quantised_rows * profile.ps("xccl.quantise_row_us"),
        write_ps=record // 2,
        poll_ps=record - record // 2,
        issue_ps=record,
        settle_ps=profile.ps("xccl.in_situ_us"),
        meta_bytes=profile.num_bytes("xccl.record_bytes"),
    )


def e2a_costs(profile: Profile, row_bytes: int) -> RelayCosts:
    """Costs of E2A. Expert dies run persistent kernels (5.2), so nothing is launched: no start-up."""
    return replace(a2e_costs(profile, row_bytes), start_ps=0)
