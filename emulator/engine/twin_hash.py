"""The running 128-bit hash of a port's reservations: two polynomials modulo 2**64 of mixed records.

Polynomials, because NumPy can then fold a whole block of records at once (`fold_all`).
"""

from typing import Any

import numpy as np

from emulator.engine.config import wrap

MASK = (1 << 64) - 1
FIELD_PRIMES = (
    0x9E3779B97F4A7C15,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
    0xE7037ED1A0B428DB,
)
CHAIN_PRIMES = (0x5851F42D4C957F2D, 0x2545F4914F6CDD1D)
GOLDEN = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def fold(h: tuple[int, int], *fields: int) -> tuple[int, int]:
    """Add a record of six numbers to a running 128-bit hash (two polynomials modulo 2**64)."""
    v = sum(a * k for a, k in zip(fields, FIELD_PRIMES, strict=True)) & MASK
    return (
        wrap((h[0] * CHAIN_PRIMES[0] + mix(v)) & MASK),
        wrap((h[1] * CHAIN_PRIMES[1] + mix((v + GOLDEN) & MASK)) & MASK),
    )


def fold_all(h: tuple[int, int], fields: tuple[Any, ...]) -> tuple[int, int]:
    """`fold` over a block of records, the six fields as arrays."""
    v = np.zeros(len(fields[0]), dtype=np.uint64)
    for a, k in zip(fields, FIELD_PRIMES, strict=True):
        v += a.astype(np.uint64) * np.uint64(k)
    out = []
    for start, prime, shift in zip(h, CHAIN_PRIMES, (0, GOLDEN), strict=True):
        power = np.full(len(v) + 1, prime, dtype=np.uint64)
        power[0] = 1
        power = np.cumprod(power, dtype=np.uint64)
        mixed = mix_all(v + np.uint64(shift))
        total = int((mixed * power[:-1][::-1]).sum(dtype=np.uint64))
        out.append(wrap((start * int(power[-1]) + total) & MASK))
    return out[0], out[1]


def mix_all(z: Any) -> Any:
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)
