"""What the ranks of an expert-parallel group say about their calls, and what differs. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collectives.agreement import CollectiveMismatchError
from collectives.ep.traffic import SCHEMES
from collectives.ep.wire import FORMS
from emulator.engine.reports import ranges
from emulator.errors import UsageError

Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
FIELDS = (
    "operation", "scheme", "words of a row", "hidden size", "topk", "number of experts", "capacity",
    "use of a cached handle", "rank mask", "kind of rows", "kind of rows back", "most rows a rank holds",
    "event",
)  # fmt: skip
"""Facts of a call that must be equal on all ranks, in the table's order."""
OPERATIONS = ("dispatch", "combine")
NAMES = {0: OPERATIONS, 1: SCHEMES, 9: FORMS, 10: FORMS}
"""What the numbers of some facts stand for."""
HEAD_BYTES, TEXT_BYTES, STATE_BYTES = 128, 256, 64


def disagreement(tables: Bytes, members: Int64) -> UsageError:
    """What a group raises after an exchange whose tags are not all alike: the trouble some ranks told, or
    which fact differs.

    Args:
        tables: uint8 [R, table bytes]. members: int64 [R], machine ranks.
    """
    texts = tables[:, HEAD_BYTES : HEAD_BYTES + TEXT_BYTES]
    told = np.flatnonzero(texts[:, 0] != 0)
    if told.size:
        text = texts[told[0]].tobytes().rstrip(b"\0").decode(errors="replace")
        more = f" (and {told.size - 1} more ranks are in trouble)" if told.size > 1 else ""
        return UsageError(f"rank {members[told[0]]}: {text}{more}", ranks=members[told].tolist())
    facts = np.ascontiguousarray(tables[:, :HEAD_BYTES]).view(np.int64)[:, : len(FIELDS)]
    differ = np.flatnonzero((facts != facts[0]).any(axis=0))
    parts = [
        f"{FIELDS[field]}: {_who(facts[:, field], members, NAMES.get(field, ()))}"
        for field in differ[:3].tolist()
    ]
    return CollectiveMismatchError(f"expert exchange: the ranks disagree on the {'; on the '.join(parts)}")


def _who(values: Int64, members: Int64, names: tuple[str, ...]) -> str:
    """Which ranks say what, int64 [R], by name where there are names."""
    found, which = np.unique(values, return_inverse=True)
    words = [names[value] if value < len(names) else str(value) for value in found.tolist()]
    said = [f"{ranges(members[which == i].tolist())}: {word}" for i, word in enumerate(words)]
    return ", ".join(said[:8])


def unlike_calls(states: Int64, members: Int64) -> CollectiveMismatchError | None:
    """What holds up ranks that wait for each other, None if their states do not tell.

    Args:
        states: int64 [R, 3], of each rank its operation (0 none, else 1 + micro-batch * 2 + operation), event
            and rank mask (0 none). members: int64 [R], machine ranks.
    """
    for mask in np.unique(states[:, 2])[1:]:
        others = ranges(members[states[:, 2] == mask].tolist())
        return CollectiveMismatchError(f"expert exchange: {others} mask other ranks than the rest does")
    states = states[:, :2]
    if not (states != states[0]).any():
        return None
    rows, which = np.unique(states, axis=0, return_inverse=True)
    parts = []
    for i, (side, event) in enumerate(rows.tolist()):
        batch, operation = divmod(side - 1, 2)
        call = f"{OPERATIONS[operation]} {event} of buffer {batch}" if side else "no expert exchange"
        parts.append(f"{ranges(members[which.reshape(-1) == i].tolist())}: in {call}")
    return CollectiveMismatchError(f"expert exchange: the ranks are not in the same call: {'; '.join(parts)}")
