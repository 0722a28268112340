"""Many pieces in one call: strided copies and batches of puts and gets.

A piece is a run of elements that lie side by side at the target, and travels as one operation; a batch is the
same as the loop of single calls, to the picosecond, and costs the host a fraction of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from emulator.engine.posts import K_PUT, Posts, new_posts
from emulator.errors import OffsetError, SizeError
from emulator.memory import as_bytes
from memsem.access import MAX_CHARGE, Array, Int64
from memsem.checkfile import Kind
from memsem.movement import Movement
from memsem.ordering import UNORDERED, OrderFlags

GROUP = 128
"""Gets a batch keeps under way at a time; the machine has room for a few more."""


class Batches(Movement):
    """Calls that move several pieces."""

    def put_batch(
        self,
        dsts: npt.ArrayLike,
        src: npt.ArrayLike,
        offsets: npt.ArrayLike,
        counts: npt.ArrayLike = 1,
        *,
        signals: npt.ArrayLike | None = None,
        values: npt.ArrayLike = 1,
        op: str = "set",
        charge_bytes: npt.ArrayLike | None = None,
        engine: str | None = None,
        order: str | OrderFlags = UNORDERED,
        cores: int | None = None,
    ) -> None:
        """Put pieces, in order: the i-th to rank dsts[i], elements from offsets[i] on, counts[i] of them.

        Args:
            dsts, offsets, counts: integers, scalar or [pieces].
            src: contiguous array of the window's dtype; the pieces lie in it one after the other.
            signals, values: signal word of each target to set or add to (`op`) after its piece; none by
                default. A piece may be empty.
            charge_bytes: of each piece, scalar or [pieces]; by default the real ones.
            engine, order, cores: of every piece, as `put`.

        Completion: as `put`: `src` may be reused on return, the bytes are there after `quiet`.

        Raises:
            SizeError: lengths that do not agree, or the pieces are not as long as `src`. Otherwise as `put`.
        """
        data = self._source(src)
        where = self._pieces("put_batch", dsts, offsets, counts, data.size)
        words = None if signals is None else self._words(signals, len(where[0]))
        charged = where[2] * self.dtype.itemsize
        if charge_bytes is not None:
            charged = self._integers("charge_bytes", charge_bytes, charged.size, 0, MAX_CHARGE)
        kind = 0 if words is None else self._operation(op)
        flags = self._flags(order)
        numbers = self._integers("values", values, charged.size, -(1 << 63), (1 << 63) - 1)
        self._put_pieces(data, where, charged, engine, cores, flags, words, kind, numbers)

    def _pieces(
        self, call: str, ranks: npt.ArrayLike, offsets: npt.ArrayLike, counts: npt.ArrayLike, total: int
    ) -> tuple[Int64, Int64, Int64]:
        """Check pieces; returns the machine's ranks, offsets and counts, int64 [pieces]."""
        try:
            found = [np.asarray(a) for a in (ranks, offsets, counts)]
            if any(a.dtype.kind not in "iu" and a.size for a in found):
                raise ValueError("integers are needed")
            pieces = np.broadcast_arrays(*(np.atleast_1d(a).astype(np.int64) for a in found))
            if pieces[0].ndim != 1:
                raise ValueError("one dimension is needed")
        except ValueError as error:
            raise self._error(SizeError, f"{call}: ranks, offsets and counts: {error}", None) from None
        homes, at, sizes = pieces
        self._check_open()
        bad = np.flatnonzero((at < 0) | (sizes < 0) | (at + sizes > self.size))
        if bad.size:
            self._check_range(f"{call}: piece {bad[0]}", int(at[bad[0]]), int(sizes[bad[0]]))
        known = {rank: self._rank(rank) for rank in set(homes.tolist())}
        if self.team is not None:
            homes = np.array([known[rank] for rank in homes.tolist()], np.int64)
        if int(sizes.sum()) != total:
            message = f"{call}: the pieces have {int(sizes.sum())} elements, the array {total}"
            raise self._error(SizeError, message, total)
        return homes, at, sizes

    def _words(self, signals: npt.ArrayLike, count: int) -> Int64:
        words = self._integers("signals", signals, count, -(1 << 62), 1 << 62)
        for signal in (int(words.min()), int(words.max())) if count else ():
            self._word(signal)
        return words + self._first_word

    def _put_pieces(
        self,
        data: Array,
        where: tuple[Int64, Int64, Int64],
        charged: Int64,
        engine: str | None,
        cores: int | None,
        flags: OrderFlags,
        words: Int64 | None = None,
        op: int = 0,
        values: Int64 | int = 0,
    ) -> None:
        homes, offsets, counts = where
        item, ops = self.dtype.itemsize, self._ops
        ops.enter(len(homes))
        lows, sizes = self._base + offsets * item, counts * item
        posts = new_posts(len(homes), kind=K_PUT, peer=homes, nbytes=charged, offset=lows, real_bytes=sizes,
                          order=flags.bits, value=values)  # fmt: skip
        posts["rd_below"] = int(flags.fence)
        if words is not None:
            posts["word"], posts["op"] = words, op
        self._fill_shapes(posts, engine, cores, flags, words is not None)
        ops.post(posts, as_bytes(data))
        signal: dict[str, npt.ArrayLike] = {}
        if words is not None:
            signal = {"word": words, "op": op, "value": values}
        order = flags.bits
        ops.note_many(Kind.PUT, len(homes), home=homes, low=lows, high=lows + sizes, order=order, **signal)

    def _fill_shapes(
        self, posts: Posts, engine: str | None, cores: int | None, flags: OrderFlags, signals: bool
    ) -> None:
        """Fill in what depends on target and size, once for each pair of them."""
        ops = self._ops
        pairs = np.stack([posts["peer"].astype(np.int64), posts["nbytes"]])
        kinds, which = np.unique(pairs, axis=1, return_inverse=True)
        for at, (home, nbytes) in enumerate(kinds.T.tolist()):
            shape = ops.shape("put", home, nbytes, engine, cores)
            mine = which.reshape(-1) == at
            count = int(np.count_nonzero(mine))
            ops.count(shape, signals * count, count)
            for name, value in shape._asdict().items():
                posts[name][mine] = value
            if flags.complete:
                posts["stream"][mine] = ops.stream(home)

    def get_batch(
        self,
        srcs: npt.ArrayLike,
        out: Array,
        offsets: npt.ArrayLike,
        counts: npt.ArrayLike = 1,
        *,
        engine: str | None = None,
        cores: int | None = None,
    ) -> Array:
        """Get pieces into `out`, one after the other: the i-th from rank srcs[i], elements from offsets[i]
        on, counts[i] of them.

        Args:
            srcs, offsets, counts: integers, scalar or [pieces].
            out: contiguous array of the window's dtype, as long as all pieces together.
            engine, cores: as `put`.

        Completion: the data are here on return. Blocks. Several pieces are under way at a time.

        Raises:
            SizeError: lengths that do not agree. Otherwise as `get`.
        """
        flat = self._out("get_batch", out, None)
        homes, at, sizes = self._pieces("get_batch", srcs, offsets, counts, flat.size)
        self._get_pieces(homes, at, sizes, flat, engine, cores)
        return out

    def _get_pieces(
        self, homes: Int64, offsets: Int64, counts: Int64, flat: Array, engine: str | None, cores: int | None
    ) -> None:
        device, done = self._device, 0
        pieces = list(zip(homes.tolist(), offsets.tolist(), counts.tolist(), strict=True))
        for first in range(0, len(pieces), GROUP):
            group = pieces[first : first + GROUP]
            handles = [
                self._start_get("get_batch", home, at, count, None, engine, cores, UNORDERED)[0]
                for home, at, count in group
            ]
            for handle, (_, _, count) in zip(handles, group, strict=True):
                flat[done : done + count] = device.wait_get(handle).view(self.dtype)
                done += count

    # --- strided ----------------------------------------------------------------------------------------

    def iput(
        self,
        dst: int,
        src: npt.ArrayLike,
        offset: int = 0,
        dst_stride: int = 1,
        src_stride: int = 1,
        count: int | None = None,
        block: int = 1,
        *,
        engine: str | None = None,
        order: str | OrderFlags = UNORDERED,
        cores: int | None = None,
    ) -> None:
        """Put every src_stride-th element of `src` to every dst_stride-th element of rank dst's array.

        Args:
            dst: target rank.
            src: contiguous array of the window's dtype.
            offset: element the first one goes to.
            dst_stride, src_stride: elements from one to the next, at least `block`. 1: side by side.
            count: how many (of blocks, with `block`); by default as many as `src` has.
            block: elements that stay together.
            engine, order, cores: as `put`.

        Completion: as `put`. What is not hit keeps its value.

        Raises:
            SizeError: stride below `block`, or `src` too short. Otherwise as `put`.
        """
        data = self._source(src).reshape(-1, order="A")
        at, taken = self._strides("iput", offset, dst_stride, src_stride, count, block, data.size)
        run = at.size * block if dst_stride == block else block
        at = at[:1] if dst_stride == block else at
        where = self._pieces("iput", dst, at, run, taken.size)
        charged = where[2] * self.dtype.itemsize
        self._put_pieces(data[taken], where, charged, engine, cores, self._flags(order))

    def iget(
        self,
        src_rank: int,
        out: Array,
        offset: int = 0,
        dst_stride: int = 1,
        src_stride: int = 1,
        count: int | None = None,
        block: int = 1,
        *,
        engine: str | None = None,
        cores: int | None = None,
    ) -> Array:
        """Get every src_stride-th element of rank src_rank's array into every dst_stride-th of `out`.

        Args: as `iput`, with the parts exchanged.

        Completion: the data are in `out` on return; what is not hit keeps its value. Blocks.

        Raises:
            SizeError: stride below `block`, or `out` too short. Otherwise as `get`.
        """
        flat = self._out("iget", out, None)
        at, taken = self._strides("iget", offset, src_stride, dst_stride, count, block, flat.size)
        run = at.size * block if src_stride == block else block
        at = at[:1] if src_stride == block else at
        data = np.empty(taken.size, self.dtype)
        self._get_pieces(*self._pieces("iget", src_rank, at, run, taken.size), data, engine, cores)
        flat[taken] = data
        return out

    def _strides(
        self, call: str, offset: int, far: int, near: int, count: int | None, block: int, size: int
    ) -> tuple[Int64, Int64]:
        """Where the blocks lie in the remote array, int64 [count], and which elements of the near one they
        are, int64 [count * block]."""
        for what, number in (("block", block), ("stride", far), ("stride", near), ("offset", offset)):
            self._integer(f"{call}: {what}", number, -(1 << 31), 1 << 62)
        if block < 1 or far < block or near < block:
            message = f"{call}: strides {far} and {near} must be at least the block of {block}, and that 1"
            raise self._error(SizeError, message, (far, near, block))
        fits = 0 if size < block else (size - block) // near + 1
        count = fits if count is None else self._integer(f"{call}: count", count, -(1 << 31), 1 << 62)
        if not 0 <= count <= fits:
            message = f"{call}: {count} blocks asked for, an array of {size} with stride {near} has {fits}"
            raise self._error(SizeError, message, count)
        last = offset + (count - 1) * far + block if count else offset
        if offset < 0 or last > self.size:
            message = f"{call}: elements {offset} to {last} are not within the {self.size} of the window"
            raise self._error(OffsetError, message, offset)
        steps = np.arange(count, dtype=np.int64)
        return offset + steps * far, (steps[:, None] * near + np.arange(block)).reshape(-1)
