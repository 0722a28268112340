"""Signal words: 64-bit words of a window's owner that others set or add to, and that it waits for.

A wait may be ended by any signal that makes the comparison true: with several additions under way, `ge 1`
says that one of them is here, not which (NVIDIA/nvshmem #84). How signals are sent is `notices`.

Source: OpenSHMEM 1.5, 9.9 (wait and test, their any, all and some forms).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emulator.engine.api import SET, TIMEOUT
from emulator.engine.posts import K_LOCAL, new_posts
from emulator.errors import SizeError
from emulator.tracing import Op
from memsem.access import COMPARISONS
from memsem.checkfile import Kind
from memsem.happens_before import holds
from memsem.notices import Notices


class Signals(Notices):
    """Calls with my own signal words."""

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
        word, how, value = self._word(signal), self._comparison(cmp), self._value(value)
        timeout_ps = self._timeout(timeout_ps)
        self._ops.enter()
        if self._device.wait([(word, how, value)], timeout_ps=timeout_ps) == TIMEOUT:
            return None
        seen = self._device.read(word)
        self._ops.note(Kind.WAIT, home=self._device.rank, word=word, op=how, value=value, seen=seen)
        return seen

    def wait_until_all(
        self,
        signals: Sequence[int],
        cmp: str,
        values: int | Sequence[int],
        timeout_ps: int | None = None,
    ) -> bool:
        """Wait until all of these words of mine compare as asked at one instant; of none: at once.

        Args:
            signals: words; values: one for all, or one each.

        Returns: False if `timeout_ps` passed first.

        Completion, Raises: as `signal_wait_until`; SizeError when the lengths differ.
        """
        conditions, timeout_ps = self._conditions(signals, cmp, values), self._timeout(timeout_ps)
        self._ops.enter()
        if conditions and self._device.wait(conditions, timeout_ps=timeout_ps) == TIMEOUT:
            return False
        for condition in conditions:
            self._note_wait(condition)
        return True

    def wait_until_any(
        self,
        signals: Sequence[int],
        cmp: str,
        values: int | Sequence[int],
        timeout_ps: int | None = None,
    ) -> int | None:
        """Wait until any of these words of mine compares as asked.

        Returns:
            place of the first in `signals` that does, or None if `timeout_ps` passed first.

        Completion, Raises: as `wait_until_all`; SizeError when there are no signals, since none can come.
        """
        conditions, timeout_ps = self._conditions(signals, cmp, values), self._timeout(timeout_ps)
        if not conditions:
            raise self._error(SizeError, "wait_until_any: no signals to wait for", 0)
        self._ops.enter()
        found = self._device.wait(conditions, any_=True, timeout_ps=timeout_ps)
        if found == TIMEOUT:
            return None
        self._note_wait(conditions[found])
        return found

    def wait_until_some(
        self,
        signals: Sequence[int],
        cmp: str,
        values: int | Sequence[int],
        timeout_ps: int | None = None,
    ) -> list[int]:
        """Wait until any of these words of mine compares as asked, then look at all of them.

        Returns:
            places in `signals` of those that do, ascending; empty if `timeout_ps` passed first.

        Completion, Raises: as `wait_until_any`.
        """
        first = self.wait_until_any(signals, cmp, values, timeout_ps)
        if first is None:
            return []
        conditions = self._conditions(signals, cmp, values)
        return [at for at, each in enumerate(conditions) if at == first or self._holds_now(each)]

    def test(self, signal: int, cmp: str, value: int) -> bool:
        """Does my signal word compare as asked now? Costs a poll; see `Engine.test`."""
        condition = self._word(signal), self._comparison(cmp), self._value(value)
        self._ops.enter()
        return self._test(condition)

    def test_all(self, signals: Sequence[int], cmp: str, values: int | Sequence[int]) -> bool:
        """Do all of these words of mine compare as asked? Costs a poll for each up to the first that does
        not; of none: yes."""
        conditions = self._conditions(signals, cmp, values)
        self._ops.enter()
        return all(self._test(condition) for condition in conditions)

    def test_any(self, signals: Sequence[int], cmp: str, values: int | Sequence[int]) -> int | None:
        """Place of the first of these words of mine that compares as asked; None if none does. Costs a look
        at each, and a poll of the last when none does."""
        conditions = self._conditions(signals, cmp, values)
        self._ops.enter()
        for at, condition in enumerate(conditions):
            if self._holds_now(condition):
                return at
        if conditions and self._test(conditions[-1]):
            return len(conditions) - 1
        return None

    def signal_read(self, signal: int) -> int:
        """Value of my signal word, everything up to now included."""
        word = self._word(signal)
        self._ops.enter()
        seen = self._device.read(word)
        equal = COMPARISONS["eq"]
        self._ops.note(Kind.WAIT, home=self._device.rank, word=word, op=equal, value=seen, seen=seen)
        return seen

    def reset(self, signal: int, value: int = 0) -> None:
        """Set my own signal word now: after what was delivered up to now, before what comes later.

        A signal that was sent and has not come yet is then *not* part of it, and one that has come is lost:
        reset only what no rank can be signalling (wait for an acknowledgement first), or count epochs.
        """
        word, value = self._word(signal), self._value(value)
        self._ops.enter()
        post = new_posts(1, kind=K_LOCAL, word=word, op=SET, value=value, peer=self._device.rank)
        self._device.post(post, None, Op.PUT)
        self._ops.note(Kind.RESET, home=self._device.rank, word=word, value=value)

    def _test(self, condition: tuple[int, int, int]) -> bool:
        found = self._device.test(*condition)
        if found:
            self._note_wait(condition)
        return found

    def _holds_now(self, condition: tuple[int, int, int]) -> bool:
        word, how, value = condition
        found = holds(how, self._device.read(word), value)
        if found:
            self._note_wait(condition)
        return found

    def _note_wait(self, condition: tuple[int, int, int]) -> None:
        word, how, value = condition
        self._ops.note(Kind.WAIT, home=self._device.rank, word=word, op=how, value=value)

    def _timeout(self, timeout_ps: int | None) -> int | None:
        if timeout_ps is None:
            return None
        return self._integer("window: timeout_ps", timeout_ps, 0, 1 << 60)

    def _comparison(self, cmp: str) -> int:
        return COMPARISONS[self._choose("cmp", cmp, COMPARISONS)]

    def _conditions(
        self, signals: Sequence[int], cmp: str, values: int | Sequence[int]
    ) -> list[tuple[int, int, int]]:
        how, words = self._comparison(cmp), [self._word(signal) for signal in signals]
        several = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)
        wanted = [self._value(v) for v in (values if several else [values] * len(words))]  # type: ignore[union-attr]
        if len(wanted) != len(words):
            message = f"window: {len(words)} signals and {len(wanted)} values; one for all or one each"
            raise self._error(SizeError, message, len(wanted))
        return [(word, how, value) for word, value in zip(words, wanted, strict=True)]
