"""What the pod's front end has been given: every token as it came out, so that it outlives the rank.

A file mapped by all ranks, one record a request. A rank writes a token before it counts it; of a dead rank's
requests the count says what was emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.recovery.touch import Touch
from serving.request import Request, RequestSpec

_FILE = "stream.bin"
_MASKS, _EXPERTS = 16, 512
"""Masks a request may be computed under, one after the other; experts that can be named."""
_ERROR_BYTES = 240
"""Of an error's text."""


class Emitted(NamedTuple):
    """Tokens of a request, their times, by which rank the last, and the hash of the logits up to it."""

    tokens: list[int]
    times_ps: list[int]
    rank: int
    logits_sha256: str


class Touched(NamedTuple):
    """A request served without experts it needed (`recovery.masks`).

    first_output: touched from there on. experts: lost ones it was routed to. history: (first position,
    number of the change of membership whose mask held then). given: outputs that were there when it moved.
    """

    first_output: int
    experts: list[int]
    history: list[tuple[int, int]]
    given: list[int]


class TokenStream:
    """The front end's record of one run.

    Args:
        directory: of the run.
        specs: its requests, ids by position.
        create: make an empty one.
    """

    def __init__(self, directory: str | Path, specs: Sequence[RequestSpec], create: bool = False) -> None:
        most = max((spec.max_output for spec in specs), default=1)
        row = [
            ("count", "i8"),
            ("rank", "i8"),
            ("hash", "S64"),
            ("tokens", "i8", most),
            ("times", "i8", most),
            ("given", "i8"),
            ("history", "i8", (_MASKS, 2)),
            ("touched", "i8"),
            ("experts", "u1", _EXPERTS),
            ("finish", "S8"),
            ("error", f"S{_ERROR_BYTES}"),
        ]
        shape, mode = (max(1, len(specs)),), "w+" if create else "r+"
        self._specs = specs
        self._rows: NDArray[Any] = np.memmap(Path(directory) / _FILE, np.dtype(row), mode, shape=shape)  # type: ignore[call-overload]

    def emit(self, rank: int, request: Request, logits_sha256: str) -> None:
        """Note the last output of a request."""
        row, count = self._rows[request.spec.request_id], len(request.outputs)
        row["tokens"][count - 1], row["times"][count - 1] = request.outputs[-1], request.token_times_ps[-1]
        row["rank"], row["hash"] = rank, logits_sha256.encode()
        row["count"] = count

    def note_masks(self, request: Request, history: Sequence[tuple[int, int]], touch: Touch | None) -> None:
        """Note under which masks a request was computed, and what that touched."""
        row = self._rows[request.spec.request_id]
        kept = list(history)[-_MASKS:]
        row["history"][: len(kept)], row["history"][len(kept) :] = kept, -1
        row["given"] = request.replayed
        if touch is not None:
            row["touched"] = 1 + min(touch.first_output, row["touched"] - 1 if row["touched"] else 1 << 30)
            row["experts"][list(touch.experts)] = 1

    def touched(self) -> dict[int, Touched]:
        """Requests that were touched, by number."""
        return {
            spec.request_id: self._touched(self._rows[spec.request_id])
            for spec in self._specs
            if self._rows[spec.request_id]["touched"]
        }

    def _touched(self, row: Any) -> Touched:
        history = [(int(at), int(change)) for at, change in row["history"].tolist() if at >= 0]
        experts = np.flatnonzero(row["experts"]).tolist()
        return Touched(int(row["touched"]) - 1, experts, history, row["tokens"][: int(row["given"])].tolist())

    def of(self, request: int) -> Emitted:
        """What a request has been given."""
        row = self._rows[request]
        count = int(row["count"])
        tokens, times = row["tokens"][:count].tolist(), row["times"][:count].tolist()
        return Emitted(tokens, times, int(row["rank"]), bytes(row["hash"]).decode())

    def end(self, rank: int, request: Request) -> None:
        """Note that a request has ended otherwise than by its last token: aborted, or with an error."""
        if request.finish not in ("abort", "error"):
            return
        row = self._rows[request.spec.request_id]
        row["rank"], row["error"] = rank, (request.error or "").encode()[:_ERROR_BYTES]
        row["finish"] = request.finish.encode()

    def has_ended(self, spec: RequestSpec) -> bool:
        """Whether a request has been given all its tokens, or has ended before."""
        row = self._rows[spec.request_id]
        return int(row["count"]) == spec.max_output or bool(row["finish"])

    def endings(self) -> list[dict[str, Any]]:
        """The requests that have ended, as ranks report theirs (`RankRecord.ending`)."""
        return [self._ending(spec) for spec in self._specs if self.has_ended(spec)]

    def _ending(self, spec: RequestSpec) -> dict[str, Any]:
        row = self._rows[spec.request_id]
        finish, error = bytes(row["finish"]).decode(), bytes(row["error"]).decode(errors="replace")
        facts = {"id": spec.request_id, "error": error or None, "ends": 1}
        return {
            **facts,
            **({"finish": finish} if finish == "abort" else {}),
            **self.of(spec.request_id)._asdict(),
        }
