"""RDMA verbs under the names of pyverbs: contexts, domains, regions, queues, queue pairs, work requests.

    from memsem.verbs import *          # as `from pyverbs.enums import *` and friends; no module names

What differs from a real NIC: addresses are byte offsets in a rank's heap, LIDs are rank + 1, and time is
virtual. See each module for its source.
"""

from memsem.verbs import enums
from memsem.verbs.ah import AH
from memsem.verbs.connect import Exchange
from memsem.verbs.context import Context
from memsem.verbs.cq import CQ, CompChannel
from memsem.verbs.device_attr import AsyncEvent
from memsem.verbs.enums import *  # noqa: F403
from memsem.verbs.mr import MR
from memsem.verbs.pd import PD
from memsem.verbs.qp import QP
from memsem.verbs.qpcap import AHAttr, QPAttr, QPCap, QPInitAttr
from memsem.verbs.srq import SRQ, SrqAttr, SrqInitAttr
from memsem.verbs.verbs_error import (
    CQOverrunError,
    PyverbsError,
    PyverbsRDMAError,
    PyverbsUserError,
    QPStateError,
)
from memsem.verbs.wr import SGE, WC, RecvWR, SendWR

__all__ = [
    "AH",
    "AHAttr",
    "AsyncEvent",
    "CQ",
    "CQOverrunError",
    "CompChannel",
    "Context",
    "Exchange",
    "MR",
    "PD",
    "PyverbsError",
    "PyverbsRDMAError",
    "PyverbsUserError",
    "QP",
    "QPAttr",
    "QPCap",
    "QPInitAttr",
    "QPStateError",
    "RecvWR",
    "SGE",
    "SRQ",
    "SendWR",
    "SrqAttr",
    "SrqInitAttr",
    "WC",
]
__all__ += [name for name in vars(enums) if name.startswith(("IBV_", "ibv_"))]
