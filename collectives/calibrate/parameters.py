"""Every number of the libraries and of what they share, as the report lists them."""

from __future__ import annotations

from typing import Any

from collectives.libraries import LIBRARIES, load_library, shared_numbers
from emulator.profile import load_profile


def parameters() -> dict[str, Any]:
    """Return {file: {key: {value, unit, label, source}}}, a library's own and its machine's shared ones."""
    files = {name: load_library(name).numbers for name in LIBRARIES}
    for machine in sorted({machine for machine, _ in LIBRARIES.values()}):
        files[machine] = shared_numbers(load_profile(machine))
    return {
        name: {
            key: {"value": entry.value, "unit": entry.unit, "label": entry.label, "source": entry.source}
            for key, entry in numbers.items()
        }
        for name, numbers in files.items()
    }
