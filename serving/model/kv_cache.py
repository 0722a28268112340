"""A paged latent KV cache: per token and layer one compressed row, whatever the number of heads.

A row is [rotated key (qk_rope_head_dim) | compressed kv (kv_lora_rank) | 1]. The constant 1 makes the softmax
denominator fall out of the same product that sums the values. Page 0 is never given away: it stands in
wherever a block table is padded, and its zeros are finite, so a masked key adds exactly nothing.
"""

import contextlib
import math
import mmap
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from emulator.errors import InternalError, UsageError
from serving.kv.cache import Move, Transfer
from serving.kv.lender import Lender
from serving.model.config import ModelConfig

__all__ = ["PagedKV", "Segment", "row_width"]

_PADDING_PAGE = 0
_GARBAGE = 7.0


def row_width(config: ModelConfig) -> int:
    """Floats in one cached row of one layer."""
    return config.kv_width + 1


@dataclass(frozen=True)
class Segment:
    """`length` consecutive new tokens of one sequence, the first at position `start`."""

    sequence: Hashable
    start: int
    length: int


def _untouched_zeros(shape: tuple[int, ...]) -> torch.Tensor:
    """Zeros, float32, that take memory page by page when written: hundreds of ranks share a host.

    (torch writes its zeros at once; numpy asks for huge pages, 2 MB for the first byte of each layer.)
    """
    memory = mmap.mmap(-1, 4 * math.prod(shape), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float32).view(shape)


class PagedKV:
    """Pages, block tables and a free list for one rank.

    Args:
        config: the model whose rows are kept.
        num_pages: pages that sequences can hold.
        page_size: tokens per page; any positive number.
        cache: who decides which pages a sequence has (`serving.kv`), sharing them between sequences; None:
            pages are lent here, each to one sequence.
    """

    def __init__(
        self, config: ModelConfig, num_pages: int, page_size: int = 16, cache: Lender | None = None
    ) -> None:
        if num_pages < 1 or page_size < 1:
            raise UsageError(f"KV cache needs at least one page of one token, got {num_pages} of {page_size}")
        self.page_size = page_size
        self.num_pages = num_pages
        shape = (config.kv_layers, num_pages + 1, page_size, row_width(config))
        self.pages = _untouched_zeros(shape)
        self._prepared = 0
        self._prepare(_PADDING_PAGE)
        self.pages_allocated = 0
        self.pages_freed = 0
        self._free = list(range(num_pages, 0, -1))
        self._spoiled: set[int] = set()
        self._cache = cache
        self._tables: dict[Hashable, list[int]] = {} if cache is None else cache.tables
        self._host: dict[int, torch.Tensor] = {}
        self._lengths: dict[Hashable, int] = {}

    @property
    def num_free_pages(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    def sequences(self) -> tuple[Hashable, ...]:
        """The sequences that hold an entry, in order of their start."""
        return tuple(self._lengths)

    def length(self, sequence: Hashable) -> int:
        """Tokens of `sequence` in the cache; 0 for one that has not started."""
        return self._lengths.get(sequence, 0)

    def pages_for(self, sequence: Hashable, new_tokens: int) -> int:
        """Further pages that appending `new_tokens` to `sequence` takes."""
        total = -(-(self.length(sequence) + new_tokens) // self.page_size)
        return max(0, total - len(self._tables.get(sequence, ())))

    def can_append(self, wanted: Sequence[tuple[Hashable, int]]) -> bool:
        """Whether appending these (sequence, new tokens), each sequence once, fits into the free pages."""
        return sum(self.pages_for(sequence, count) for sequence, count in wanted) <= len(self._free)

    def append(self, sequence: Hashable, new_tokens: int, start: int | None = None) -> Segment:
        """Make room for `new_tokens` more tokens and count them; the model's layers write their rows.

        Args:
            start: position of the first, where pages are lent elsewhere: a prefix may be there already.

        Raises:
            UsageError: not enough free pages (nothing is changed), or no token.
        """
        if new_tokens < 1:
            raise UsageError(f"KV cache: sequence {sequence!r}: cannot append {new_tokens} tokens")
        if self._cache is not None:
            return self._append_lent(sequence, new_tokens, self.length(sequence) if start is None else start)
        needed = self.pages_for(sequence, new_tokens)
        if needed > len(self._free):
            raise UsageError(
                f"KV cache: sequence {sequence!r} needs {needed} more pages of {self.page_size} tokens, "
                f"{len(self._free)} of {self.num_pages} are free"
            )
        table = self._tables.setdefault(sequence, [])
        given = [self._free.pop() for _ in range(needed)]
        self._prepare(max(given, default=0))
        table.extend(given)
        self.pages_allocated += needed
        start = self._lengths.get(sequence, 0)
        self._lengths[sequence] = start + new_tokens
        return Segment(sequence, start, new_tokens)

    def _append_lent(self, sequence: Hashable, new_tokens: int, start: int) -> Segment:
        table = self._tables.get(sequence, [])
        if (start + new_tokens) > len(table) * self.page_size:
            raise InternalError(
                f"KV cache: sequence {sequence!r} has {len(table)} pages of {self.page_size}, too few for "
                f"{start + new_tokens} tokens"
            )
        self._prepare(max(table))
        self._lengths[sequence] = start + new_tokens
        return Segment(sequence, start, new_tokens)

    def lent(self, sequence: Hashable) -> Sequence[int]:
        """The pages of `sequence`, where who decides lends them; none where they are given out here."""
        return () if self._cache is None else self._tables.get(sequence, ())

    def lend(self, sequence: Hashable, table: Sequence[int]) -> None:
        """From now on `sequence` has these pages, as another rank decided; none: it has ended."""
        if table:
            self._tables[sequence] = list(table)
        elif self._cache is not None:
            self._tables.pop(sequence, None)

    def move(self, transfers: Sequence[Transfer]) -> None:
        """Copy pages between the tiers, in order."""
        for transfer in transfers:
            if transfer.move is Move.STORE:
                self._host[transfer.target] = self.pages[:, transfer.source].clone()
                continue
            self._prepare(transfer.target)
            host = transfer.move is Move.LOAD
            source = self._host[transfer.source] if host else self.pages[:, transfer.source]
            self.pages[:, transfer.target] = source

    def _prepare(self, page: int) -> None:
        """Write the constant 1 into all pages up to `page` that never had it."""
        if page >= self._prepared:
            self.pages[:, self._prepared : page + 1, :, -1] = 1.0
            self._prepared = page + 1

    def free(self, sequence: Hashable) -> None:
        """Give all pages of `sequence` back.

        Raises:
            UsageError: the sequence holds nothing.
        """
        if self._cache is not None:  # who lent the pages takes them back
            self._lengths.pop(sequence, None)
            return
        if sequence not in self._tables:
            raise UsageError(f"KV cache: sequence {sequence!r} is not in the cache")
        del self._lengths[sequence]
        self._give_back(self._tables.pop(sequence))

    def _give_back(self, pages: list[int]) -> None:
        for page in self._spoiled.intersection(pages):
            self.pages[:, page, :, :-1] = 0.0
        self._spoiled.difference_update(pages)
        self._free.extend(reversed(pages))
        self.pages_freed += len(pages)

    def held(self) -> dict[int, Hashable]:
        """The pages that sequences hold, and which."""
        return {page: sequence for sequence, table in self._tables.items() for page in table}

    def owners(self, pages: Sequence[int]) -> list[Hashable]:
        """The sequences that hold any of these pages."""
        lost = set(pages)
        return [sequence for sequence, table in self._tables.items() if lost.intersection(table)]

    def spoil(self, pages: Sequence[int]) -> None:
        """Lose what these held pages contain; they are clean once they are given back."""
        for page in pages:
            self.pages[:, page, :, :-1] = _GARBAGE
        if self._cache is not None:
            self._cache.forget(pages)
        else:
            self._spoiled.update(pages)

    def truncate(self, sequence: Hashable, length: int) -> None:
        """Forget the tokens of `sequence` from position `length` on; at 0 it is as if it had never come.

        Raises:
            UsageError: the sequence is shorter.
        """
        if self._cache is not None:  # who lent the pages takes back what is too much
            self._lengths[sequence] = length
            return
        if length > self.length(sequence):
            raise UsageError(
                f"KV cache: sequence {sequence!r} has {self.length(sequence)} tokens, not {length}"
            )
        if sequence not in self._tables:
            return
        if not length:
            self.free(sequence)
            return
        table, kept = self._tables[sequence], -(-length // self.page_size)
        self._give_back(table[kept:])
        del table[kept:]
        self._lengths[sequence] = length

    def slots(self, segment: Segment) -> npt.NDArray[np.int64]:
        """Row numbers (page × page_size + offset) of a segment's tokens, int64 [length]."""
        positions = np.arange(segment.start, segment.start + segment.length)
        table = np.asarray(self._tables[segment.sequence], dtype=np.int64)
        return table[positions // self.page_size] * self.page_size + positions % self.page_size

    def padded_table(self, sequence: Hashable, num_tokens: int) -> list[int]:
        """The block table over `num_tokens` positions, padded with page 0 beyond what the sequence holds."""
        count = -(-num_tokens // self.page_size)
        table = self._tables[sequence][:count]
        return table + [_PADDING_PAGE] * (count - len(table))

    def check_integrity(self) -> None:
        """Check that every page is free or held once, that tables fit their lengths and counters agree.

        Raises:
            InternalError: naming what is broken.
        """
        if self._cache is not None:
            self._cache.check_integrity()
        else:
            self._check_tables()
        if bool(self.pages[:, _PADDING_PAGE, :, :-1].any()) or not bool(
            (self.pages[:, : self._prepared, :, -1] == 1).all()
        ):
            raise InternalError("KV cache: the padding page or the column of ones was written")

    def _check_tables(self) -> None:
        held = [page for table in self._tables.values() for page in table]
        if sorted(held + self._free) != list(range(1, self.num_pages + 1)):
            raise InternalError("KV cache: a page is lost, held twice, or both held and free")
        if self._tables.keys() != self._lengths.keys():
            raise InternalError("KV cache: block tables and lengths name different sequences")
        for sequence, length in self._lengths.items():
            if len(self._tables[sequence]) != -(-length // self.page_size):
                raise InternalError(
                    f"KV cache: sequence {sequence!r} of {length} tokens holds a wrong number of pages"
                )
        if self.pages_allocated - self.pages_freed != len(held):
            raise InternalError(
                f"KV cache: {self.pages_allocated} pages allocated, {self.pages_freed} freed, "
                f"{len(held)} held"
            )
