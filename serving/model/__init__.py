"""A DeepSeek-V3 model in plain torch; no row depends, in any bit, on the rows it is batched with.

Each name loads its module when it is first asked for: who needs a configuration only does not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.model.balance import balanced_bias, expert_loads, make_balanced_checkpoint
    from serving.model.checkpoint import make_checkpoint
    from serving.model.config import PRESETS, ModelConfig, preset_config
    from serving.model.drift import make_drifting_checkpoint
    from serving.model.kv_cache import PagedKV, Segment
    from serving.model.layers import Layer, combine_in_order
    from serving.model.model import Model, load_model
    from serving.model.plan import StepPlan
    from serving.model.reference import LogitHash, ReferenceRequest, ReferenceResult, generate
    from serving.model.sampling import GREEDY, SamplingParams, choose, greedy, sample
    from serving.model.skew import make_skewed_checkpoint, skewed_bias, skewed_loads

__all__ = [
    "GREEDY",
    "PRESETS",
    "Layer",
    "LogitHash",
    "Model",
    "ModelConfig",
    "PagedKV",
    "ReferenceRequest",
    "ReferenceResult",
    "SamplingParams",
    "Segment",
    "StepPlan",
    "balanced_bias",
    "choose",
    "combine_in_order",
    "expert_loads",
    "generate",
    "greedy",
    "load_model",
    "make_balanced_checkpoint",
    "make_checkpoint",
    "make_drifting_checkpoint",
    "make_skewed_checkpoint",
    "preset_config",
    "sample",
    "skewed_bias",
    "skewed_loads",
]

_NAMES = {
    "balance": ("balanced_bias", "expert_loads", "make_balanced_checkpoint"),
    "checkpoint": ("make_checkpoint",),
    "config": ("PRESETS", "ModelConfig", "preset_config"),
    "drift": ("make_drifting_checkpoint",),
    "kv_cache": ("PagedKV", "Segment"),
    "layers": ("Layer", "combine_in_order"),
    "model": ("Model", "load_model"),
    "plan": ("StepPlan",),
    "reference": ("LogitHash", "ReferenceRequest", "ReferenceResult", "generate"),
    "sampling": ("GREEDY", "SamplingParams", "choose", "greedy", "sample"),
    "skew": ("make_skewed_checkpoint", "skewed_bias", "skewed_loads"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # else any name at all would pass the type check

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
