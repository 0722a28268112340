"""XCCL: send and receive between two dies, and A2E and E2A between attention and expert dies."""

from collectives.xccl.endpoint import Counters, Xccl
from collectives.xccl.transfer import Transfer

__all__ = ["Counters", "Transfer", "Xccl"]
