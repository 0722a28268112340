"""What every member of a group says, told to all, before the group has words and a channel: by messages.

    round k: send all I know to rank + 2**k, receive as much from rank - 2**k

As `memsem.agreement`, with a deadline in virtual time.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from collectives.agreement import CollectiveMismatchError, CollectiveTimeoutError
from emulator.engine.reports import ranges
from emulator.errors import DeadlockError
from emulator.remarks import remark, remarks
from memsem.agreement import rounds
from memsem.communicator import Communicator
from memsem.mailbox import Bytes

_UNLIMITED = 1 << 62


def tell_all(comm: Communicator, mine: Any, group: str, timeout_ps: int | None) -> list[Any]:
    """Return what each member says, by rank. Collective.

    Args:
        comm: contexts of this meeting alone. group: its name, for errors.
        timeout_ps: longest it may take, virtual time; None for ever.

    Raises:
        CollectiveTimeoutError: too late. CollectiveMismatchError: nobody can go on, and some never came.
    """
    device, known = comm.endpoint.device, {comm.rank: mine}
    order = list(comm.members)
    whom = ranges(order) if order == sorted(order) else f"ranks {order[:20]} in this order"
    remark(device.board, device.rank, f"in the making of group {group} of {whom}")
    until_ps = None if timeout_ps is None else device.now_ps + timeout_ps
    for step in rounds(comm.size):
        try:
            heard = _swap(comm, step, np.frombuffer(pickle.dumps(known), np.uint8), until_ps)
        except DeadlockError as error:
            text = (
                f"{_unheard(comm.members, known)} not heard of in the first collective of group {group} of "
                f"{ranges(sorted(comm.members))}; they never came to it, wait for one who did not come, or "
                "make the group of other ranks"
            )
            raise CollectiveMismatchError(f"{text}; {error.message}", group=group, call=1) from error
        if heard is None:
            text = f"the first collective of group {group} took longer than {timeout_ps} ps"
            raise CollectiveTimeoutError(
                f"{text} on rank {device.rank}; not heard of: {_unheard(comm.members, known)}"
                f"{remarks(device.board)}",
                group=group, call=1, timeout_ps=timeout_ps,
            )  # fmt: skip
        known |= pickle.loads(heard.tobytes())
    remark(device.board, device.rank, "")
    return [known[rank] for rank in range(comm.size)]


def _unheard(members: Sequence[int], known: dict[int, Any]) -> str:
    return ranges(sorted(member for rank, member in enumerate(members) if rank not in known))


def _swap(comm: Communicator, step: int, data: Bytes, until_ps: int | None) -> Bytes | None:
    """Send to the rank `step` on, receive from the one `step` before; None when it is too late."""
    endpoint, device, size = comm.endpoint, comm.endpoint.device, comm.size
    dest, source = comm.members[(comm.rank + step) % size], comm.members[(comm.rank - step) % size]
    context, heard = comm.context | 1, list[Bytes]()
    call = f"the making of a group of {ranges(list(comm.members))}"
    arrives = endpoint.receive(context, source, step, heard.append, _UNLIMITED, call, blocking=True)
    leaves = endpoint.send(context, dest, step, data, call, blocking=False)
    while not (arrives.done and leaves.done):
        left = None if until_ps is None else max(0, until_ps - device.now_ps)
        if not device.wait_inbox(device.inbox_seen, left):
            return None
    endpoint.charge(arrives)
    return heard[0]
