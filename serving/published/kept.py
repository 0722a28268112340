"""Measured cases in a folder, one file each: a run that was ended goes on from them.

A file holds for the numbers that were put in; where one of them has changed it is not taken.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from emulator.errors import UsageError
from serving.published.cases import Case
from serving.published.inputs import inputs


class Kept:
    """A folder of measured cases; made if it is not there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--keep {folder}: cannot be made a folder: {error.strerror}") from None

    def read(self, case: Case) -> dict[str, Any] | None:
        """What was found; None where it has not been measured with these numbers."""
        try:
            told = json.loads(self._file(case).read_text())
        except (FileNotFoundError, ValueError):
            return None
        found: dict[str, Any] | None = told["found"] if told["inputs"] == digest(case) else None
        return found

    def write(self, case: Case, found: dict[str, Any]) -> None:
        """Keep what was found: whole, or not at all."""
        part = self._file(case).with_suffix(".part")
        part.write_text(json.dumps({"case": case.name, "inputs": digest(case), "found": found}))
        part.replace(self._file(case))

    def _file(self, case: Case) -> Path:
        return self._folder / f"{case.name.replace(':', '_')}.json"


def digest(case: Case) -> str:
    """Of all that a case's measurement depends on but the program."""
    told = [
        case.name,
        case.passes,
        case.attention_cores,
        [(i["name"], str(i["value"])) for i in inputs([case])],
    ]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
