"""A fault of a die's memory that loses pages of the KV cache: the requests that own them are computed again.

The pages are overwritten, so that whoever read them after all would answer wrongly and be found. They are
clean when they are given away again: the driver maps other memory there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emulator.faults import Fault
from emulator.faults.plan import draw
from serving.engine import Clock
from serving.model.kv_cache import PagedKV


class PageFaults:
    """Page faults of one rank.

    Args:
        kv: its cache.
        clock: its clock.
        report: where each fault goes: at_ps, pages lost, and the requests that own them.
    """

    def __init__(self, kv: PagedKV, clock: Clock, report: list[dict[str, Any]]) -> None:
        self._kv, self._clock, self._report = kv, clock, report
        self._lost: set[int] = set()

    def strike(self, fault: Fault) -> None:
        """Lose `blocks` pages of those held, drawn from the fault."""
        held = self._kv.held()
        lost: dict[int, Any] = {}
        for number in range(min(fault.blocks or 0, len(held))):
            page = sorted(held)[draw(f"{fault.model_dump_json()}:{number}", len(held))]
            lost[page] = held.pop(page)
        self._kv.spoil(list(lost))
        owners = sorted({int(str(owner)) for owner in self._kv.owners(list(lost))})
        self._lost.update(owners)
        facts = {"at_ps": self._clock.now_ps, "pages": sorted(lost), "recomputed": owners}
        self._report.append(facts)

    def take(self) -> Sequence[int]:
        """Requests that have lost KV since the last call."""
        lost, self._lost = sorted(self._lost), set()
        return lost
