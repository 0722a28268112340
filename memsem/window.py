"""A symmetric window: an array of the same shape on every rank that all may put into and get from.

Memory semantics of the UB fabric: one-sided, unordered unless a flag, `fence` or signal says otherwise, made
visible by signals or by `quiet`. The owner sees deliveries only at its observation points (any blocking call;
`load`, `store`, `test` and the waits among them), so `window.local` between two of them is a stable view.

One class in layers, each a file that can be read alone:

    access     where it lies, what is refused            notices    put_signal, immediates
    ordering   order flags, fence, quiet                 signals    my words: waits and tests
    movement   put and get                               atomics    on elements
    batches    strided, many in one call                 window     here: making one, my own array

Names and completion semantics follow OpenSHMEM 1.5 (sections 9.6 to 9.10) and shmem4py, order flags URMA.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import emulator
from emulator import Device
from emulator.errors import DtypeError, SizeError, StateError, misuse
from emulator.transport import Area
from memsem.access import Array
from memsem.atomics import Atomics
from memsem.checked import checked
from memsem.checkfile import Kind

if TYPE_CHECKING:
    from memsem.team import Team


class Window(Atomics):
    """One rank's face of a symmetric window. Made by `Window.create`, or as a view of a heap's piece."""

    @classmethod
    def create(
        cls,
        shape: int | tuple[int, ...],
        dtype: npt.DTypeLike = np.uint8,
        signals: int = 8,
        device: Device | None = None,
        *,
        team: Team | None = None,
    ) -> Window:
        """Create a window on all ranks (collective: costs a barrier, so no signal can come before it exists).

        Args:
            shape: of the array on every rank; an int is one dimension.
            dtype: any dtype without object fields.
            signals: signal words that come with it.
            device: this rank's, by default the one of `emulator.init()`.
            team: whose ranks the window's calls name. *All* ranks of the machine create, each with its own
                team (None where it has none); memory and signal words are a window's alone.

        Raises:
            UsageError: shapes differ between ranks, or no room. SizeError: negative shape. DtypeError: a
            dtype that holds references.
        """
        device = device or emulator.device()
        shape = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        kind = cls.check_dtype(device, dtype)
        if not all(isinstance(n, int | np.integer) and n >= 0 for n in (*shape, signals)):
            message = f"window: sizes must not be negative, got shape {shape} and {signals} signals"
            raise misuse(SizeError, message, rank=device.rank, now_ps=device.now_ps, value=(shape, signals))
        nbytes, what = math.prod(map(int, shape)) * kind.itemsize, _named(shape, kind)
        base, word, _ = device.symmetric.carve(Area.HEAP, nbytes, what, words=signals)
        return cls(device, shape, kind, base, word, signals, team)

    def free(self) -> None:
        """Give memory and signal words back on all ranks (collective: completes what I have posted, and costs
        a barrier). Every later call raises OffsetError.

        Raises:
            StateError: a view of a heap's piece (free the piece). UsageError: ranks differ.
        """
        self._check_open()
        if self._piece is not None:
            raise self._error(StateError, "window: a view of a piece ends with the piece", self._base)
        self._ops.enter()
        self._ops.quiet()
        where = Area.HEAP, self._base, self.size * self.dtype.itemsize, _named(self.shape, self.dtype)
        self._device.symmetric.release(*where, self._first_word, self.num_signals)
        self._freed = True

    @staticmethod
    def check_dtype(device: Device, dtype: npt.DTypeLike) -> np.dtype[Any]:
        """Return a dtype that can lie in a window. Raises: DtypeError, it cannot, or is none."""
        try:
            kind = np.dtype(dtype)
        except (TypeError, ValueError) as error:
            message = f"window: {dtype!r} is no dtype: {error}"
            raise misuse(DtypeError, message, rank=device.rank, now_ps=device.now_ps, value=dtype) from None
        if kind.hasobject or kind.itemsize == 0:
            message = f"window: dtype {kind} has no fixed bytes to move"
            raise misuse(DtypeError, message, rank=device.rank, now_ps=device.now_ps, value=str(kind))
        return kind

    # --- my own array -----------------------------------------------------------------------------------

    @property
    def local(self) -> Array:
        """My array: a view that shows the state at my last observation point. Order a plain write through it
        against remote access by a wait."""
        array = self._flat().reshape(self.shape)
        return array if self._ops.check is None else checked(array, self._note_address)

    def load(self, offset: int = 0, count: int | None = None) -> Array:
        """Copy of `count` elements of my array as they are now, everything delivered up to now included."""
        count = self._rest("load", offset) if count is None else count
        self._check_range("load", offset, count)
        self._ops.enter()
        self._device.observe()
        self._note_own(Kind.LOAD, offset, count)
        return self._flat()[offset : offset + count].copy()

    def store(self, offset: int, values: npt.ArrayLike) -> None:
        """Write elements of my own array now: after everything delivered up to now, before what comes
        later."""
        data = self._source(values)
        self._check_range("store", offset, data.size)
        self._ops.enter()
        self._device.observe()
        self._note_own(Kind.STORE, offset, data.size)
        self._flat()[offset : offset + data.size] = data.reshape(-1, order="A")

    def _note_address(self, kind: Kind, first: int, last: int) -> None:
        start = self._device.heap.ctypes.data
        self._ops.note(kind, home=self._device.rank, low=first - start, high=last - start)

    def _note_own(self, kind: Kind, offset: int, count: int) -> None:
        low = self._byte(offset)
        self._ops.note(kind, home=self._device.rank, low=low, high=low + count * self.dtype.itemsize)


def _named(shape: tuple[int, ...], kind: np.dtype[Any]) -> str:
    """What the ranks must agree on."""
    return f"window {shape} {kind.str if kind.names is None else kind.descr}"
