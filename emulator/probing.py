"""Link probing with dummy payloads: is a peer's link down, or is the peer only busy receiving?

A probe writes bytes to the peer that go nowhere, and reads bytes nobody wants, a few times in a row. That
needs no help of the peer's program, takes the ports its traffic takes, and is charged. What is written queues
behind what the peer receives; what is read only behind what it sends. By what came back (`judge`, pure):

    clear       everything is back in about the time an idle link takes
    saturated   everything read is back, what was written is late or still queues
    down        nothing is back
    unsteady    some is back, some is not: a flapping or lossy link
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from emulator.device import Device
from emulator.engine.posts import DONE_ALWAYS, K_GET, K_PUT, ST_OK, new_posts
from emulator.npu import ceil_ps
from emulator.posting import OWNER_PROBES, InboxRecord

PAYLOAD_BYTES = 4096
PROBES = 3
LATE = 3
"""A probe that takes so many times what it takes over an idle link is late."""
_SHIFT = 56


class Verdict(Enum):
    """What probes say of a link."""

    CLEAR = "clear"
    SATURATED = "saturated"
    DOWN = "down"
    UNSTEADY = "unsteady"


class Echo(NamedTuple):
    """A probe: how long its write and its read took, ps; None: lost, or not back yet."""

    write_ps: int | None
    read_ps: int | None


def judge(echoes: Sequence[Echo], idle_ps: int) -> Verdict:
    """Say what the probes of one link mean.

    Args:
        echoes: at least one.
        idle_ps: what the slower half of a probe takes over an idle link.
    """
    reads = [echo.read_ps for echo in echoes if echo.read_ps is not None]
    writes = [echo.write_ps for echo in echoes if echo.write_ps is not None]
    if not reads and not writes:
        return Verdict.DOWN
    if len(reads) < len(echoes):
        return Verdict.UNSTEADY
    late = len(writes) < len(echoes) or max(*reads, *writes) > LATE * idle_ps
    return Verdict.SATURATED if late else Verdict.CLEAR


class LinkProbe:
    """Probes of one rank. Make it once; it takes its own records from the inbox.

    Args:
        device: this rank's.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._next = device, 0
        self._open: dict[int, int] = {}
        self._back: dict[int, int | None] = {}
        device.register_inbox(OWNER_PROBES, self._on_record)

    def idle_ps(self, peer: int, nbytes: int = PAYLOAD_BYTES) -> int:
        """What the slower half of a probe takes over an idle link: there, the bytes, and back."""
        config, where = self._device.engine.config, self._device.topology.link_class(self._device.rank, peer)
        write = config.put_latency_ps[where] + config.ack_latency_ps[where]
        read = config.request_latency_ps[where] + config.response_latency_ps[where]
        return max(
            write + ceil_ps(nbytes, config.write_bytes_per_s[where]),
            read + ceil_ps(nbytes, config.read_bytes_per_s[where]),
        )

    def probe(self, peer: int, patience_ps: int, count: int = PROBES, nbytes: int = PAYLOAD_BYTES) -> Verdict:
        """Probe a peer and wait for what comes back.

        Args:
            patience_ps: after which what is not back counts as lost.
            count: probes; all but the first leave spread over the first half of the patience.
        """
        device, end_ps = self._device, self._device.now_ps + patience_ps
        first, self._next = self._next, self._next + 2 * count
        for number in range(first, self._next, 2):
            if number != first:
                device.sleep_ps(patience_ps // (2 * count))
            self._send(number, peer, nbytes)
        while any(number not in self._back for number in range(first, self._next)):
            left_ps = end_ps - device.now_ps
            if left_ps <= 0 or not device.wait_inbox(device.inbox_seen, left_ps):
                break
        times = [self._back.pop(number, None) for number in range(first, self._next)]
        for number in range(first, self._next):
            self._open.pop(number, None)
        echoes = [Echo(*pair) for pair in zip(times[::2], times[1::2], strict=True)]
        return judge(echoes, self.idle_ps(peer, nbytes))

    def _send(self, number: int, peer: int, nbytes: int) -> None:
        """The two halves of a probe."""
        self._open[number] = self._open[number + 1] = self._device.now_ps
        users = [OWNER_PROBES << _SHIFT | half for half in (number, number + 1)]
        kinds = [K_PUT, K_GET]
        posts = new_posts(2, kind=kinds, peer=peer, nbytes=nbytes, done=DONE_ALWAYS, user_b=users)
        self._device.post(posts)

    def _on_record(self, record: InboxRecord) -> None:
        number = record.user_b & ((1 << _SHIFT) - 1)
        if (sent_ps := self._open.get(number)) is not None:
            self._back[number] = record.time_ps - sent_ps if record.status == ST_OK else None
