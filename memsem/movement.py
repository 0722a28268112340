"""Moving elements: put and get, blocking and not.

    call        source (put) or `out` (get)       data in the target's memory        complete
    put         reusable on return                at its placement; known by a       after `quiet`
                                                  signal, or quiet and a barrier
    put_nbi     reusable after wait or quiet      as put                             after wait or quiet
    get         filled on return                  -                                  on return
    get_nbi     filled after wait or quiet        -                                  after wait or quiet

The same for both engines: "mte", where cores store into remote memory themselves (`cores` of them, short
start-up), and "dma", where a unit works through descriptors (long start-up, one at a time, more bytes per
second than one core). No bytes take no port time; a signal that comes with them is sent all the same.
"""

from __future__ import annotations

import numpy.typing as npt

from emulator.engine.api import SET
from emulator.engine.posts import K_PUT, new_posts
from emulator.memory import as_bytes
from memsem.access import Array
from memsem.checkfile import Kind
from memsem.operations import IMM_WORD, OWNER, PLAIN, Pending
from memsem.ordering import UNORDERED, OrderFlags, Ordering


class Movement(Ordering):
    """Calls that move elements."""

    def put(
        self,
        dst: int,
        src: npt.ArrayLike,
        offset: int = 0,
        charge_bytes: int | None = None,
        *,
        engine: str | None = None,
        order: str | OrderFlags = UNORDERED,
        cores: int | None = None,
    ) -> None:
        """Copy `src` to the elements from `offset` on of rank dst's array.

        Args:
            dst: target rank, may be my own or one that has exited.
            src: contiguous array of the window's dtype, taken in memory order (Python numbers are converted,
                bytes are taken as uint8); may be empty.
            offset: first element written, in the flattened array.
            charge_bytes: bytes charged to the fabric; by default the real ones.
            engine: "mte" or "dma"; by default the run's.
            order: see `OrderFlags`; by default none at all.
            cores: AIV cores of an mte transfer; by default the profile's.

        Completion: `src` may be reused on return; the bytes are in dst's memory after `quiet`.

        Raises:
            UsageError: no such rank, engine or order. OffsetError: out of range. DtypeError: wrong dtype.
            SizeError: non-contiguous source, negative charge. RankLostError: dst is known to be dead.
        """
        self._put(dst, src, offset, charge_bytes, engine, cores, self._flags(order))

    def put_nbi(
        self,
        dst: int,
        src: npt.ArrayLike,
        offset: int = 0,
        charge_bytes: int | None = None,
        *,
        engine: str | None = None,
        order: str | OrderFlags = UNORDERED,
        cores: int | None = None,
    ) -> Pending:
        """Start a `put`; arguments and errors as there.

        Completion: `src` must not change, and the bytes need not be there, until `wait` of the result or
        `quiet`. (They are taken at the call; with `check_races` a change in between is reported.)
        """
        flags = self._flags(order)
        pending = self._put(dst, src, offset, charge_bytes, engine, cores, flags, nbi=True)
        assert pending is not None
        return pending

    def _put(
        self,
        dst: int,
        src: npt.ArrayLike,
        offset: int,
        charge: int | None,
        engine: str | None,
        cores: int | None,
        flags: OrderFlags,
        word: int | None = None,
        op: int = 0,
        value: int = 0,
        nbi: bool = False,
        imm: bool = False,
    ) -> Pending | None:
        data, home, ops = self._source(src), self._rank(dst), self._ops
        self._check_range("put", offset, data.size)
        charged = self._charge(charge, data.nbytes)
        if word is not None:
            value = self._value(value)
        shape = ops.shape("put", home, charged, engine, cores)
        ops.enter()
        low, rd_below = self._byte(offset), int(flags.fence)
        ops.count(shape, int(word is not None))
        if shape == PLAIN and flags == UNORDERED and not (nbi or imm or rd_below):
            self._device.put(home, low, data, charged, word, op, value)
            self._note_put(home, low, data.nbytes, word, op, value, 0)
            return None
        post = new_posts(1, kind=K_PUT, peer=home, nbytes=charged, offset=low, real_bytes=data.nbytes,
                         order=flags.bits, rd_below=rd_below, value=value, **shape._asdict())  # fmt: skip
        if word is not None:
            post["word"], post["op"] = word, op
        if imm:
            post["note"], post["user_a"], post["user_b"] = 1, self._id, OWNER
        if flags.complete:
            post["stream"] = ops.stream(home)
        seq = ops.post(post, as_bytes(data), nbi)
        if imm:
            word, op, value = IMM_WORD, SET, self._device.rank << 40 | seq
        record = self._note_put(home, low, data.nbytes, word, op, value, flags.bits)
        return ops.started(seq, record, data, home, low) if nbi else None

    def _note_put(
        self, home: int, low: int, size: int, word: int | None, op: int, value: int, order: int
    ) -> int:
        if self._ops.check is None:
            return -1
        signal = {} if word is None else {"word": word, "op": op, "value": value}
        return self._ops.note(Kind.PUT, home=home, low=low, high=low + size, order=order, **signal)

    # --- get --------------------------------------------------------------------------------------------

    def get(
        self,
        src_rank: int,
        offset: int = 0,
        count: int | None = None,
        out: Array | None = None,
        charge_bytes: int | None = None,
        *,
        engine: str | None = None,
        order: str | OrderFlags = UNORDERED,
        cores: int | None = None,
    ) -> Array:
        """Copy `count` elements from `offset` on of rank src_rank's array, as they are when the response
        leaves.

        Args:
            count: by default the size of `out`, or everything from `offset` on.
            out: contiguous array of the window's dtype to fill; a new one-dimensional array by default.
            engine, cores: as `put`. order: only `fence` means anything to a get.

        Completion: the data are here on return. Blocks.

        Raises:
            UsageError: no such rank or engine. OffsetError: out of range. SizeError, DtypeError, StateError:
            an `out` of wrong size or dtype, or read-only. RankLostError: src_rank is known to be dead.
        """
        home = self._rank(src_rank)
        if out is not None:
            flat = self._out("get", out, count)
            count = out.size
        count = self._rest("get", offset) if count is None else count
        flags = self._flags(order)
        handle, _ = self._start_get("get", home, offset, count, charge_bytes, engine, cores, flags)
        data = self._device.wait_get(handle).view(self.dtype)
        if out is None:
            return data
        flat[:] = data
        return out

    def get_nbi(
        self,
        src_rank: int,
        offset: int,
        out: Array,
        charge_bytes: int | None = None,
        *,
        engine: str | None = None,
        order: str | OrderFlags = UNORDERED,
        cores: int | None = None,
    ) -> Pending:
        """Start a `get` into `out`; arguments and errors as there.

        Completion: `out` holds the data after `wait` of the result or `quiet`, and must not be used before.
        With 96 of mine under way, one more first waits for the oldest.
        """
        flat, flags, home = self._out("get_nbi", out, None), self._flags(order), self._rank(src_rank)
        self._ops.make_room()
        handle, record = self._start_get(
            "get_nbi", home, offset, out.size, charge_bytes, engine, cores, flags, Kind.GET_NBI
        )

        def finish() -> Array:
            flat[:] = self._device.wait_get(handle).view(self.dtype)
            return out

        return self._ops.started_get(handle, record, finish)

    def _start_get(
        self,
        call: str,
        home: int,
        offset: int,
        count: int,
        charge: int | None,
        engine: str | None,
        cores: int | None,
        flags: OrderFlags,
        kind: Kind = Kind.GET,
    ) -> tuple[int, int]:
        """Post a get from rank `home` of the machine; returns its handle and the number of its check
        record."""
        ops = self._ops
        self._check_range(call, offset, count)
        nbytes = count * self.dtype.itemsize
        charged, low = self._charge(charge, nbytes), self._byte(offset)
        shape = ops.shape("get", home, charged, engine, cores)
        ops.enter()
        ops.count(shape, 0)
        record = ops.note(kind, home=home, low=low, high=low + nbytes)
        if shape == PLAIN and not flags.fence:
            return self._device.start_get(home, low, nbytes, charged), record
        fields = {"rd_below": int(flags.fence)}
        return self._device.start_get(home, low, nbytes, charged, shape=shape, **fields), record
