"""Where one rank's virtual time went, and what it moved: plain counters, summed over the pod at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

BUCKETS = ("attention", "experts", "dispatch", "combine", "other", "waiting")
"""other = embedding, dense layers, output head, step overhead. waiting = for slower ranks (until the last
metadata record of an exchange is in) and, asleep, for requests to arrive."""


@dataclass
class TimeLedger:
    """Virtual picoseconds by bucket; `charge` and `spend` together cover a rank's whole life."""

    ps: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BUCKETS, 0))

    def add(self, bucket: str, ps: int) -> None:
        """Add to a bucket; "recovery" is one of its own where there was any."""
        self.ps[bucket] = self.ps.get(bucket, 0) + ps

    @property
    def total_ps(self) -> int:
        return sum(self.ps.values())


@dataclass
class WorkLedger:
    """What one rank computed and moved.

    functional_*: really computed or moved; priced_*: charged at the target's size. Rows are token-expert
    pairs over all executed layers; priced bytes include the layers an executed one stands for. record_bytes:
    metadata and status records, as charged. group_bytes: what tensor-parallel
    ranks give each other, as charged.
    """

    functional_tokens: int = 0
    priced_tokens: int = 0
    functional_rows_sent: int = 0
    functional_rows_received: int = 0
    priced_rows_sent: int = 0
    priced_rows_received: int = 0
    functional_bytes_sent: int = 0
    functional_bytes_received: int = 0
    priced_bytes_sent: int = 0
    priced_bytes_received: int = 0
    record_bytes_sent: int = 0
    group_bytes_sent: int = 0
    kv_blocks_allocated: int = 0
    kv_blocks_freed: int = 0
