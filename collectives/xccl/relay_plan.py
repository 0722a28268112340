"""Who forwards to whom between A attention dies and E expert dies. Pure.

Expert e (its number among the experts) is served by trampoline e mod T, T = min(A, E): the first T experts
are trampolines, and trampoline t serves experts t, t + T, t + 2T, ... (itself first). The paper does not give
the pairing; this one is even.

    A2E   attention -> trampolines (all rows), trampolines -> the experts they serve
    E2A   the same backwards

    metadata records, each way      direct A x E      trampolines A x T + (E - T)

Source: arXiv 2508.02520v6 section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from emulator.errors import UsageError

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
MODES = ("trampoline", "direct")


@dataclass(frozen=True)
class Relays:
    """Two sets of ranks and how rows pass between them.

    Args:
        attention, experts: ranks, evenly spaced and ascending, disjoint.
        direct: without trampolines.
    """

    attention: range
    experts: range
    direct: bool = False

    @classmethod
    def of(cls, num_ranks: int, attention: Sequence[int], experts: Sequence[int], mode: str) -> Relays:
        """Check the sets. Raises: UsageError, naming what is wrong."""
        if mode not in MODES:
            raise UsageError(f"a2e: mode {mode!r}: choose {' or '.join(MODES)}")
        first, second = (_spaced(what, ranks, num_ranks) for what, ranks in
                         (("attention", attention), ("experts", experts)))  # fmt: skip
        both = sorted(set(first) & set(second))
        if both:
            raise UsageError(f"a2e: rank {both[0]} cannot be attention and expert at once")
        return cls(first, second, mode == "direct")

    @property
    def num_trampolines(self) -> int:
        """How many experts attention talks to: all of them when direct."""
        return len(self.experts) if self.direct else min(len(self.attention), len(self.experts))

    @property
    def trampolines(self) -> range:
        """Their ranks."""
        return self.experts[: self.num_trampolines]

    @property
    def group_size(self) -> int:
        """Most experts one trampoline serves, itself included."""
        return -(-len(self.experts) // self.num_trampolines)

    def served_by(self, trampoline: int) -> range:
        """Numbers of the experts a trampoline serves, itself first."""
        return range(trampoline, len(self.experts), self.num_trampolines)

    def place(self, expert: int) -> tuple[int, int]:
        """Which trampoline serves an expert, and as its how-manieth."""
        member, trampoline = divmod(expert, self.num_trampolines)
        return trampoline, member

    def relabel(self, slot_ids: Int64, slots: int) -> Int64:
        """Slots (expert * slots + s) renumbered so that those behind one trampoline follow one another:
        (trampoline * group_size + member) * slots + s."""
        expert, slot = np.divmod(slot_ids, slots)
        member, trampoline = np.divmod(expert, self.num_trampolines)
        return (trampoline * self.group_size + member) * slots + slot

    # --- closed forms -----------------------------------------------------------------------------------

    @property
    def records(self) -> int:
        """Metadata records of an A2E, and of an E2A."""
        return len(self.attention) * self.num_trampolines + len(self.experts) - self.num_trampolines

    @property
    def most_forwards(self) -> int:
        """Records one trampoline sends on at most."""
        return self.group_size - 1

    def forwarded_rows(self, rows_of_expert: Int64) -> int:
        """Rows that cross the fabric twice, given how many each expert gets, int64 [E]."""
        return int(rows_of_expert[self.num_trampolines :].sum())


def by_member(member: Int32, group_size: int) -> tuple[Int64, Int64, Int64]:
    """Group rows by the expert they are for, keeping their order.

    Args:
        member: int32 [R], 0 to group_size - 1.

    Returns: int64: the rows in order of member [R], how many each has, and where each begins [group_size].
    """
    counts = np.bincount(member, minlength=group_size).astype(np.int64)
    return np.argsort(member, kind="stable"), counts, np.cumsum(counts) - counts


def rotated(count: int, me: int) -> Int64:
    """0 to count - 1 beginning after `me`, so that not all begin with the same peer."""
    return (np.arange(count) + me + 1) % max(1, count)


def _spaced(what: str, ranks: Sequence[int], num_ranks: int) -> range:
    given = list(ranks)
    if not given or not all(isinstance(r, int | np.integer) and 0 <= r < num_ranks for r in given):
        raise UsageError(
            f"a2e: {what} must be ranks of 0 to {num_ranks - 1}, at least one, got {given!r:.80}"
        )
    step = int(given[1] - given[0]) if len(given) > 1 else 1
    even = range(int(given[0]), int(given[0]) + step * len(given), step) if step > 0 else range(0)
    if list(even) != given:
        raise UsageError(f"a2e: {what} must be ascending and evenly spaced, got {given!r:.80}")
    return even


def places(counts: Int32, first: Int32) -> tuple[Int64, Int64]:
    """Source and record number of every row, sources ascending, given how many each has and where its
    begin."""
    sources = np.repeat(np.arange(counts.size), counts)
    before = np.cumsum(counts) - counts
    return sources, (np.arange(sources.size) - before[sources] + first[sources]).astype(np.int64)
