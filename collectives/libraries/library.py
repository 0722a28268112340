"""The numbers of a library: at most three of its own; what libraries share stands in the machine's profile.

Files are as strict as machine profiles: every number has value, unit, source and label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from emulator.errors import UsageError
from emulator.profile import Profile, load_entries, nearest
from emulator.profile_keys import KeySpec

#: Library -> (profile of the machine its numbers were fitted on, whether its rows are pulled or pushed).
LIBRARIES: Final[dict[str, tuple[str, str]]] = {
    "xccl": ("cloudmatrix384", "pull"),
    "cann": ("cloudmatrix384", "push"),
    "deepep-ascend": ("cloudmatrix384", "push"),
    "deepep": ("h800-ib", "push"),
    "deepep-legacy": ("h800-ib", "push"),
}
OWN: Final = ("own.start_us", "own.layout_us", "own.rank_us")
SHARED: Final = ("vector.", "exchange.", "mte.", "ub.line")
"""Beginnings of the profile's keys that are there for libraries."""

_FORMAT: Final = {
    "format.record_bytes": KeySpec("B", 1, 4_096, integer=True),
    "format.scale_bytes": KeySpec("B", 0, 65_536, integer=True),
}
_RING: Final = {
    "ring.chunk_bytes": KeySpec("B", 32, 1 << 30, integer=True),
    "ring.slots": KeySpec("slots", 1, 1 << 20, integer=True),
    "ring.buffers_mb": KeySpec("MB", 0, 100_000),
}


def keys_of(name: str) -> dict[str, KeySpec]:
    """What a library's file must hold: its own three, its formats, and for XCCL the sizes of its buffers."""
    return {key: KeySpec("us", 0, 10_000) for key in OWN} | _FORMAT | (_RING if name == "xccl" else {})


@dataclass(frozen=True)
class Library:
    """One library.

    Attributes:
        name: as in `LIBRARIES`. machine: profile it was fitted on.
        pulls: receivers fetch rows (XCCL); otherwise senders store them.
        numbers: its own three and its formats, by key.
    """

    name: str
    machine: str
    pulls: bool
    numbers: Profile

    def ps(self, key: str) -> int:
        """Return one of its own times, "start", "layout" or "rank", in ps."""
        return self.numbers.ps(f"own.{key}_us")


def load_library(name: str, overrides: Mapping[str, str | float] | None = None) -> Library:
    """Load a library's numbers.

    Args:
        name: key of `LIBRARIES`.
        overrides: key -> number, as for a machine profile.

    Raises:
        UsageError: no such library, or a file that is not as it must be.
    """
    if name not in LIBRARIES:
        hint = nearest(name, LIBRARIES) or f"; libraries are {', '.join(LIBRARIES)}"
        raise UsageError(f"no library {name!r}{hint}")
    machine, way = LIBRARIES[name]
    path = Path(str(resources.files("collectives.libraries"))) / f"{name}.toml"
    return Library(
        name, machine, way == "pull", load_entries(path, keys_of(name), overrides or {}, "library")
    )


def shared_numbers(profile: Profile) -> Profile:
    """The numbers of a machine that are there for its libraries."""
    return Profile(profile.name, {key: entry for key, entry in profile.items() if key.startswith(SHARED)})
