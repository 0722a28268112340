"""Where XCCL's point-to-point protocol keeps things in a rank, and who may talk to whom. Pure.

    app        arrays of the program, anywhere
    metadata   [rings][2][cores] fields of 32 B: a tail that a sender stores, an acknowledgement that a
               receiver stores; one field for each pair of AIV cores and direction
    managed    [rings] ring buffers of `slots` slots, one ring for each rank that may send to me

384 chips x 2 dies x 48 cores x 2 directions = 73,728 fields, 2.25 MiB (the paper reserves 4 MB).

Source: arXiv 2508.02520v6 section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emulator.errors import UsageError

FIELD_BYTES = 32
DIRECTIONS = 2
TAIL, ACK = 0, 1
FIELD_DTYPE = np.dtype([("event", "i8"), ("chunk", "u4"), ("tail", "u4"), ("charged", "u8"), ("real", "u8")])
"""One metadata record. The paper names eventID, chunkID and tailPtr (slots ever filled in this ring, modulo
2^32); the rest of the 32 B says how large the transfer is (`charged` with the number of cores in its top
byte), so that two sides that disagree are found out."""
CORES_SHIFT = 56
REFUSED = 1 << 40
"""Added to a sender's count of acknowledgements when the receiver refuses the transfer."""
assert FIELD_DTYPE.itemsize == FIELD_BYTES


def metadata_fields(num_dies: int, cores: int) -> int:
    """Fields of one die's metadata area in a machine of `num_dies` dies."""
    return num_dies * cores * DIRECTIONS


@dataclass(frozen=True)
class Pairs:
    """Which rank may send to which, and where each finds the other's ring and words.

    Args:
        num_ranks: of the machine.
        pairs: ordered (source, destination); None: every rank to every rank, itself included.
    """

    num_ranks: int
    pairs: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def of(cls, num_ranks: int, pairs: Sequence[tuple[int, int]] | None) -> Pairs:
        """Check and sort. Raises: UsageError, a rank that does not exist."""
        if pairs is None:
            return cls(num_ranks)
        for pair in pairs:
            if len(pair) != 2 or not all(0 <= rank < num_ranks for rank in pair):
                raise UsageError(f"xccl: pair {pair!r} names no two ranks of 0 to {num_ranks - 1}")
        return cls(num_ranks, tuple(sorted({(int(s), int(d)) for s, d in pairs})))

    def sources(self, rank: int) -> list[int]:
        """Who may send to `rank`; a source's place in the list is its ring there."""
        if self.pairs is None:
            return list(range(self.num_ranks))
        return [s for s, d in self.pairs if d == rank]

    def targets(self, rank: int) -> list[int]:
        """Whom `rank` may send to; a target's place in the list is its word and acknowledgement field."""
        if self.pairs is None:
            return list(range(self.num_ranks))
        return [d for s, d in self.pairs if s == rank]

    @property
    def words(self) -> str:
        """The pairs in a few words, other ones for other pairs."""
        if self.pairs is None:
            return "all pairs"
        some = " ".join(f"{s}>{d}" for s, d in self.pairs[:6])
        return f"{len(self.pairs)} pairs {some}" + (f" … {hash(self.pairs):x}" if len(self.pairs) > 6 else "")

    @property
    def most(self) -> int:
        """Most rings or targets any rank has."""
        if self.pairs is None:
            return self.num_ranks
        ends = np.array(self.pairs, np.int64).reshape(-1, 2)
        counts = [np.bincount(ends[:, side], minlength=1).max(initial=0) for side in (0, 1)]
        return int(max(counts))


@dataclass(frozen=True)
class Geometry:
    """Sizes of the areas of one rank.

    rings: senders a rank may have. cores: AIV cores of a die. slots: chunks a ring holds. chunk_bytes:
    charged bytes of a chunk. slot_bytes: real bytes kept for one.
    """

    rings: int
    cores: int
    slots: int
    chunk_bytes: int
    slot_bytes: int

    @property
    def metadata_bytes(self) -> int:
        """Bytes of all fields of all rings."""
        return self.rings * self.cores * DIRECTIONS * FIELD_BYTES

    @property
    def ring_bytes(self) -> int:
        """Bytes of one ring's slots."""
        return self.slots * self.slot_bytes

    @property
    def nbytes(self) -> int:
        """All of both areas, metadata first."""
        return self.metadata_bytes + self.rings * self.ring_bytes

    def field(self, ring: int, direction: int) -> int:
        """Offset of the field of core 0; those of the other cores follow, one direction after the other."""
        return ((ring * DIRECTIONS + direction) * self.cores) * FIELD_BYTES

    def slot(self, ring: int, tail: int) -> int:
        """Offset of the slot that the tail pointer names."""
        return self.metadata_bytes + ring * self.ring_bytes + tail % self.slots * self.slot_bytes

    def pieces(self, ring: int, tail: int, slots: int, real: int) -> list[tuple[int, int]]:
        """(offset, bytes) of `real` bytes that begin at the tail pointer and may use `slots` slots; two where
        they pass the ring's end."""
        assert real <= slots * self.slot_bytes and slots <= self.slots
        first = min(real, (self.slots - tail % self.slots) * self.slot_bytes)
        start = self.slot(ring, tail)
        if first == real:
            return [(start, real)]
        return [(start, first), (self.slot(ring, 0), real - first)]
