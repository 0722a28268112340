"""A symmetric window: an array of the same shape on every rank that all may put into and get from.

Memory semantics of the UB fabric: one-sided, unordered between targets, made visible by signals or by
    `quiet`. The owner sees deliveries only at its observation points (any blocking call; `load`, `store`,
    `test` and the waits among them), so `window.local` between two of them is a stable view. Left out
    here: atomics on array elements, order flags per operation, teams.

Names and completion semantics follow OpenSHMEM 1.5 (sections 9.6, 9.9, 9.10) and shmem4py.
"""

from __future__ import annotations

import difflib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

import emulator
from emulator import Device
from emulator.engine.api import ADD, EQ, GE, GT, LE, LT, NE, SET, TIMEOUT
from emulator.errors import UsageError
from emulator.transport import Area

_COMPARISONS = {"eq": EQ, "ne": NE, "gt": GT, "ge": GE, "lt": LT, "le": LE}
_OPERATIONS = {"set": SET, "add": ADD}
Array = npt.NDArray[Any]


class Window:
    """One rank's face of a symmetric window. Made by `Window.create`.

    Attributes:
        shape, dtype: of the array on every rank.
        size: elements of it.
        num_signals: signal words that belong to the window, all 0 at first.
    """

    def __init__(
        self,
        device: Device,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        base: int,
        first_word: int,
        signals: int,
    ) -> None:
        self._device, self._base, self._first_word = device, base, first_word
        self.shape, self.dtype, self.num_signals = shape, dtype, signals
        self.size = math.prod(shape)

    @classmethod
    def create(
        cls,
        shape: int | tuple[int, ...],
        dtype: npt.DTypeLike = np.uint8,
        signals: int = 8,
        device: Device | None = None,
    ) -> Window:
        """Create a window on all ranks (collective: costs a barrier).

        Args:
            shape: of the array on every rank; an int is one dimension.
            dtype: any dtype without object fields.
            signals: signal words that come with it.
            device: this rank's, by default the one of `emulator.init()`.

        Raises:
            UsageError: shapes differ between ranks, no room, negative shape, a dtype that holds references.
        """
        device = device or emulator.device()
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = np.dtype(dtype)
        if any(n < 0 for n in shape) or signals < 0:
            raise UsageError(f"window: sizes must not be negative, got shape {shape} and {signals} signals")
        if kind.hasobject or kind.itemsize == 0:
            raise UsageError(f"window: dtype {kind} has no fixed bytes to move")
        what = f"window {shape} {kind.str if kind.names is None else kind.descr}"
        base, word, _ = device.symmetric.carve(
            Area.HEAP, math.prod(shape) * kind.itemsize, what, words=signals
        )
        return cls(device, shape, kind, base, word, signals)

    @property
    def local(self) -> Array:
        """My array: a view that shows the state at my last observation point. Order a plain write through it
        against remote access by a wait."""
        return self._flat().reshape(self.shape)

    def _flat(self) -> Array:
        nbytes = self.size * self.dtype.itemsize
        return self._device.heap[self._base : self._base + nbytes].view(self.dtype)

    # --- one-sided --------------------------------------------------------------------------------------

    def put(self, dst: int, src: npt.ArrayLike, offset: int = 0, charge_bytes: int | None = None) -> None:
        """Copy `src` to the elements from `offset` on of rank dst's array.

        Args:
            dst: target rank, may be my own or one that has exited.
            src: contiguous array of the window's dtype, taken in memory order (Python numbers are converted);
                may be empty.
            offset: first element written, in the flattened array.
            charge_bytes: bytes charged to the fabric; by default the real ones.

        Completion: `src` may be reused on return; the bytes are in dst's memory after `quiet`.

        Raises:
            UsageError: no such rank, out of range, wrong dtype, non-contiguous source.
            RankLostError: dst is known to be dead.
        """
        self._put(dst, src, offset, charge_bytes, None, SET, 0)

    def put_signal(
        self,
        dst: int,
        src: npt.ArrayLike,
        offset: int,
        signal: int,
        value: int,
        op: str = "set",
        charge_bytes: int | None = None,
    ) -> None:
        """`put`, and set signal word `signal` of dst to `value` (op "set") or add it ("add") after the data.

        Zero elements still signal. A rank that sees the signal sees these data, and only these for certain.

        Raises:
            UsageError: as `put`; no such signal or operation.
        """
        self._put(dst, src, offset, charge_bytes, self._word(signal), _choose("op", op, _OPERATIONS), value)

    def _put(
        self,
        dst: int,
        src: npt.ArrayLike,
        offset: int,
        charge: int | None,
        word: int | None,
        op: int,
        value: int,
    ) -> None:
        data = self._source(src)
        self._check_rank(dst)
        self._check_range("put", offset, data.size)
        charged = data.nbytes if charge is None else _not_negative("charge_bytes", charge)
        self._device.put(dst, self._base + offset * self.dtype.itemsize, data, charged, word, op, value)

    def get(
        self,
        src_rank: int,
        offset: int = 0,
        count: int | None = None,
        out: Array | None = None,
        charge_bytes: int | None = None,
    ) -> Array:
        """Copy `count` elements from `offset` on of rank src_rank's array, as they are when the response
        leaves.

        Args:
            count: by default the size of `out`, or everything from `offset` on.
            out: contiguous array of the window's dtype to fill; a new one-dimensional array by default.

        Completion: the data are here on return. Blocks.

        Raises:
            UsageError: no such rank, out of range, wrong `out`. RankLostError: src_rank is known to be dead.
        """
        self._check_rank(src_rank)
        if out is not None:
            _check_contiguous("get: out", out)
            if out.dtype != self.dtype or (count is not None and count != out.size):
                raise UsageError(
                    f"get: out holds {out.size} of {out.dtype}, the call asks for {count} of {self.dtype}"
                )
            count = out.size
        count = self.size - offset if count is None else count
        self._check_range("get", offset, count)
        nbytes = count * self.dtype.itemsize
        charged = nbytes if charge_bytes is None else _not_negative("charge_bytes", charge_bytes)
        data = self._device.get(src_rank, self._base + offset * self.dtype.itemsize, nbytes, charged).view(
            self.dtype
        )
        if out is None:
            return data
        out.reshape(-1, order="A")[:] = data
        return out

    # --- order and completion ---------------------------------------------------------------------------

    def fence(self) -> None:
        """Order my puts to each target: those before are delivered before those after. Completes nothing."""
        self._device.fence()

    def quiet(self) -> None:
        """Wait until all my puts are delivered and acknowledged. Blocks."""
        self._device.quiet()

    # --- signals ----------------------------------------------------------------------------------------

    def signal_wait_until(
        self, signal: int, cmp: str, value: int, timeout_ps: int | None = None
    ) -> int | None:
        """Wait until my signal word compares as asked (eq, ne, gt, ge, lt, le).

        Returns:
            the word's value when I resume, or None if `timeout_ps` passed first; a delivery at the same
            instant beats the time-out.

        Completion: the data that came with the signal are in `local`.

        Raises:
            UsageError: no such signal or comparison. DeadlockError: nothing can ever fulfil it.
        """
        word, how = self._word(signal), _choose("cmp", cmp, _COMPARISONS)
        if self._device.wait([(word, how, value)], timeout_ps=timeout_ps) == TIMEOUT:
            return None
        return self._device.read(word)

    def test(self, signal: int, cmp: str, value: int) -> bool:
        """Does my signal word compare as asked now? Costs a poll; see `Engine.test`."""
        return self._device.test(self._word(signal), _choose("cmp", cmp, _COMPARISONS), value)

    def signal_read(self, signal: int) -> int:
        """Value of my signal word, everything up to now included."""
        return self._device.read(self._word(signal))

    # --- my own array at an observation point -----------------------------------------------------------

    def load(self, offset: int = 0, count: int | None = None) -> Array:
        """Copy of `count` elements of my array as they are now, everything delivered up to now included."""
        count = self.size - offset if count is None else count
        self._check_range("load", offset, count)
        self._device.observe()
        return self._flat()[offset : offset + count].copy()

    def store(self, offset: int, values: npt.ArrayLike) -> None:
        """Write elements of my own array now: after everything delivered up to now, before what comes
        later."""
        data = self._source(values)
        self._check_range("store", offset, data.size)
        self._device.observe()
        self._flat()[offset : offset + data.size] = data.reshape(-1, order="A")

    # --- checks -----------------------------------------------------------------------------------------

    def _source(self, src: npt.ArrayLike) -> Array:
        data = np.asarray(src)
        if not isinstance(src, np.ndarray | np.generic):
            return self._converted(src, data)
        _check_contiguous("put: source", data)
        if data.dtype != self.dtype:
            raise UsageError(f"put: the source holds {data.dtype}, the window {self.dtype}")
        return data

    def _converted(self, src: npt.ArrayLike, data: Array) -> Array:
        """Python numbers as the window's dtype; nothing may be lost but float precision."""
        if data.size and data.dtype.kind in "fcO" and self.dtype.kind in "iub":
            raise UsageError(f"put: {data.dtype} values do not fit a window of {self.dtype}")
        try:
            return np.array(src, dtype=self.dtype)
        except (OverflowError, TypeError, ValueError) as error:
            raise UsageError(f"put: values do not fit a window of {self.dtype}: {error}") from None

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self._device.num_ranks:
            raise UsageError(f"window: no rank {rank}; ranks are 0 to {self._device.num_ranks - 1}")

    def _check_range(self, call: str, offset: int, count: int) -> None:
        if offset < 0 or count < 0 or offset + count > self.size:
            raise UsageError(
                f"{call}: elements {offset} to {offset + count} are not within the {self.size} of the window"
            )

    def _word(self, signal: int) -> int:
        if not 0 <= signal < self.num_signals:
            raise UsageError(f"window: no signal {signal}; this window has {self.num_signals}, from 0 on")
        return self._first_word + signal


def _check_contiguous(what: str, array: Array) -> None:
    """Refuse what mpi4py refuses: a buffer must be contiguous."""
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise UsageError(
            f"{what} is not contiguous (shape {array.shape}, strides {array.strides}); pass a copy"
        )


def _choose(name: str, word: str, choices: dict[str, int]) -> int:
    if word not in choices:
        near = difflib.get_close_matches(str(word), choices, n=1, cutoff=0.0)[0]
        raise UsageError(
            f"window: {name} {word!r} is not one of {', '.join(choices)}; did you mean {near!r}?"
        )
    return choices[word]


def _not_negative(name: str, value: int) -> int:
    if value < 0:
        raise UsageError(f"window: {name} must not be negative, got {value}")
    return value
