"""What has become of a plan's faults, as rows for the run's result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.faults.injector import FIRED, FIRED_PS, RANK, UNDONE_PS
from emulator.faults.plan import Fault


def as_rows(plan: Sequence[Fault], log: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """One row a fault: kind, its owner, times fired, and (fired) rank, fired_ps, undone_ps (None: not)."""
    rows = []
    for index, fault in enumerate(plan):
        entry = log[index].tolist()
        row: dict[str, Any] = {
            "fault": index,
            "kind": fault.kind,
            "owner": fault.owner,
            "fired": entry[FIRED],
        }
        if entry[FIRED]:
            undone = None if entry[UNDONE_PS] < 0 else entry[UNDONE_PS]
            row |= {"rank": entry[RANK], "fired_ps": entry[FIRED_PS], "undone_ps": undone}
        rows.append(row)
    return rows


def never_fired(rows: Sequence[dict[str, Any]]) -> str | None:
    """A line about the faults that did not fire, or None."""
    idle = [f"{row['fault']} ({row['kind']})" for row in rows if not row["fired"]]
    return f"{len(idle)} of {len(rows)} faults never fired: {', '.join(idle)}" if idle else None
