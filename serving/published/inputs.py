"""Every number that is put in: name, value, unit, label, source. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from emulator.profile import Profile
from serving.published.cases import PUBLISHED, Case
from serving.published.system import SYSTEMS, load_system

_MACHINE: Final = ("kernels.", "vector.", "exchange.", "die.", "ub.", "engine.call")
_MODEL: Final = ("shape.", "cost.", "estimate.", "decode.acceptance", "jitter.")


def inputs(chosen: Sequence[Case] = PUBLISHED) -> list[dict[str, Any]]:
    """The cases' own numbers, the systems', and those of model, libraries and machine, each once."""
    made = [_of_case(case) for case in chosen]
    systems = [load_system(name) for name in SYSTEMS]
    for system in systems:
        if system.entries is not None:
            made += _entries(system.entries, ("system.",), f"{system.name}: ")
        made += _entries(system.library.numbers, ("own.", "format."), f"{system.library.name}: ")
    first = systems[0].whole
    return made + _entries(first.entries, _MODEL) + _entries(first.profile, _MACHINE)


def _of_case(case: Case) -> dict[str, Any]:
    what = "tokens a die" if case.phase == "prefill" else "sequences a die"
    source = "the published case" if case in PUBLISHED else "asked for"
    return _one(
        f"case {case.name}", case.batch, what, "published" if case in PUBLISHED else "assumed", source
    )


def _entries(entries: Profile, sections: tuple[str, ...], called: str = "") -> list[dict[str, Any]]:
    return [
        _one(called + key, e.value, e.unit, e.label, e.source)
        for key, e in entries.items()
        if key.startswith(sections)
    ]


def _one(name: str, value: Any, unit: str, label: str, source: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "label": label, "source": source}
