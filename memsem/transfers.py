"""What every point-to-point call does: check, post, and make the request that stands for it."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from memsem.bufspec import NOTHING, BufSpec, parse
from memsem.communicator import Communicator
from memsem.mailbox import Bytes, Operation
from memsem.probed import Message
from memsem.request import Request
from memsem.status import ANY_SOURCE, ANY_TAG, PROC_NULL, Status

UNLIMITED = 1 << 62
"""More bytes than any message has."""
Found = tuple[int, int, int]
"""Source (rank here), tag and bytes of a message."""


class Transfers(Communicator):
    """A communicator that can post sends and receives."""

    def _send(self, call: str, buf: BufSpec, dest: int, tag: int, **how: bool) -> Request:
        """Post a send of a buffer; `how` as `Endpoint.send`."""
        buffer = NOTHING if dest == PROC_NULL else parse(buf, False)
        return Request.of(self, self._post(buffer.pack(), call, dest, tag, **how))

    def _object(self, call: str, obj: Any, dest: int, tag: int, **how: bool) -> Request:
        """Post a send of a pickled object."""
        self._check_dest(dest, tag)
        data = b"" if dest == PROC_NULL else pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
        return Request.of(self, self._post(np.frombuffer(data, np.uint8), call, dest, tag, **how))

    def _post(self, data: Bytes, call: str, dest: int, tag: int, kind: int = 0, **how: bool) -> Operation:
        self._check_dest(dest, tag)
        if dest == PROC_NULL:
            return Operation(call, done=True)
        return self.endpoint.send(
            self.context,
            self.members[dest],
            tag,
            data,
            f"{call}(dest={dest}, tag={tag})",
            blocking=how.get("blocking", False),
            synchronous=how.get("synchronous", False),
            detached=how.get("detached", False),
            kind=kind,
        )

    def _receive(self, call: str, buf: BufSpec, source: int, tag: int, blocking: bool = False) -> Request:
        """Post a receive into a buffer."""
        buffer = NOTHING if source == PROC_NULL else parse(buf, True)
        return Request.of(self, self._expect(call, buffer.unpack, buffer.nbytes, source, tag, blocking))

    def _check_receive(self, buf: BufSpec, source: int, tag: int) -> None:
        """Raise what `_receive` would, and post nothing."""
        self._check_source(source, tag)
        if source != PROC_NULL:
            parse(buf, True)

    def _receive_object(self, call: str, room: int, source: int, tag: int, blocking: bool = False) -> Request:
        """Post a receive of a pickled object of at most `room` bytes."""
        heard: list[Bytes] = []
        operation = self._expect(call, heard.append, room, source, tag, blocking)
        return Request.of(self, operation, decode=lambda: pickle.loads(heard[0].tobytes()) if heard else None)

    def _expect(self, call: str, sink: Any, room: int, source: int, tag: int, blocking: bool) -> Operation:
        self._check_source(source, tag)
        if source == PROC_NULL:
            return Operation(call, done=True, source=PROC_NULL)
        member = source if source == ANY_SOURCE else self.members[source]
        name = f"{call}(source={_any(source)}, tag={_any(tag)})"
        return self.endpoint.receive(self.context, member, tag, sink, room, name, blocking=blocking)

    # --- finding messages -------------------------------------------------------------------------------

    def _probe(self, call: str, source: int, tag: int, status: Status | None, wait: bool) -> Found | None:
        """Look for a message no receive has taken; `wait` until there is one. Fills `status`."""
        self._check_source(source, tag)
        if source == PROC_NULL:
            (status or Status()).fill(PROC_NULL, ANY_TAG, 0)
            return PROC_NULL, ANY_TAG, 0
        endpoint = self.endpoint
        member = source if source == ANY_SOURCE else self.members[source]

        def look() -> Found | None:
            return endpoint.found(self.context, member, tag)

        name = f"{call}(source={_any(source)}, tag={_any(tag)})"
        if wait:
            endpoint.wait(lambda: look() is not None, name)
        elif look() is None:
            endpoint.poll(name)
        found = look()
        if found is None:
            return None
        here = (self.rank_of(found[0]), *found[1:])
        (status or Status()).fill(*here)
        return here

    def _taken(self, found: Found) -> Message:
        """Take a message just found: a receive that only it can match, and that it has at once."""
        source, tag, nbytes = found
        if source == PROC_NULL:
            return Message(self, Operation("Mprobe", done=True, source=PROC_NULL), [])
        heard: list[Bytes] = []
        operation = self._expect("Mprobe", heard.append, UNLIMITED, source, tag, blocking=True)
        self.endpoint.wait(lambda: operation.matched, operation.call)
        return Message(self, operation, heard)


def _any(number: int) -> str:
    return "any" if number == -1 else str(number)
