"""What a token leaves in the cache: two objects, and their bytes.

    MLA      one compressed latent and one rotated key a layer, shared by all heads
    MHA/GQA  a key and a value for each KV head a layer (MHA: as many KV heads as heads)

Source: DeepSeek-V2 (2024), section 2.1; GQA: Ainslie et al. 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from emulator.errors import UsageError

__all__ = ["GroupedFormat", "KVFormat", "LatentFormat"]


class KVFormat(Protocol):
    """Bytes of a cache."""

    @property
    def bytes_per_token(self) -> int:
        """One token in all layers."""


@dataclass(frozen=True)
class LatentFormat:
    """MLA. `layers` times (latent · latent_bytes + rope · rope_bytes + scale_bytes) a token.

    latent_bytes is 2 for 16 bit and 1 for INT8; scale_bytes is what an INT8 latent's scale takes where it is
    kept beside it.
    """

    layers: int
    latent: int
    rope: int
    latent_bytes: int = 2
    rope_bytes: int = 2
    scale_bytes: int = 0

    def __post_init__(self) -> None:
        _check_positive(self, "layers", "latent", "latent_bytes", "rope_bytes")

    @property
    def bytes_per_token(self) -> int:
        per_layer = self.latent * self.latent_bytes + self.rope * self.rope_bytes + self.scale_bytes
        return self.layers * per_layer


@dataclass(frozen=True)
class GroupedFormat:
    """MHA or GQA. `layers` times 2 · kv_heads · head · element_bytes a token."""

    layers: int
    kv_heads: int
    head: int
    element_bytes: int = 2

    def __post_init__(self) -> None:
        _check_positive(self, "layers", "kv_heads", "head", "element_bytes")

    @property
    def bytes_per_token(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head * self.element_bytes


def _check_positive(values: object, *names: str) -> None:
    for name in names:
        if getattr(values, name) < 1:
            raise UsageError(f"KV format: {name} must be at least 1, got {getattr(values, name)}")
