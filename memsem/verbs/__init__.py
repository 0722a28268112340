"""RDMA verbs under the names of pyverbs: contexts, domains, regions, queues, queue pairs, work requests.

    from memsem.verbs import *          # as `from pyverbs.enums import *` and friends

What differs from a real NIC: addresses are byte offsets in a rank's heap, LIDs are rank + 1, and time is
virtual. See each module for its source.
"""

from memsem.verbs.ah import AH as AH
from memsem.verbs.connect import Exchange as Exchange
from memsem.verbs.context import Context as Context
from memsem.verbs.cq import CQ as CQ
from memsem.verbs.cq import CompChannel as CompChannel
from memsem.verbs.device_attr import AsyncEvent as AsyncEvent
from memsem.verbs.enums import *  # noqa: F403
from memsem.verbs.mr import MR as MR
from memsem.verbs.pd import PD as PD
from memsem.verbs.qp import QP as QP
from memsem.verbs.qpcap import AHAttr as AHAttr
from memsem.verbs.qpcap import QPAttr as QPAttr
from memsem.verbs.qpcap import QPCap as QPCap
from memsem.verbs.qpcap import QPInitAttr as QPInitAttr
from memsem.verbs.srq import SRQ as SRQ
from memsem.verbs.srq import SrqAttr as SrqAttr
from memsem.verbs.srq import SrqInitAttr as SrqInitAttr
from memsem.verbs.verbs_error import (
    CQOverrunError as CQOverrunError,
)
from memsem.verbs.verbs_error import (
    PyverbsError as PyverbsError,
)
from memsem.verbs.verbs_error import (
    PyverbsRDMAError as PyverbsRDMAError,
)
from memsem.verbs.verbs_error import (
    PyverbsUserError as PyverbsUserError,
)
from memsem.verbs.verbs_error import (
    QPStateError as QPStateError,
)
from memsem.verbs.wr import SGE as SGE
from memsem.verbs.wr import WC as WC
from memsem.verbs.wr import RecvWR as RecvWR
from memsem.verbs.wr import SendWR as SendWR
