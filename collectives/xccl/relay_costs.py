"""What A2E and E2A are charged beside the bytes of their rows. Pure.

    attention         start_ps, then write_ps for each record it stores
    whoever waits     poll_ps for each record it waited for, and settle_ps once
    whoever pulls     issue_ps between two pulls, the rows' bytes on the fabric
    a trampoline      write_ps for each record it sends on

`xccl.record_us` of the machine's profile is one rank's scalar work on one peer's record, write and poll
together (that is what it was fitted to), so each is half of it. Nothing is fitted to A2E or E2A.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def relay_costs(profile: Profile, row_bytes: int, quantised_rows: int = 0) -> RelayCosts:
    """Costs of one direction on this machine, from section [xccl] of its profile.

    Args:
        row_bytes: charged bytes of a row.
        quantised_rows: rows an attention die quantises before it stores its records (A2E), 0 without.
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
