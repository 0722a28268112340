"""Heartbeats of serving ranks: small puts over the fabric, a chain of watchers, and what follows silence.

    rank -> shell (lowest living rank of its node) -> control (lowest living rank) -> standby (the next one)

A rank beats at a step's boundary, at the first of each period, and while it sleeps for
want of requests. A beat is a put that sets its word at its watcher to the sender's clock. It leaves before
the record of the status exchange, so it is there when that exchange ends; a watcher looks then, once a
period. Who takes part in the exchange has beaten just before, however long the step took: slow is not silent.

Who acts, but has not been heard of for the time-out, is told to end (*fenced*: a word of its own), and does
so when its next beat is due. Who does not act at all keeps the others waiting; see `recovery.in_place`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from emulator import Device
from emulator.engine.api import SET
from emulator.faults import Fault
from emulator.probing import LinkProbe, Verdict
from emulator.transport import Area
from serving.recovery.outbox import Outbox
from serving.recovery.roles import Roles, exchange_wishes
from serving.recovery.times import RecoveryTimes

BEAT_BYTES = 64
"""As charged: a put's smallest unit."""


def watcher(rank: int, living: Sequence[int], per_node: int) -> int:
    """Who watches a rank; itself, where it is the last one.

    Args:
        rank: one of `living`.
        living: ascending.
        per_node: dies of a node.
    """
    shell = next(r for r in living if r // per_node == rank // per_node)
    if rank != shell:
        return shell
    if rank != living[0]:
        return living[0]
    return living[1] if len(living) > 1 else rank


class Beats:
    """Beats of one rank, and its watch over others.

    Attributes:
        last_ps: when it beat last.
        verdicts: (when, rank, what) of links that were probed.
    """

    def __init__(self, device: Device, times: RecoveryTimes) -> None:
        self._device, self._times, self._rank = device, times, device.rank
        n = device.num_ranks
        _, self._first, _ = device.symmetric.carve(Area.MANAGED, 0, "heartbeats", words=n + 1)
        self._fence_word = self._first + n
        self._silenced = False
        self._probe = LinkProbe(device)
        self.verdicts: list[tuple[int, int, str]] = []
        self._since: dict[int, int] = {}
        self.last_ps = device.now_ps
        self.regroup(range(n))
        device.faults.on("stale_heartbeat", self._silence)
        device.faults.on(
            "control_death", lambda _: device.faults.end(device.now_ps), lambda: self._control == device.rank
        )

    def regroup(self, living: Sequence[int]) -> None:
        """Watch among these from now on; the next step's boundary beats."""
        per_node = self._device.topology.dies_per_node
        self._control = living[0]
        self._to = watcher(self._rank, living, per_node)
        self._watched = [r for r in living if r != self._rank and watcher(r, living, per_node) == self._rank]
        for rank in self._watched:
            self._since.setdefault(rank, self._device.now_ps)
        self._due_ps = self._look_ps = 0

    def beat(self) -> None:
        """Beat if it is time; and end here if I was told to."""
        now_ps = self._device.now_ps
        if now_ps < self._due_ps:
            return
        self._due_ps = (now_ps // self._times.period_ps + 1) * self._times.period_ps
        if not self._silenced:
            self.last_ps = now_ps
            self._device.engine.put(self._to, BEAT_BYTES, None, self._first + self._rank, SET, now_ps)
        if self._device.faults.active and self._device.read(self._fence_word):
            self._device.faults.end(self.last_ps)

    def look(self) -> None:
        """Fence those I watch and have not heard of for the time-out, if it is time to look."""
        now_ps = self._device.now_ps
        if not self._watched or now_ps < self._look_ps:
            return
        self._look_ps = (now_ps // self._times.period_ps + 1) * self._times.period_ps
        for rank in self._watched:
            if now_ps - self.heard_ps(rank) > self._times.timeout_ps and self._is_silent(rank):
                self._device.engine.put(rank, BEAT_BYTES, None, self._fence_word, SET, 1)

    def _is_silent(self, rank: int) -> bool:
        """Whether it is the rank that says nothing, and not that its beats wait behind other traffic."""
        verdict = self._probe.probe(rank, self._times.period_ps // 4)
        self.verdicts.append((self._device.now_ps, rank, verdict.value))
        return verdict is not Verdict.SATURATED

    def heard_ps(self, rank: int) -> int:
        """When a rank I watch, or did, sent its last beat; when I began to, if there was none since."""
        return max(self._since[rank], self._device.read(self._first + rank))

    def fence_ps(self, silent_ps: int) -> int:
        """When I am declared dead if I do nothing from `silent_ps` on."""
        return max(silent_ps, self.last_ps + self._times.timeout_ps)

    def _silence(self, _: Fault) -> Callable[[], None]:
        """Act, but send no beat."""
        self._silenced = True

        def undo() -> None:
            self._silenced = False

        return undo


class Status(Protocol):
    """See `serving.engine.StatusBoard`."""

    def exchange(self, word: int) -> NDArray[np.int64]: ...


class BeatingStatus:
    """A status exchange; before it a beat, and a look after the tokens on their way; in it the wishes of who
    comes and goes; after it a look after the others."""

    def __init__(self, status: Status, beats: Beats, outbox: Outbox, roles: Roles) -> None:
        self._status, self._beats, self._outbox, self._roles = status, beats, outbox, roles

    def exchange(self, word: int) -> NDArray[np.int64]:
        """See `serving.engine.StatusBoard`. Raises RolesChanged."""
        self._beats.beat()
        self._outbox.look()
        words = exchange_wishes(self._status.exchange, word, self._roles)
        self._beats.look()
        return words


class BeatingClock:
    """A device's clock whose long sleeps are beaten through. Implements `serving.engine.Clock`."""

    def __init__(self, device: Device, beats: Beats, period_ps: int) -> None:
        self._device, self._beats, self._period_ps = device, beats, period_ps

    @property
    def now_ps(self) -> int:
        return self._device.now_ps

    def sleep_ps(self, ps: int) -> None:
        """Let virtual time pass, and beat once a period."""
        end_ps = self.now_ps + ps
        while (left_ps := end_ps - self.now_ps) > 0:
            self._device.sleep_ps(min(left_ps, self._period_ps))
            self._beats.beat()
