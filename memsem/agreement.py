"""How the ranks of a communicator agree: everybody learns what everybody says, in log2(n) rounds.

    round k: send all I know to rank + 2**k, receive as much from rank - 2**k

After round k each rank knows what 2**(k + 1) ranks before and including it said. A barrier is the same with
nothing to say.

Source: Hensgen, Finkel and Manber, "Two Algorithms for Barrier Synchronization" (dissemination), 1988.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from memsem.mailbox import Bytes

if TYPE_CHECKING:
    from memsem.communicator import Communicator

_UNLIMITED = 1 << 62


def gather_all(comm: Communicator, mine: Any) -> list[Any]:
    """Return what each rank of `comm` passed as `mine`, by rank. Collective."""
    known = {comm.rank: mine}
    for step in rounds(comm.size):
        heard = _exchange(comm, step, np.frombuffer(pickle.dumps(known), np.uint8))
        known |= pickle.loads(heard.tobytes())
    return [known[rank] for rank in range(comm.size)]


def meet(comm: Communicator) -> None:
    """Return when every rank of `comm` has called this. Collective."""
    for step in rounds(comm.size):
        _exchange(comm, step, np.empty(0, np.uint8))


def rounds(size: int) -> list[int]:
    """Return the distances 1, 2, 4, … below `size`."""
    return [1 << k for k in range((size - 1).bit_length())]


def _exchange(comm: Communicator, step: int, data: Bytes) -> Bytes:
    """Send to the rank `step` on, receive from the one `step` before, in the context of agreements."""
    endpoint, rank, size = comm.endpoint, comm.rank, comm.size
    dest, source = comm.members[(rank + step) % size], comm.members[(rank - step) % size]
    context, call, heard = comm.context | 1, f"an agreement of {size} ranks", list[Bytes]()
    arrives = endpoint.receive(context, source, step, heard.append, _UNLIMITED, call, blocking=True)
    leaves = endpoint.send(context, dest, step, data, call, blocking=False)
    endpoint.wait(lambda: arrives.done and leaves.done, call)
    endpoint.charge(arrives)
    return heard[0]
