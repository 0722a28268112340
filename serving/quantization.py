"""What a replay says of its quantisation: bytes a token keeps and a row moves, and how far logits are off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emulator.rows import HEADER_BYTES, RowFormat
from serving.model.config import ModelConfig

__all__ = ["quantization_facts"]

_FLOAT = 4
ERROR_BOUND = 0.1
"""See `serving.model.int8_error.BOUND` (equal, tested; that module needs torch)."""


def quantization_facts(
    config: ModelConfig, slots: int, answers: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    """Functional bytes, and errors over the answers of the reference if there are any.

    Args:
        config: of the model, with its quantization.
        slots: physical expert slots of a rank.
    """
    hidden = config.hidden_size
    plain = config.model_copy(update={"quantization": None})
    records = {"dispatch": RowFormat(hidden, slots, True), "combine": RowFormat(hidden, slots)}
    return {
        "mode": config.quantization,
        "kv_bytes_per_token": _FLOAT * config.kv_layers * config.kv_width,
        "kv_bytes_per_token_float32": _FLOAT * config.kv_layers * plain.kv_width,
        "row_bytes": {name: record.record_bytes - HEADER_BYTES for name, record in records.items()},
        "header_bytes": HEADER_BYTES,
        "logit_error": None if answers is None else _pooled([a["logit_error"] for a in answers]),
    }


def _pooled(errors: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Root mean squares over all positions, the largest of maxima, the mean share."""
    positions = sum(error["positions"] for error in errors)

    def mean(name: str, power: int) -> float:
        total = sum(error["positions"] * error[name] ** power for error in errors)
        return float((total / max(1, positions)) ** (1 / power))

    return {
        "positions": positions,
        "relative_rms": mean("relative_rms", 2),
        "relative_max": max((error["relative_max"] for error in errors), default=0.0),
        "own_relative_rms": mean("own_relative_rms", 2),
        "rows_rerouted": mean("rows_rerouted", 1),
        "bound": ERROR_BOUND,
    }
