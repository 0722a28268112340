"""A DeepSeek-V3 model in plain torch; no row depends, in any bit, on the rows it is batched with."""

from serving.model.balance import balanced_bias, expert_loads, make_balanced_checkpoint
from serving.model.checkpoint import make_checkpoint
from serving.model.config import PRESETS, ModelConfig, preset_config
from serving.model.kv_cache import PagedKV, Segment
from serving.model.layers import Layer, combine_in_order
from serving.model.model import Model, load_model
from serving.model.plan import StepPlan
from serving.model.reference import LogitHash, ReferenceRequest, ReferenceResult, generate
from serving.model.sampling import SamplingParams, greedy, sample

__all__ = [
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
    "combine_in_order",
    "expert_loads",
    "generate",
    "greedy",
    "load_model",
    "make_balanced_checkpoint",
    "make_checkpoint",
    "preset_config",
    "sample",
]
