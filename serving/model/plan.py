"""What one step's attention needs, worked out once for all layers: cache slots, rotary rows, tables, masks.

Decodes (one query) with a similar number of key blocks share a batch; a longer segment is cut into tiles of
queries. Keys come in blocks of `KEY_BLOCK` positions. A masked key weighs exactly zero, so padding with
blocks changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from emulator.errors import UsageError
from serving.model.kv_cache import PagedKV, Segment
from serving.model.rope import RotaryTables

__all__ = ["KEY_BLOCK", "QUERY_TILE", "TILE_QUERIES", "AttentionJob", "StepPlan", "make_plan"]

KEY_BLOCK = 64
QUERY_TILE = 8
_LARGE_QUERY_TILE = 32
TILE_QUERIES = (QUERY_TILE, _LARGE_QUERY_TILE)
"""Queries of the tiles a longer segment is cut into."""


@dataclass(frozen=True)
class AttentionJob:
    """`num_sequences` sequences with `num_queries` queries each (padded), over `num_blocks` key blocks each.

    Attributes:
        rows: row of each real query in the step's batch, int64, sequence-major; None if they are all rows in
            order.
        table: pages of the key blocks, int64 [num_sequences · pages per sequence].
        mask: 0 or −inf, float32 [num_sequences, num_blocks − first_masked, num_queries, 1, KEY_BLOCK].
        first_masked: the blocks before it are seen by every query.
    """

    rows: torch.Tensor | slice
    num_rows: int
    num_sequences: int
    num_queries: int
    num_blocks: int
    table: torch.Tensor
    mask: torch.Tensor
    first_masked: int


@dataclass(frozen=True)
class StepPlan:
    """One step of one rank; row order of its batch = order of the segments, then position."""

    kv: PagedKV
    segments: tuple[Segment, ...]
    num_rows: int
    slots: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    last_rows: torch.Tensor
    """Row of the last token of each segment, int64 [segments]: where the next token is predicted."""

    @cached_property
    def jobs(self) -> tuple[AttentionJob, ...]:
        """The batches of `blocks.BlockAttention`."""
        first_rows = [0, *(self.last_rows + 1).tolist()]
        return tuple(_jobs(self.segments, first_rows, self.kv))

    @cached_property
    def _places(self) -> npt.NDArray[np.int64]:
        """Of each segment its first row, length, start and place of its pages, which follow."""
        tables = [self.kv.padded_table(s.sequence, s.start + s.length) for s in self.segments]
        row, place, places = 0, 0, []
        for segment, table in zip(self.segments, tables, strict=True):
            places += [row, segment.length, segment.start, place]
            row, place = row + segment.length, place + len(table)
        return np.array(places + [page for table in tables for page in table], np.int64)

    @cached_property
    def _numbers(self) -> npt.NDArray[np.int64]:
        sizes = [self.num_rows, len(self.segments), self.kv.page_size, self.slots.data_ptr()]
        places = int(self._places.ctypes.data)
        pages = places + 8 * 4 * len(self.segments)
        return np.array([*sizes, places, pages, self.cos.data_ptr(), self.sin.data_ptr()], np.int64)

    @cached_property
    def address(self) -> int:
        """Where the step lies as `native/attention.c` wants it."""
        return int(self._numbers.ctypes.data)


def make_plan(segments: Sequence[Segment], kv: PagedKV, rotary: RotaryTables, max_positions: int) -> StepPlan:
    """Plan a step over `segments`, as returned by `kv.append` (each sequence at most once).

    Raises:
        UsageError: no segment, a sequence twice, or a position beyond the model's context.
    """
    if not segments:
        raise UsageError("a step needs at least one segment")
    if len({segment.sequence for segment in segments}) != len(segments):
        raise UsageError("a sequence occurs twice in one step")
    ends = [segment.start + segment.length for segment in segments]
    if max(ends) > max_positions:
        worst = segments[ends.index(max(ends))]
        raise UsageError(
            f"sequence {worst.sequence!r} reaches {max(ends)} tokens; the context is {max_positions}"
        )
    first_rows = np.cumsum([0] + [segment.length for segment in segments])
    positions = np.concatenate(
        [np.arange(segment.start, segment.start + segment.length) for segment in segments]
    )
    cos, sin = rotary.rows(torch.from_numpy(positions), max(ends) - 1)
    return StepPlan(
        kv=kv,
        segments=tuple(segments),
        num_rows=len(positions),
        slots=torch.from_numpy(np.concatenate([kv.slots(segment) for segment in segments])),
        cos=cos,
        sin=sin,
        last_rows=torch.from_numpy(first_rows[1:] - 1),
    )


def _jobs(segments: Sequence[Segment], first_rows: list[int], kv: PagedKV) -> list[AttentionJob]:
    jobs: list[AttentionJob] = []
    decodes: dict[int, list[tuple[Segment, int]]] = {}
    for segment, first_row in zip(segments, first_rows, strict=False):
        if segment.length == 1:
            decodes.setdefault((segment.start // KEY_BLOCK + 1).bit_length(), []).append((segment, first_row))
        else:
            jobs.extend(_tiles(segment, first_row, kv))
    jobs.extend(_decode_job(group, kv) for group in decodes.values())
    return jobs


def _row_index(rows: list[int]) -> torch.Tensor | slice:
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return torch.tensor(rows)


def _masks(positions: np.ndarray, first: int, num_blocks: int) -> torch.Tensor:
    """−inf on every key after the query itself, from block `first`; positions [sequences, queries]."""
    keys = np.arange(first * KEY_BLOCK, num_blocks * KEY_BLOCK).reshape(
        1, num_blocks - first, 1, 1, KEY_BLOCK
    )
    hidden = keys > positions[:, None, :, None, None]
    return torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0)))


def _decode_job(group: list[tuple[Segment, int]], kv: PagedKV) -> AttentionJob:
    positions = np.array([[segment.start] for segment, _ in group])
    num_blocks = int(positions.max()) // KEY_BLOCK + 1
    first = int(positions.min()) // KEY_BLOCK
    pages = [
        page for segment, _ in group for page in kv.padded_table(segment.sequence, num_blocks * KEY_BLOCK)
    ]
    return AttentionJob(
        rows=_row_index([row for _, row in group]),
        num_rows=len(group),
        num_sequences=len(group),
        num_queries=1,
        num_blocks=num_blocks,
        table=torch.tensor(pages),
        mask=_masks(positions, first, num_blocks),
        first_masked=first,
    )


def _tiles(segment: Segment, first_row: int, kv: PagedKV) -> list[AttentionJob]:
    jobs = []
    done = 0
    while done < segment.length:
        left = segment.length - done
        size = _LARGE_QUERY_TILE if left > 2 * QUERY_TILE else QUERY_TILE
        real = min(size, left)
        start = segment.start + done
        num_blocks = (start + real - 1) // KEY_BLOCK + 1
        first = start // KEY_BLOCK
        jobs.append(
            AttentionJob(
                rows=slice(first_row + done, first_row + done + real),
                num_rows=real,
                num_sequences=1,
                num_queries=size,
                num_blocks=num_blocks,
                table=torch.tensor(kv.padded_table(segment.sequence, num_blocks * KEY_BLOCK)),
                mask=_masks(np.arange(start, start + size)[None], first, num_blocks),
                first_masked=first,
            )
        )
        done += real
    return jobs
