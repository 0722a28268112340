"""Order and completion of what a rank sends: flags of one operation, `fence`, `quiet`.

    placement   the bytes change at the home         ordered by strong, fence, quiet, a signal (own data)
    completion  the poster knows that it is placed   `quiet`, `Pending.wait`
    visibility  the owner's view shows it            at the owner's next observation point

Sources: OpenSHMEM 1.5, 9.10 (fence, quiet); URMA `urma_types.h` (place_order, comp_order, fence). The full
table of what may be seen is `docs/memory_model.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulator.engine.posts import ORD_STRONG, ORD_TRACK
from emulator.errors import UsageError
from memsem.access import Access

PLACES = {"none": 0, "relaxed": ORD_TRACK, "strong": ORD_TRACK | ORD_STRONG}


@dataclass(frozen=True)
class OrderFlags:
    """Order of one operation, as URMA gives it per work request.

    Attributes:
        place: "none" (no order, not even with an operation to the same place), "relaxed" (placed before every
            later strong one of mine to that rank) or "strong" (also placed after every earlier relaxed and
            strong one of mine to that rank).
        complete: of the non-blocking operations to one rank that have it set, completion is reported in the
            order they were posted; orders no placement.
        fence: the operation starts when all my earlier gets and atomics have been answered.
    """

    place: str = "none"
    complete: bool = False
    fence: bool = False

    @classmethod
    def of(cls, order: str | OrderFlags) -> OrderFlags:
        """Take what a call was given: flags, or the name of a place order.

        Raises:
            UsageError: no such place order.
        """
        flags = order if isinstance(order, OrderFlags) else _NAMED.get(str(order))
        if flags is None or flags.place not in PLACES:
            word = order.place if isinstance(order, OrderFlags) else order
            raise UsageError(f"window: order {word!r} is not one of {', '.join(PLACES)}, nor OrderFlags")
        return flags

    @property
    def bits(self) -> int:
        """The engine's bits of the place order."""
        return PLACES[self.place]


_NAMED = {name: OrderFlags(name) for name in PLACES}
UNORDERED = _NAMED["none"]


class Ordering(Access):
    """Calls that order and complete; they concern all windows of the rank."""

    def _flags(self, order: str | OrderFlags) -> OrderFlags:
        try:
            return OrderFlags.of(order)
        except UsageError as error:
            raise self._error(UsageError, error.message, order) from None

    def fence(self) -> None:
        """Order my puts, signals and atomics to each target: those before are placed before those after.

        Completion: none. Gets are not ordered by it, nor operations to different targets.
        """
        self._ops.enter()
        self._ops.fence()

    def quiet(self) -> None:
        """Wait until everything I have posted is complete. Blocks.

        Completion: my puts, signals and atomics are in their targets' memory, my gets in their `out`, and
        every source may be reused. Whether the *owner* has looked is its own affair.
        """
        self._ops.enter()
        self._ops.quiet()

    def quiet_target(self, dst: int) -> None:
        """Wait until everything I have posted to rank dst is complete. Blocks.

        Completion: as `quiet`, which it is: a die has one queue, so the others are waited for too.

        Raises:
            UsageError: no such rank.
        """
        self._rank(dst)
        self.quiet()
