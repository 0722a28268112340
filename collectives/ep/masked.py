"""Two buffers, their hooks and the rank mask of the low-latency calls.

Masked ranks take no part: their experts count as unselected, nobody waits for them; they may be dead. All
ranks that are not masked must mask the same ones; where they do not, the deadlock that follows is reported as
what it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from collectives.ep import layout as lay
from collectives.ep import wire
from collectives.ep.area import EpArea, Ranks, ranks_of
from collectives.ep.moves import Moves
from collectives.moe import OperationCosts
from emulator.errors import RankLostError, StateError, UsageError
from emulator.rows import HEADER_BYTES

Int64 = npt.NDArray[np.int64]
BUFFERS = 2


class MaskedMoves:
    """`Moves` of one shape with two buffers and a rank mask. Collective to make: costs a barrier.

    Args:
        ranks: the whole group. scheme: what the machine is charged for. max_tokens, hidden, topk: the shape.
        costs: of dispatch and of combine; None: DeepEP's message sizes.
    """

    def __init__(
        self, ranks: Ranks, scheme: str, num_experts: int, max_tokens: int, hidden: int, topk: int,
        costs: tuple[OperationCosts | None, OperationCosts | None], planes: tuple[int, int, int, int],
    ) -> None:  # fmt: skip
        self._all, self._scheme, self._planes, self._costs = ranks, scheme, planes, costs
        self.num_experts, self.max_tokens, self.hidden, self.topk = num_experts, max_tokens, hidden, topk
        self.slots = lay.slots_of(num_experts, ranks.size)
        row = HEADER_BYTES + 8 + 4 * wire.words("float32", hidden)
        most = ranks.size * max_tokens * min(topk, self.slots)
        blocks = (_chunks(max_tokens * topk) * row, _chunks(most) * row)
        self._area = EpArea(ranks, *blocks, BUFFERS, sets=3)
        self._moves = Moves(self._area, scheme, num_experts, planes)
        self._alive = np.arange(ranks.size)
        self._next = self._turn = 0
        self._hooks = 0
        self._change = int(ranks.device.lost().max())

    # --- the mask -----------------------------------------------------------------------------------------

    def leave_out(self, masked: npt.NDArray[np.bool_]) -> None:
        """Go on among the ranks that are not masked, bool [R].

        Those that go on meet once, so that nobody writes what another still reads: the smaller group, be it
        the new or the old one.

        Raises:
            StateError: hooks are not called yet. UsageError: I am masked. RankLostError: a rank is dead.
        """
        alive, cut = np.flatnonzero(~masked), self._cut_off(~masked)
        if np.array_equal(alive, self._alive) and not cut:
            return
        if self._hooks:
            raise StateError("rank mask: call the hooks of what is under way first")
        if masked[self._all.me]:
            raise UsageError("rank mask: a rank cannot mask itself")
        everybody, fewer = alive.size == self._all.size, cut or np.isin(alive, self._alive).all()
        if not fewer:
            self._area.meet()
        if self._alive.size == self._all.size:
            self._turn = self._next
        self._alive, self._next = alive, self._turn if everybody and not cut else 0
        ranks = ranks_of(self._all.device, self._all.members[alive])
        self._area.regroup(ranks, 0 if everybody else 1 + (zlib.crc32(alive.tobytes()) >> 1))
        if cut and everybody:
            self._area.open_groups(always=True)
        self._moves.regroup(alive.size * self.slots, everybody, cut)
        if fewer:
            self._area.meet()

    def _cut_off(self, taken: npt.NDArray[np.bool_]) -> bool:
        """Whether ranks have died since the last call, and what was under way has been given up.

        Args:
            taken: bool [R], who is to take part.

        Raises:
            RankLostError: a rank is dead and not masked.
        """
        lost = self._all.device.lost()
        dead = self._all.members[taken & (lost[self._all.members] > 0)].tolist()
        if dead:
            raise RankLostError(f"low latency: ranks {dead[:20]} are lost; mask them on all others", dead)
        if int(lost.max()) == self._change:
            return False
        self._change, self._hooks = int(lost.max()), 0
        return True

    def _compact(self, topk_idx: Int64) -> Int64:
        """Experts numbered among the ranks that are not masked; those of masked ones are unselected."""
        place = np.full(self._all.size, -1, np.int64)
        place[self._alive] = np.arange(self._alive.size)
        rank, slot = np.divmod(np.maximum(topk_idx, 0), self.slots)
        there = (topk_idx >= 0) & (place[rank] >= 0)
        return np.where(there, place[rank] * self.slots + slot, -1)

    # --- buffers and hooks --------------------------------------------------------------------------------

    def _take(self) -> int:
        """The buffer of the next dispatch. Raises: StateError, both are under way."""
        for number in (self._next, 1 - self._next):
            if not any(side.busy for side in self._moves.sides[number]):
                self._next = 1 - number
                return number
        raise StateError(
            "low latency: two operations are under way, there are two buffers; call a hook first"
        )

    def _hook(self, receive: Callable[[], None], hook: bool) -> Callable[[], None]:
        """A hook that may be called once; without one there is nothing left to do."""
        if not hook:
            return lambda: None
        self._hooks += 1
        open_, change = [True], self._change

        def call() -> None:
            if not open_[0]:
                raise StateError("low latency: this hook has been called already")
            open_[0] = False
            lost = self._all.device.lost()
            if int(lost.max()) != change:
                dead = np.flatnonzero(lost).tolist()
                raise RankLostError(f"low latency: given up, ranks {dead[:20]} are lost", dead)
            self._hooks -= 1
            receive()

        return call

    def release(self) -> None:
        """Give the memory back; all ranks of the machine."""
        self._area.release()


def _chunks(rows: int) -> int:
    return (rows // 32 + 1) * 32
