"""How a transfer is cut into chunks, and the two-stage pipeline that moves them. Pure.

A wave is one chunk of each core. Each core has two halves of its unified buffer: while one half is being
written out, the other is being read in. So waves take max(read, write) each, and one fill once:

    read    |0 |1 |2 |3 |
    write      |0   |1   |2   |3   |      end = read(0) + 4 x write, when writing is the slower

A record {eventID, chunkID, tailPtr} follows each wave (`control="chunk"`), or each ring-full of waves
(`control="transfer"`: one a transfer, if that fits into the ring).

Source: arXiv 2508.02520v6 section 3.1; whether tail and acknowledgement are stored for each chunk is not
said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from collectives.xccl.numbers import Numbers
from emulator.npu import ceil_ps

CONTROLS = ("chunk", "transfer")
_ALIGN = 32


class Wave(NamedTuple):
    """One chunk of each core.

    nbytes: of all of them. largest: of the largest. chunks: how many, which is how many slots they take.
    records: core pairs that are told afterwards; 0: a later wave tells.
    """

    nbytes: int
    largest: int
    chunks: int
    records: int


def cut(nbytes: int, cores: int, chunk_bytes: int, slots: int, control: str) -> list[Wave]:
    """Cut a transfer into waves.

    Args:
        nbytes: charged bytes, at least 0; none still takes one chunk, which tells.
        cores: AIV cores on either side.
        chunk_bytes: most bytes of a chunk; a small transfer has smaller ones, so that all cores work.
        slots: of the ring. control: "chunk" or "transfer".
    """
    share = -(-max(nbytes, 1) // cores)
    chunk = min(chunk_bytes, -(-share // _ALIGN) * _ALIGN)
    total = max(1, -(-nbytes // chunk))
    width, waves, filled = min(cores, slots), [], 0
    for first in range(0, total, width):
        chunks = min(width, total - first)
        low, high = first * chunk, min(nbytes, (first + chunks) * chunk)
        last = first + chunks == total
        next_chunks = min(width, total - first - chunks)
        filled += chunks
        tells = control == "chunk" or last or filled + next_chunks > slots
        records = (chunks if control == "chunk" else min(width, total)) if tells else 0
        filled = 0 if tells else filled
        waves.append(Wave(high - low, min(chunk, high - low), chunks, records))
    return waves


@dataclass
class TwoStage:
    """Two halves of the unified buffers of some cores: when they are free.

    read_end, write_end: of the latest wave. write_before: of the one before it.
    """

    read_end: int
    write_end: int
    write_before: int

    @classmethod
    def at(cls, now_ps: int) -> TwoStage:
        """Idle from now on."""
        return cls(now_ps, now_ps, now_ps)

    def advance(self, ready_ps: int, read_ps: int, write_ps: int, gate_ps: int = 0) -> tuple[int, int]:
        """Move one wave through; returns when its write began and ended.

        Args:
            ready_ps: not read before. gate_ps: not written before (no room at the other end).
        """
        read_end = max(self.read_end, self.write_before, ready_ps) + read_ps
        start = max(read_end, self.write_end, gate_ps)
        self.read_end, self.write_before, self.write_end = read_end, self.write_end, start + write_ps
        return start, self.write_end


def local_ps(numbers: Numbers, wave: Wave) -> int:
    """One stage of a wave on a die's own memory."""
    return max(ceil_ps(wave.largest, numbers.core_per_s), ceil_ps(wave.nbytes, numbers.local_per_s))


def store_ps(numbers: Numbers, cls: int, wave: Wave) -> int:
    """A wave's stores over a link of class `cls`."""
    return max(ceil_ps(wave.largest, numbers.core_per_s), numbers.port_ps(cls, wave.nbytes))


def cut_blocks(nbytes: int, cores: int, chunk_bytes: int, slots: int) -> list[Wave]:
    """Cut a transfer into blocks of a DMA engine: a third of the ring each, one record after each.

    Args:
        cores: AIV cores that copy a block out of the ring; `largest` is the share of one.
    """
    block = max(1, slots // 3) * chunk_bytes
    waves = []
    for low in range(0, max(1, nbytes), block):
        size = min(nbytes - low, block)
        waves.append(Wave(size, -(-size // cores), max(1, -(-size // chunk_bytes)), 1))
    return waves
