"""The shapes of a priced model, read from a file as strict as a machine profile."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from emulator.errors import UsageError
from emulator.profile import Profile, load_entries, nearest
from emulator.profile_keys import KeySpec

#: Names that share another model's file. DeepSeek-V3 has the shapes of R1.
ALIASES: Final = {"deepseek-v3": "deepseek-r1"}

_COUNT: Final = {
    "layers": KeySpec("layers", 1, 1_000, integer=True),
    "dense_layers": KeySpec("layers", 0, 1_000, integer=True),
    "mtp_layers": KeySpec("layers", 0, 16, integer=True),
    "heads": KeySpec("heads", 1, 4_096, integer=True),
    "kv_heads": KeySpec("heads", 0, 4_096, integer=True),
    "routed_experts": KeySpec("experts", 1, 65_536, integer=True),
    "shared_experts": KeySpec("experts", 0, 64, integer=True),
    "top_k": KeySpec("experts", 1, 256, integer=True),
    "groups": KeySpec("groups", 1, 4_096, integer=True),
    "topk_groups": KeySpec("groups", 1, 4_096, integer=True),
    "q_lora": KeySpec("elements", 0, 1_000_000, integer=True),
}
_ELEMENTS: Final = (
    "hidden", "qk_rope", "v_head", "dense_intermediate", "expert_intermediate", "vocab",
)  # fmt: skip
_LATENT: Final = ("kv_lora", "qk_nope")

MODEL_KEYS: Final[dict[str, KeySpec]] = {
    **{f"shape.{name}": spec for name, spec in _COUNT.items()},
    **{f"shape.{name}": KeySpec("elements", 1, 10_000_000, integer=True) for name in _ELEMENTS},
    **{f"shape.{name}": KeySpec("elements", 0, 10_000_000, integer=True) for name in _LATENT},
    "cost.kv_latent_bytes": KeySpec("B", 1, 8, integer=True),
    "cost.kv_rope_bytes": KeySpec("B", 1, 8, integer=True),
    "cost.mla_int8_share": KeySpec("ratio", 0, 1),
    "cost.small_kernels": KeySpec("kernels", 0, 1_000, integer=True),
    "cost.hidden_passes": KeySpec("ratio", 0, 1_000, integer=True),
    "cost.step_bubble_us": KeySpec("us", 0, 10_000_000),
    "estimate.attention_imbalance": KeySpec("ratio", 1, 1_000),
    "estimate.expert_imbalance": KeySpec("ratio", 1, 1_000),
    "decode.acceptance": KeySpec("ratio", 0, 1),
    "decode.router_skew": KeySpec("ratio", 0, 1),
    "jitter.launch_us": KeySpec("us", 0, 1_000_000),
    "jitter.attention_noise": KeySpec("ratio", 0, 0.25),
    "jitter.expert_noise": KeySpec("ratio", 0, 0.25),
    "jitter.stall_probability": KeySpec("ratio", 0, 1),
    "jitter.stall_floor_us": KeySpec("us", 0, 1_000_000),
    "jitter.stall_mean_us": KeySpec("us", 0, 1_000_000),
}


@dataclass(frozen=True)
class ModelShape:
    """A MoE architecture: counts, and widths in elements; `q_lora` 0 is no compression.

    kv_heads: 0 is latent attention; more is grouped-query attention, whose heads are `qk_rope` wide and which
    has no latent parts.
    """

    layers: int
    dense_layers: int
    mtp_layers: int
    hidden: int
    heads: int
    kv_heads: int
    q_lora: int
    kv_lora: int
    qk_nope: int
    qk_rope: int
    v_head: int
    dense_intermediate: int
    expert_intermediate: int
    routed_experts: int
    shared_experts: int
    top_k: int
    groups: int
    topk_groups: int
    vocab: int

    @property
    def moe_layers(self) -> int:
        """Main-model layers with routed experts; the MTP layer is not among them."""
        return self.layers - self.dense_layers

    @property
    def routing(self) -> dict[str, int]:
        """What decides who sends how many rows to whom."""
        return {
            "routed experts": self.routed_experts,
            "shared experts": self.shared_experts,
            "top-k": self.top_k,
            "groups": self.groups,
            "groups kept": self.topk_groups,
        }

    @classmethod
    def from_entries(cls, entries: Profile) -> "ModelShape":
        """Return the shape in `entries`. Raises UsageError where counts contradict each other."""
        names = [*_COUNT, *_ELEMENTS, *_LATENT]
        shape = cls(**{name: entries.integer(f"shape.{name}") for name in names})
        if shape.dense_layers > shape.layers:
            raise UsageError(f"priced model {entries.name}: more dense layers than layers")
        if shape.routed_experts % shape.groups or shape.topk_groups > shape.groups:
            raise UsageError(
                f"priced model {entries.name}: experts, groups and kept groups do not fit together"
            )
        if shape.kv_heads and (shape.kv_lora or shape.qk_nope or shape.heads % shape.kv_heads):
            raise UsageError(
                f"priced model {entries.name}: {shape.kv_heads} KV heads with a latent part, or with "
                f"{shape.heads} heads that they do not divide"
            )
        if not shape.kv_heads and not (shape.kv_lora and shape.qk_nope):
            raise UsageError(f"priced model {entries.name}: neither KV heads nor a latent part")
        if shape.top_k > shape.topk_groups * (shape.routed_experts // shape.groups):
            raise UsageError(f"priced model {entries.name}: top-k exceeds the experts of the kept groups")
        return shape


def priced_path(name: str) -> Path:
    """Return the file of a priced model: a known name, an alias, or a path. Raises UsageError."""
    if name.endswith(".toml") or "/" in name:
        return Path(name)
    folder = Path(str(resources.files("serving"))) / "priced"
    known = sorted(path.stem for path in folder.glob("*.toml"))
    stem = ALIASES.get(name, name)
    if stem not in known:
        hint = nearest(name, [*known, *ALIASES])
        raise UsageError(f"no priced model {name!r}{hint}")
    return folder / f"{stem}.toml"


def load_model_entries(name: str, overrides: Mapping[str, str | float] | None = None) -> Profile:
    """Return the labelled numbers of a priced model, `overrides` applied. Raises UsageError."""
    return load_entries(priced_path(name), MODEL_KEYS, overrides or {}, "priced model")
