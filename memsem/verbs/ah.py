"""Address handles: where a datagram goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memsem.verbs.qpcap import AHAttr
from memsem.verbs.resource import Resource
from memsem.verbs.verbs_error import PyverbsRDMAError

if TYPE_CHECKING:
    from memsem.verbs.pd import PD


class AH(Resource):
    """An address vector of a protection domain.

    Args:
        pd: the domain. attr: `dlid` is the destination's rank + 1.

    Raises:
        PyverbsRDMAError: no such LID.
    """

    def __init__(self, pd: PD, attr: AHAttr) -> None:
        self.pd = pd
        if not isinstance(attr.dlid, int | np.integer) or not 1 <= attr.dlid <= pd.context.num_ranks:
            raise PyverbsRDMAError(
                f"AH: no LID {attr.dlid}; LIDs are 1 to {pd.context.num_ranks} (rank {pd.context.rank}, "
                f"{pd.context.now_ps} ps)",
                value=attr.dlid,
                rank=pd.context.rank,
                now_ps=pd.context.now_ps,
            )
        self.attr = attr
        super().__init__(pd)

    @property
    def peer(self) -> int:
        """Rank of the destination."""
        return self.attr.dlid - 1
