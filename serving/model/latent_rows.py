"""Width of a cache row whose latent is in INT8; apart from `int8`, so that a configuration loads no torch."""

__all__ = ["latent_width"]


def latent_width(rope: int, rank: int) -> int:
    """float32 places of [rotated key, `rope` values | a scale | `rank` codes, 4 in a place]."""
    return rope + 1 + -(-rank // 4)
