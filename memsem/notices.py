"""Putting with a notice: a signal word that changes after the data, or a record with a number.

    put_signal     the word changes after the data that came with it; other data are not ordered by it
    write_notify   the same, named as URMA names it
    write_imm      data, and a record with a number for the owner to take, in the order they came

Source: OpenSHMEM 1.5, 9.8 (put-with-signal); URMA WRITE_NOTIFY; IBV_WR_RDMA_WRITE_WITH_IMM.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from emulator.engine.api import SET
from memsem.access import COMPARISONS, OPERATIONS
from memsem.batches import Batches
from memsem.checkfile import Kind
from memsem.operations import IMM_WORD, Immediate, Pending
from memsem.ordering import UNORDERED, OrderFlags

IMMEDIATE_BITS = 32


class Notices(Batches):
    """Calls that tell the target; taking immediates."""

    def put_signal(
        self,
        dst: int,
        src: npt.ArrayLike,
        offset: int,
        signal: int,
        value: int,
        op: str = "set",
        charge_bytes: int | None = None,
        *,
        engine: str | None = None,
        order: str | OrderFlags = UNORDERED,
        cores: int | None = None,
    ) -> None:
        """`put`, and set signal word `signal` of dst to `value` (op "set") or add it ("add") after the data.

        Zero elements still signal. A rank that sees the signal sees these data, and only these for certain.

        Completion: `src` may be reused on return; data and signal are at dst after `quiet`.

        Raises:
            UsageError: as `put`; no such operation. OffsetError: no such signal.
        """
        flags, word, what = self._flags(order), self._word(signal), self._operation(op)
        self._put(dst, src, offset, charge_bytes, engine, cores, flags, word, what, value)

    def put_signal_nbi(
        self,
        dst: int,
        src: npt.ArrayLike,
        offset: int,
        signal: int,
        value: int,
        op: str = "set",
        charge_bytes: int | None = None,
        *,
        engine: str | None = None,
        order: str | OrderFlags = UNORDERED,
        cores: int | None = None,
    ) -> Pending:
        """Start a `put_signal`; arguments and errors as there.

        Completion: `src` must not change before `wait` of the result or `quiet`.
        """
        flags, word, what = self._flags(order), self._word(signal), self._operation(op)
        pending = self._put(dst, src, offset, charge_bytes, engine, cores, flags, word, what, value, nbi=True)
        assert pending is not None
        return pending

    def write_notify(
        self,
        dst: int,
        src: npt.ArrayLike,
        offset: int,
        signal: int,
        value: int,
        *,
        engine: str | None = None,
        order: str | OrderFlags = UNORDERED,
        cores: int | None = None,
    ) -> None:
        """URMA's write with notify: `put_signal` that sets the word; nothing to write is a plain notice."""
        self.put_signal(dst, src, offset, signal, value, engine=engine, order=order, cores=cores)

    def write_imm(
        self,
        dst: int,
        src: npt.ArrayLike,
        offset: int,
        imm: int,
        charge_bytes: int | None = None,
        *,
        engine: str | None = None,
        order: str | OrderFlags = UNORDERED,
        cores: int | None = None,
    ) -> None:
        """`put`, and leave a record with `imm` for dst after the data; dst takes it with `poll_imm`.

        Args:
            imm: 0 to 2^32 - 1, handed over as it is; zero elements still leave a record.

        Completion: as `put`; a rank that has the record sees the data of this call.

        Raises:
            SizeError: `imm` does not fit 32 bits. Otherwise as `put`.
        """
        imm = self._integer("write_imm: imm", imm, 0, (1 << IMMEDIATE_BITS) - 1)
        flags = self._flags(order)
        self._put(dst, src, offset, charge_bytes, engine, cores, flags, None, 0, imm, imm=True)

    def poll_imm(self) -> Immediate | None:
        """Take the oldest record that `write_imm` left for me in this window; None if there is none now.

        Completion: the data that came with it are in `local`. Costs what `test` costs.
        """
        self._ops.enter()
        waiting = self._ops.immediates.setdefault(self._id, [])
        if not waiting:
            self._device.test_inbox(self._device.inbox_seen)
        return self._take_imm() if waiting else None

    def wait_imm(self) -> Immediate:
        """Take the oldest record that `write_imm` left for me in this window; waits until there is one.

        Completion: the data that came with it are in `local`.

        Raises:
            DeadlockError: none can come.
        """
        self._ops.enter()
        waiting = self._ops.immediates.setdefault(self._id, [])
        while not waiting:
            self._device.wait_inbox(self._device.inbox_seen)
        return self._take_imm()

    def _take_imm(self) -> Immediate:
        record = self._ops.immediates[self._id].pop(0)
        token = record.rank << 40 | record.seq
        where = {"home": self._device.rank, "word": IMM_WORD}
        self._ops.note(Kind.WAIT, op=COMPARISONS["eq"], value=token, seen=token, **where)
        rank = record.rank if self.team is None else self.team.members.index(record.rank)
        return Immediate(rank, record.value, record.time_ps)

    def signal_set(self, dst: int, signal: int, value: int) -> None:
        """Set signal word `signal` of dst; a `put_signal` without data."""
        self._put(dst, self._nothing, 0, None, None, None, UNORDERED, self._word(signal), SET, value)

    def signal_add(self, dst: int, signal: int, value: int) -> None:
        """Add to signal word `signal` of dst; a `put_signal` without data."""
        what = OPERATIONS["add"]
        self._put(dst, self._nothing, 0, None, None, None, UNORDERED, self._word(signal), what, value)

    @property
    def _nothing(self) -> npt.NDArray[np.generic]:
        return np.empty(0, self.dtype)
