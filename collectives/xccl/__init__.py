"""XCCL: send and receive between two dies, and A2E and E2A between attention and expert dies."""

from collectives.xccl.areas import Counters
from collectives.xccl.endpoint import Xccl
from collectives.xccl.relay import A2E
from collectives.xccl.relay_base import Arrived, Sent
from collectives.xccl.relay_costs import RelayCosts, a2e_costs, e2a_costs
from collectives.xccl.transfer import Transfer

__all__ = [
    "A2E",
    "Arrived",
    "Counters",
    "RelayCosts",
    "Sent",
    "Transfer",
    "Xccl",
    "a2e_costs",
    "e2a_costs",
]
