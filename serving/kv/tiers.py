"""What moving blocks between HBM and the host's memory costs: one path or the other, in picoseconds.

    ub     the die loads and stores host memory itself
    vpc    through the node's link to the outside, over kernel TCP (the die's share of it)

A step's loads go together: one latency, then their bytes at the path's rate. Stores leave behind the
computation and are not waited for; what they take is counted, not charged.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from emulator.errors import UsageError
from emulator.npu import ceil_ps
from emulator.profile import PS_PER_S, Profile
from serving.kv.cache import Move, Transfer

__all__ = ["PATHS", "TierPrices", "check_path", "read_prices", "unsaved_share"]

PATHS = ("ub", "vpc")
_FILE = Path(__file__).parent / "tiers.toml"
_GB = 10**9


@dataclass(frozen=True)
class TierPrices:
    """Prices of one path. Rates in B/s, latency in ps; bytes_per_token of the priced model's KV.

    copies: dies that each load the same tokens, because each computes a part of their heads.
    """

    path: str
    latency_ps: int
    load_bytes_per_s: int
    store_bytes_per_s: int
    bytes_per_token: int
    copies: int = 1

    def load_bytes(self, transfers: Sequence[Transfer]) -> int:
        """Bytes that a die loads for these."""
        return self._bytes(transfers, Move.LOAD) * self.copies

    def store_bytes(self, transfers: Sequence[Transfer]) -> int:
        return self._bytes(transfers, Move.STORE)

    def load_ps(self, transfers: Sequence[Transfer]) -> int:
        """How long a step waits for its loads."""
        moved = self.load_bytes(transfers)
        return self.latency_ps + ceil_ps(moved, self.load_bytes_per_s) if moved else 0

    def store_ps(self, transfers: Sequence[Transfer]) -> int:
        """How long the path is busy with a step's stores."""
        moved = self.store_bytes(transfers)
        return self.latency_ps + ceil_ps(moved, self.store_bytes_per_s) if moved else 0

    def _bytes(self, transfers: Sequence[Transfer], move: Move) -> int:
        return sum(t.charge for t in transfers if t.move is move) * self.bytes_per_token


def check_path(path: str) -> None:
    """Raise UsageError unless there is such a path."""
    if path not in PATHS:
        raise UsageError(f"--kv-pool-path {path!r} is not known; choose {' or '.join(PATHS)}")


def read_prices(path: str, profile: Profile, bytes_per_token: int) -> TierPrices:
    """Prices of a path on a machine.

    Raises:
        UsageError: an unknown path, or a missing number.
    """
    check_path(path)
    copies = int(_number("reuse", "prefill_tp"))
    if path == "vpc":
        rate = profile.per_s("vpc.gb_per_s")
        return TierPrices(path, profile.ps("vpc.latency_us"), rate, rate, bytes_per_token, copies)
    load, store = (int(_number("ub", key) * _GB) for key in ("load_gb_per_s", "store_gb_per_s"))
    latency_ps = round(_number("ub", "latency_us") * PS_PER_S / 10**6)
    return TierPrices(path, latency_ps, load, store, bytes_per_token, copies)


def unsaved_share() -> Fraction:
    """The share of a cached token's prefill that is spent all the same."""
    return Fraction(str(_number("reuse", "unsaved_share")))


def _number(section: str, key: str) -> float:
    try:
        return float(tomllib.loads(_FILE.read_text())[section][key]["value"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{_FILE.name}: {section}.{key} is needed: {error!r}") from None
