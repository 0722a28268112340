"""What a lost expert does to a request; apart from `recovery.masks`, for processes that hold no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

ASKED, ANSWERED = "masked.json", "masked-reference.jsonl"
"""Files of `recovery.masked_reference`: what it is asked, what it answers."""


@dataclass
class Touch:
    """A touched request: lost experts it was routed to (layer-wise ones count once), first output touched."""

    experts: set[int] = field(default_factory=set)
    first_output: int = 1 << 30
