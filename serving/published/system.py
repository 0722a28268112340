"""The published systems: what each is charged, as models at the shares of the cores its streams have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from collectives.libraries import Library, load_library
from emulator.errors import UsageError
from emulator.profile import Profile, exact, load_entries, load_profile, nearest
from emulator.profile_keys import KeySpec
from serving.pricing import PricedModel

MACHINE: Final = "cloudmatrix384"
MODEL: Final = "deepseek-r1"
SYSTEMS: Final = {"xdeepserve": "xccl", "cloudmatrix-infer": "cann"}
"""System -> library of its exchanges."""
_CORES: Final = ("attention_cores", "attention_vector_cores", "moe_cores", "moe_vector_cores")
KEYS: Final[dict[str, KeySpec]] = {
    "system.acceptance": KeySpec("ratio", 0, 1),
    "system.bubble_us": KeySpec("us", 0, 10_000_000),
    **{f"system.{name}": KeySpec("cores", 1, 10_000, integer=True) for name in _CORES},
    "system.kv_latent_bytes": KeySpec("B", 1, 8, integer=True),
    "system.mla_int8_share": KeySpec("ratio", 0, 1),
    "system.small_kernels": KeySpec("kernels", 0, 1_000, integer=True),
    "system.expert_imbalance": KeySpec("ratio", 1, 1_000),
    "system.prefill_rate": KeySpec("ratio", 0.01, 1),
}
"""What the file of a system must hold."""
_OF_THE_MODEL: Final = ("kv_latent_bytes", "mla_int8_share", "small_kernels")
_VECTOR: Final = "vector.quantise_gb_per_s"
_RATE: Final = ".compute_efficiency"


@dataclass(frozen=True)
class System:
    """One published system.

    Attributes:
        entries: its own numbers; None where the priced model's file is that of this system (xDeepServe).
        whole: prices of a whole die. attention, moe: of decode's two streams. prefill: of a die in prefill.
    """

    name: str
    library: Library
    entries: Profile | None
    whole: PricedModel
    attention: PricedModel
    moe: PricedModel
    prefill: PricedModel

    @property
    def acceptance(self) -> float:
        """Of the one drafted token."""
        if self.entries is not None:
            return float(self.entries.value("system.acceptance"))
        return float(self.whole.entries.value("decode.acceptance"))

    @property
    def expert_imbalance(self) -> float:
        """Rows of the busiest die over the mean."""
        if self.entries is not None:
            return float(self.entries.value("system.expert_imbalance"))
        return float(self.whole.entries.value("estimate.expert_imbalance"))

    @property
    def bubble_ps(self) -> int:
        """Between two iterations."""
        return self.whole.step_overhead_ps if self.entries is None else self.entries.ps("system.bubble_us")


@cache
def load_system(name: str) -> System:
    """Load a system by name. Raises UsageError: there is none of this name."""
    if name not in SYSTEMS:
        raise UsageError(
            f"no published system {name!r}{nearest(name, SYSTEMS)}; there are {', '.join(SYSTEMS)}"
        )
    library = load_library(SYSTEMS[name])
    if name == "xdeepserve":
        whole = PricedModel.load(MODEL, load_profile(MACHINE, {}))
        return System(name, library, None, whole, whole, whole, whole)
    path = Path(str(resources.files("serving.published"))) / f"{name}.toml"
    entries = load_entries(path, KEYS, {}, "published system")
    rate = float(exact(entries.value("system.prefill_rate")))
    return System(
        name, library, entries,
        _at(entries, 1, 1), _stream(entries, "attention"), _stream(entries, "moe"), _at(entries, rate, 1),
    )  # fmt: skip


def streams_at(system: System, attention_cores: int) -> System:
    """The system with so many cube cores for decode's attention stream, and the rest for the other one; the
    vector cores go with them. One without streams of its own stays as it is."""
    if system.entries is None:
        return system
    attention, moe = _streams_at(system.name, attention_cores)
    return replace(system, attention=attention, moe=moe)


@cache
def _streams_at(name: str, attention_cores: int) -> tuple[PricedModel, PricedModel]:
    entries = load_system(name).entries
    assert entries is not None
    share = attention_cores / load_profile(MACHINE, {}).integer("die.aic_cores")
    return _at(entries, share, share), _at(entries, 1 - share, 1 - share)


def _stream(entries: Profile, name: str) -> PricedModel:
    machine = load_profile(MACHINE, {})
    cube = entries.integer(f"system.{name}_cores") / machine.integer("die.aic_cores")
    vector = entries.integer(f"system.{name}_vector_cores") / machine.integer("die.aiv_cores")
    return _at(entries, cube, vector)


def _at(entries: Profile, cube: float, vector: float) -> PricedModel:
    """The priced model on a die whose kernels compute at `cube` of their rates, and quantise at `vector`."""
    model = {f"cost.{name}": entries.value(f"system.{name}") for name in _OF_THE_MODEL}
    machine = load_profile(MACHINE, {})
    keys = [key for key, _ in machine.items() if key.startswith("kernels.") and key.endswith(_RATE)]
    settings: dict[str, str | float] = {key: float(machine.value(key)) * cube for key in keys}
    settings[_VECTOR] = float(machine.value(_VECTOR)) * vector
    return PricedModel.load(MODEL, load_profile(MACHINE, settings), model)
