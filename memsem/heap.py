"""A symmetric heap: pieces of memory, the same on every rank, that can be given back.

    heap = SymmetricHeap.create(1 << 20, signals=64)
    piece = heap.alloc(4096, signals=2)
    window = piece.view(np.float32, (32, 32))         # a Window over the piece
    heap.free(piece)                                  # the window's calls raise from now on

All calls are made by all ranks, with equal arguments, in the same order. Allocation is first fit over a
space carved at `create`, so every rank finds the same place without asking; one meeting a call proves that
all asked for the same. The meeting stands *between* clearing a piece and its first use by anybody, and
between the last use and its next owner, so neither a signal nor data of the one can be taken for the other's
(pytorch/pytorch PR 196546).

Source: OpenSHMEM 1.5, 9.3 (shmem_malloc, shmem_calloc, shmem_align, shmem_free).
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

import emulator
from emulator import Device
from emulator.device import BARRIER_CHANNEL
from emulator.engine.api import SET
from emulator.engine.posts import K_LOCAL, new_posts
from emulator.errors import AlignmentError, SizeError, StateError, UsageError, misuse
from emulator.freelist import FreeList
from emulator.tracing import Op
from emulator.transport import Area
from memsem.checkfile import Kind
from memsem.operations import Operations
from memsem.window import Window

ALIGN = 64
"""Least distance of pieces, bytes: a cache line."""


class Piece:
    """Allocated memory. Made by `SymmetricHeap.alloc`.

    Attributes:
        offset, nbytes: its place in the device's heap, and its size.
        first_word, num_signals: signal words that go with it.
        freed: given back; every view of it raises OffsetError.
    """

    def __init__(self, device: Device, offset: int, nbytes: int, first_word: int, signals: int) -> None:
        self._device = device
        self.offset, self.nbytes = offset, nbytes
        self.first_word, self.num_signals, self.freed = first_word, signals, False

    def view(self, dtype: npt.DTypeLike = np.uint8, shape: int | tuple[int, ...] | None = None) -> Window:
        """Return a window over the piece, with its signal words; by default one-dimensional, all of it.

        Raises:
            SizeError: the shape does not fit. DtypeError: the dtype holds references. StateError: freed.
        """
        kind = Window.check_dtype(self._device, dtype)
        where = {"rank": self._device.rank, "now_ps": self._device.now_ps}
        if self.freed:
            raise misuse(StateError, "heap: this piece has been freed", value=self.offset, **where)
        if shape is None:
            shape = self.nbytes // kind.itemsize
        shape = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        whole = all(isinstance(n, int | np.integer) and n >= 0 for n in shape)
        if not whole or math.prod(shape) * kind.itemsize > self.nbytes:
            message = f"heap: shape {shape} of {kind} does not fit a piece of {self.nbytes} bytes"
            raise misuse(SizeError, message, value=shape, **where)
        return Window(self._device, shape, kind, self.offset, self.first_word, self.num_signals, piece=self)


class SymmetricHeap:
    """Memory and signal words to allocate from. Made by `SymmetricHeap.create`."""

    def __init__(self, device: Device, base: int, nbytes: int, first_word: int, signals: int) -> None:
        self._device, self._base, self._first_word = device, base, first_word
        self._bytes, self._words = FreeList(nbytes), FreeList(signals)
        self._ops = Operations.of(device)
        self._pieces: set[Piece] = set()

    @classmethod
    def create(cls, nbytes: int, signals: int = 0, device: Device | None = None) -> SymmetricHeap:
        """Create a heap on all ranks (collective: costs a barrier).

        Args:
            nbytes: room for all pieces together. signals: signal words for all of them.

        Raises:
            SizeError: negative. UsageError: no room, or the ranks do not agree.
        """
        device = device or emulator.device()
        if not all(isinstance(n, int | np.integer) and n >= 0 for n in (nbytes, signals)):
            message = f"heap: sizes must not be negative, got {nbytes} bytes and {signals} signals"
            raise misuse(SizeError, message, rank=device.rank, now_ps=device.now_ps, value=(nbytes, signals))
        base, word, _ = device.symmetric.carve(Area.HEAP, nbytes, "symmetric heap", words=signals)
        return cls(device, base, nbytes, word, signals)

    @property
    def free_bytes(self) -> int:
        """Bytes not taken, in all holes together."""
        return self._bytes.free

    @property
    def pieces(self) -> int:
        """Pieces that are allocated."""
        return len(self._pieces)

    def alloc(self, nbytes: int, align: int = ALIGN, signals: int = 0) -> Piece:
        """Allocate on all ranks (collective: costs a meeting). The bytes are as their last owner left them,
        the signal words are 0.

        Args:
            nbytes: size; may be 0.
            align: of the place in the heap, a power of two; at least 64 is taken.
            signals: signal words that go with it.

        Completion: any rank may write to any rank's piece on return.

        Raises:
            SizeError: negative, or no room. AlignmentError: no power of two. UsageError: ranks differ.
        """
        return self._alloc(nbytes, align, signals, clear=False)

    def calloc(self, nbytes: int, align: int = ALIGN, signals: int = 0) -> Piece:
        """`alloc`, with all bytes 0."""
        return self._alloc(nbytes, align, signals, clear=True)

    def free(self, piece: Piece) -> None:
        """Give a piece back on all ranks (collective: completes what I have posted, and costs a meeting).

        Raises:
            StateError: not of this heap, or freed already. UsageError: ranks differ.
        """
        if piece not in self._pieces:
            raise self._error(StateError, "heap: not an allocated piece of this heap", piece.offset)
        self._ops.enter()
        self._ops.quiet()
        self._agree("free", piece.offset, piece.nbytes, piece.num_signals)
        self._pieces.remove(piece)
        piece.freed = True
        self._bytes.release(piece.offset - self._base, self._padded(piece.nbytes))
        self._words.release(piece.first_word - self._first_word, piece.num_signals)

    def _alloc(self, nbytes: int, align: int, signals: int, clear: bool) -> Piece:
        if not all(isinstance(n, int | np.integer) and n >= 0 for n in (nbytes, signals)):
            message = f"heap: sizes must not be negative, got {nbytes} bytes and {signals} signals"
            raise self._error(SizeError, message, (nbytes, signals))
        if align < 1 or align & (align - 1):
            raise self._error(AlignmentError, f"heap: align {align} is no power of two", align)
        self._ops.enter()
        piece = self._carve(nbytes, max(align, ALIGN), signals)
        self._clear(piece, clear)
        self._agree("alloc", piece.offset, nbytes, signals)
        self._pieces.add(piece)
        return piece

    def _carve(self, nbytes: int, align: int, signals: int) -> Piece:
        lead = -self._base % align
        place = self._bytes.carve(self._padded(nbytes), align) if not lead else None
        if place is None and lead:
            place = self._carve_shifted(nbytes, align)
        if place is None:
            free, largest = self._bytes.free, self._bytes.largest
            message = f"heap: {nbytes} bytes are needed, {free} are free, {largest} of them in one piece"
            raise self._error(SizeError, message, nbytes)
        word = self._words.carve(signals)
        if word is None:
            self._bytes.release(place, self._padded(nbytes))
            message = f"heap: {signals} signals are needed, {self._words.free} are free"
            raise self._error(SizeError, message, signals)
        return Piece(self._device, self._base + place, nbytes, self._first_word + word, signals)

    def _carve_shifted(self, nbytes: int, align: int) -> int | None:
        """The lowest place whose *device* offset is aligned, where the arena itself is less aligned."""
        room = self._padded(nbytes) + align
        at = self._bytes.carve(room, ALIGN)
        if at is None:
            return None
        place = at + -(self._base + at) % align
        self._bytes.release(at, place - at)
        self._bytes.release(place + self._padded(nbytes), at + room - place - self._padded(nbytes))
        return place

    @staticmethod
    def _padded(nbytes: int) -> int:
        return -(-nbytes // ALIGN) * ALIGN

    def _clear(self, piece: Piece, clear: bool) -> None:
        """Zero the words, and the bytes if asked, before anybody else can know of the piece."""
        device = self._device
        if clear and piece.nbytes:
            device.observe()
            device.heap[piece.offset : piece.offset + piece.nbytes] = 0
        words = np.arange(piece.first_word, piece.first_word + piece.num_signals)
        if words.size:
            posts = new_posts(words.size, kind=K_LOCAL, word=words, op=SET, peer=device.rank)
            device.post(posts, None, Op.PUT)
        for word in words.tolist():
            self._ops.note(Kind.RESET, home=device.rank, word=word, value=0)

    def _agree(self, call: str, *numbers: int) -> None:
        """Meet all ranks and compare what they ask for; then it is the same on all or an error on all."""
        device = self._device
        tag = zlib.crc32(repr((call, numbers)).encode())
        tags = device.exchange(BARRIER_CHANNEL, None, 0, tag=tag).tags
        others: list[int] = np.flatnonzero(tags != tag).tolist()
        if others:
            mine = f"{numbers[1]} bytes and {numbers[2]} signals at {numbers[0]}"
            message = f"heap: {call} must be alike on all ranks; {mine} here, something else at rank"
            raise self._error(UsageError, f"{message} {others[0]}", numbers[1])

    def _error(self, kind: type[UsageError], message: str, value: Any) -> UsageError:
        return misuse(kind, message, rank=self._device.rank, now_ps=self._device.now_ps, value=value)
