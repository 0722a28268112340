"""Collectives of the pod on top of the machine: expert dispatch and combine, status words."""

from collectives.moe import EpCosts, ExpertExchange, Handle, IdleStep, OperationCosts, Pending, Timing
from collectives.status import StatusWords

__all__ = [
    "EpCosts",
    "ExpertExchange",
    "Handle",
    "IdleStep",
    "OperationCosts",
    "Pending",
    "StatusWords",
    "Timing",
]
