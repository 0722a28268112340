"""What every window call starts from: where the window lies, and the checks of arguments.

A wrong argument raises here, before any time passes, and names the rank, its virtual time and the value.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from emulator import Device
from emulator.engine.api import ADD, EQ, GE, GT, LE, LT, NE, SET
from emulator.errors import DtypeError, OffsetError, SizeError, StateError, UsageError, misuse
from memsem.operations import Operations

if TYPE_CHECKING:
    from memsem.heap import Piece
    from memsem.team import Team

COMPARISONS = {"eq": EQ, "ne": NE, "gt": GT, "ge": GE, "lt": LT, "le": LE}
OPERATIONS = {"set": SET, "add": ADD}
MAX_CHARGE = 1 << 50
"""Most bytes one operation may be charged."""
Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]


class Access:
    """One rank's face of a window: place, type and checks.

    Attributes:
        shape, dtype: of the array on every rank.
        size: elements of it.
        num_signals: signal words that belong to the window, all 0 at first.
        team: whose ranks the calls name; None: all ranks.
    """

    def __init__(
        self,
        device: Device,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        base: int,
        first_word: int,
        signals: int,
        team: Team | None = None,
        piece: Piece | None = None,
    ) -> None:
        self._device, self._base, self._first_word = device, base, first_word
        self.shape, self.dtype, self.num_signals = shape, dtype, signals
        self.size, self.team, self._piece = math.prod(shape), team, piece
        self._freed = False
        self._ops = Operations.of(device)
        self._id = self._ops.next_window()

    def _flat(self) -> Array:
        self._check_open()
        nbytes = self.size * self.dtype.itemsize
        return self._device.heap[self._base : self._base + nbytes].view(self.dtype)

    def _byte(self, offset: int) -> int:
        """Where an element lies in the heap."""
        return self._base + offset * self.dtype.itemsize

    # --- checks -----------------------------------------------------------------------------------------

    def _error(self, kind: type[UsageError], message: str, value: Any) -> UsageError:
        return misuse(kind, message, rank=self._device.rank, now_ps=self._device.now_ps, value=value)

    def _integer(self, what: str, value: Any, low: int, high: int, kind: type[UsageError] = SizeError) -> int:
        """Check a number from `low` to `high`; returns it as an int."""
        if (type(value) is int or isinstance(value, np.integer)) and low <= value <= high:
            return int(value)
        raise self._error(kind, f"{what} must be an integer from {low} to {high}, got {value!r}", value)

    def _integers(self, what: str, values: npt.ArrayLike, count: int, low: int, high: int) -> Int64:
        """Check numbers from `low` to `high`, one for all or one each; returns int64 [count]."""
        found = np.asarray(values)
        if found.size and (found.dtype.kind not in "iu" or found.min() < low or found.max() > high):
            message = f"{what} must be integers from {low} to {high}, got {values!r:.60}"
            raise self._error(SizeError, message, values)
        if found.shape not in ((), (1,), (count,)):
            message = f"{what}: {found.shape} numbers for {count} pieces; one for all or one each"
            raise self._error(SizeError, message, found.shape)
        return np.broadcast_to(found.astype(np.int64), count)

    def _check_open(self) -> None:
        if self._freed or (self._piece is not None and self._piece.freed):
            raise self._error(OffsetError, "window: its memory has been freed", self._base)

    def _source(self, src: npt.ArrayLike) -> Array:
        if not isinstance(src, np.ndarray | np.generic):
            if isinstance(src, bytes | bytearray | memoryview):
                return self._source(np.frombuffer(src, np.uint8))
            return self._converted(src, np.asarray(src))
        data = np.asarray(src)
        self._check_contiguous("put: source", data)
        if data.dtype != self.dtype:
            message = f"put: the source holds {data.dtype}, the window {self.dtype}"
            raise self._error(DtypeError, message, str(data.dtype))
        return data

    def _converted(self, src: npt.ArrayLike, data: Array) -> Array:
        """Python numbers as the window's dtype; nothing may be lost but float precision."""
        message = f"values do not fit a window of {self.dtype}"
        numbers = data.dtype.kind != "O" or all(isinstance(v, int) for v in data.flat)
        if data.size and (not numbers or (data.dtype.kind in "fcO" and self.dtype.kind in "iub")):
            raise self._error(DtypeError, f"put: {data.dtype} {message}", str(data.dtype))
        try:
            return np.array(src, dtype=self.dtype)
        except (OverflowError, TypeError, ValueError) as error:
            raise self._error(DtypeError, f"put: {message}: {error}", str(data.dtype)) from None

    def _check_contiguous(self, what: str, array: Array) -> None:
        """Refuse what mpi4py refuses: a buffer must be contiguous."""
        if not (array.flags.c_contiguous or array.flags.f_contiguous):
            shape = f"shape {array.shape}, strides {array.strides}"
            raise self._error(SizeError, f"{what} is not contiguous ({shape}); pass a copy", array.strides)

    def _out(self, call: str, out: Array, count: int | None) -> Array:
        """Check an array to be filled; returns it flat, in memory order."""
        if not isinstance(out, np.ndarray):
            raise self._error(DtypeError, f"{call}: out must be an array, got {type(out).__name__}", out)
        self._check_contiguous(f"{call}: out", out)
        if not out.flags.writeable:
            raise self._error(StateError, f"{call}: out is read-only", out.shape)
        if out.dtype != self.dtype or (count is not None and count != out.size):
            asked = f"the call asks for {out.size if count is None else count} of {self.dtype}"
            kind = DtypeError if out.dtype != self.dtype else SizeError
            raise self._error(kind, f"{call}: out holds {out.size} of {out.dtype}, {asked}", out.size)
        return out.reshape(-1, order="A")

    def _rank(self, rank: int) -> int:
        """Check a rank of the team; returns its number in the machine."""
        ranks = self._device.num_ranks if self.team is None else self.team.size
        if not (type(rank) is int or isinstance(rank, np.integer)) or not 0 <= rank < ranks:
            raise self._error(SizeError, f"window: no rank {rank}; ranks are 0 to {ranks - 1}", rank)
        rank = int(rank)
        return rank if self.team is None else self.team.members[rank]

    def _check_range(self, call: str, offset: int, count: int) -> None:
        self._check_open()
        if type(offset) is not int or type(count) is not int:
            offset = self._integer(f"{call}: offset", offset, -(1 << 62), 1 << 62, OffsetError)
            count = self._integer(f"{call}: count", count, -(1 << 62), 1 << 62, OffsetError)
        if offset < 0 or count < 0 or offset + count > self.size:
            where = f"elements {offset} to {offset + count}"
            message = f"{call}: {where} are not within the {self.size} of the window"
            raise self._error(OffsetError, message, offset)

    def _rest(self, call: str, offset: int) -> int:
        """Return how many elements there are from `offset` on."""
        return self.size - self._integer(f"{call}: offset", offset, 0, self.size, OffsetError)

    def _word(self, signal: int) -> int:
        known = type(signal) is int or isinstance(signal, np.integer)
        if not known or not 0 <= signal < self.num_signals:
            message = f"window: no signal {signal}; this window has {self.num_signals}, from 0 on"
            raise self._error(OffsetError, message, signal)
        self._check_open()
        return self._first_word + int(signal)

    def _charge(self, charge: int | None, real: int) -> int:
        if charge is None:
            return real
        if type(charge) is int and charge < 0:
            raise self._error(SizeError, f"window: charge_bytes must not be negative, got {charge}", charge)
        return self._integer("window: charge_bytes", charge, 0, MAX_CHARGE)

    def _value(self, value: Any) -> int:
        """Check what a signal word is to hold or compare with."""
        return self._integer("window: a signal's value", value, -(1 << 63), (1 << 63) - 1)

    def _operation(self, op: str) -> int:
        return OPERATIONS[self._choose("op", op, OPERATIONS)]

    def _choose(self, name: str, word: str, choices: Iterable[str]) -> str:
        if not isinstance(word, str) or word not in choices:
            near = difflib.get_close_matches(str(word), choices, n=1, cutoff=0.0)[0]
            message = f"window: {name} {word!r} is not one of {', '.join(choices)}; did you mean {near!r}?"
            raise self._error(UsageError, message, word)
        return word
