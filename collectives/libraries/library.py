"""The numbers of a library: at most three of its own over those of its machine, which libraries share.

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

_LIBRARY_KEYS: Final = {
    **{key: KeySpec("us", 0, 10_000) for key in OWN},
    "format.record_bytes": KeySpec("B", 1, 4_096, integer=True),
    "format.scale_bytes": KeySpec("B", 0, 65_536, integer=True),
}
_SHARED_KEYS: Final = {
    "vector.quantise_gb_per_s": KeySpec("GB/s", 1, 1_000_000),
    "vector.copy_gb_per_s": KeySpec("GB/s", 1, 1_000_000),
    "vector.copy_overlap": KeySpec("ratio", 0, 1),
    "round.tokens": KeySpec("elements", 1, 1_000_000, integer=True),
    "in_situ.us": KeySpec("us", 0, 100_000),
}


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


@dataclass(frozen=True)
class Shared:
    """What all libraries of one machine share beside its profile: the vector units' speed and the like."""

    machine: str
    numbers: Profile


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
    numbers = load_entries(_file(name), _LIBRARY_KEYS, overrides or {}, "library")
    return Library(name, machine, way == "pull", numbers)


def load_shared(machine: str, overrides: Mapping[str, str | float] | None = None) -> Shared:
    """Load what the libraries of a machine share; a machine without such a file takes cloudmatrix384's."""
    path = _file(f"on-{machine}")
    if not path.exists():
        path = _file("on-cloudmatrix384")
    return Shared(machine, load_entries(path, _SHARED_KEYS, overrides or {}, "library"))


def _file(name: str) -> Path:
    return Path(str(resources.files("collectives.libraries"))) / f"{name}.toml"
