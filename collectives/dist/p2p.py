"""Send and receive of a process group, as messages of `memsem.message`: matched in virtual time by tag.

A group's messages have a match context of their own, made from its name, which all its ranks know without
asking. Communicators of `memsem.mpi` use small numbers, groups of the collectives those from 2**30 on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import torch

from collectives.agreement import CollectiveTimeoutError
from collectives.dist.tensors import Array, Landing, flat, landing
from collectives.dist.work import Handle
from emulator import Device
from emulator.errors import DtypeError, SizeError
from memsem.endpoint import CONTEXTS, Endpoint, endpoint_of
from memsem.mailbox import Bytes, Operation
from memsem.status import ANY_SOURCE

_FIRST, _NAMED = 1 << 29, 1 << 28
_DTYPES = (
    None, torch.uint8, torch.int8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.int16,
    torch.float16, torch.bfloat16, torch.int32, torch.float32, torch.int64, torch.float64, torch.complex64,
    torch.complex128,
)  # fmt: skip
"""Kinds of a message's elements; the place is what travels. Others travel as 0 and are not compared."""


def context_of(name: str) -> int:
    """Return the match context of the group torch calls `name`: a number, or a hash of its ranks."""
    if name.isdecimal() and int(name) < _NAMED:
        ident = _FIRST | int(name)
    else:
        ident = _FIRST | _NAMED | zlib.crc32(name.encode()) >> 4
    return CONTEXTS | ident << 1


class Messages:
    """Messages of one group.

    Args:
        name: of the group. members: its ranks in the whole run, by group rank.
        limit_ps: returns the group's time-out.
    """

    def __init__(
        self, device: Device, name: str, members: Sequence[int], limit_ps: Callable[[], int | None]
    ) -> None:
        self._endpoint: Endpoint = endpoint_of(device)
        self._context, self._members, self._limit_ps = context_of(name), members, limit_ps
        self._places = {member: place for place, member in enumerate(members)}

    def send(self, tensor: torch.Tensor, dest: int, tag: int) -> MessageWork:
        """Start a send. The tensor may be changed on return."""
        data = flat(tensor).view(np.uint8)
        call = f"send of {data.size} bytes to group rank {dest}, tag {tag}"
        operation = self._endpoint.send(
            self._context, self._members[dest], tag, data, call, blocking=False, kind=_kind_of(tensor)
        )
        return MessageWork(self, operation, [tensor], None)

    def receive(self, tensor: torch.Tensor, source: int | None, tag: int) -> MessageWork:
        """Start a receive; from anyone where `source` is None."""
        place = landing([tensor])
        room = place.array.view(np.uint8)
        whom = ANY_SOURCE if source is None else self._members[source]
        said = "anyone" if source is None else f"group rank {source}"
        operation = self._endpoint.receive(
            self._context, whom, tag, lambda data: _store(room, data), room.size,
            f"recv of {room.size} bytes from {said}, tag {tag}", blocking=False,
        )  # fmt: skip
        return MessageWork(self, operation, [tensor], place)

    def finish(self, operation: Operation, limit_ps: int | None) -> None:
        """Wait for an operation's end and pay for it.

        Raises:
            CollectiveTimeoutError: the time-out passed first. DeadlockError, RankLostError: it can never end.
        """
        device, call = self._endpoint.device, operation.call
        limit_ps = self._limit_ps() if limit_ps is None else limit_ps
        if limit_ps is None:
            self._endpoint.wait(lambda: operation.done, call)
        else:
            ends_ps = device.now_ps + limit_ps
            while not operation.done:
                left_ps = ends_ps - device.now_ps
                if left_ps <= 0 or not device.wait_inbox(device.inbox_seen, left_ps):
                    text = f"{call}: took longer than {limit_ps} ps (rank {device.rank})"
                    raise CollectiveTimeoutError(text, rank=device.rank, timeout_ps=limit_ps)
        self._endpoint.charge(operation)

    def poll(self, operation: Operation) -> bool:
        """Look once whether it has ended."""
        if not operation.done:
            self._endpoint.poll(operation.call)
        return operation.done

    def place_of(self, rank: int) -> int:
        """Return the group rank of a rank of the whole run."""
        return self._places[rank]


class MessageWork(Handle):
    """A send or a receive under way."""

    def __init__(
        self, messages: Messages, operation: Operation, tensors: list[torch.Tensor], place: Landing | None
    ) -> None:
        super().__init__(tensors)
        self._messages, self._operation, self._place = messages, operation, place

    def _finish(self, limit_ps: int | None) -> None:
        self._messages.finish(self._operation, limit_ps)
        if self._place is None:
            return
        came, room = self._operation.nbytes, self._operation.capacity
        kind, mine = self._operation.kind, _kind_of(self.results[0])
        source = self._messages.place_of(self._operation.source)
        if came != room:
            raise SizeError(f"{self._operation.call}: {came} bytes came from group rank {source}")
        if kind and mine and kind != mine:
            text = f"{self._operation.call}: {_DTYPES[kind]} came from group rank {source}"
            raise DtypeError(f"{text}, the tensor is {_DTYPES[mine]}")
        self._place.settle()

    def _poll(self) -> bool:
        return self._messages.poll(self._operation)

    def _source_rank(self) -> int:
        """Return the group rank a receive has heard from."""
        return self._messages.place_of(self._operation.source)

    source_rank = _source_rank


def _kind_of(tensor: torch.Tensor) -> int:
    return _DTYPES.index(tensor.dtype) if tensor.dtype in _DTYPES else 0


def _store(room: Array, data: Bytes) -> None:
    """Put a message where it belongs; what is too long for the place is cut and reported at the wait."""
    size = min(room.size, data.size)
    room[:size] = data[:size]
