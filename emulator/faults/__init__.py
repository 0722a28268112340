"""Faults on purpose: plans (pure), the generator (pure), and each rank's injector."""

from emulator.faults.injector import NOT_NOW, Faults, Injector, NoFaults, Undo
from emulator.faults.kinds import ALL_STATES, KINDS, STATES
from emulator.faults.plan import AtRequest, Fault, FaultPlan

__all__ = [
    "ALL_STATES",
    "KINDS",
    "NOT_NOW",
    "STATES",
    "AtRequest",
    "Fault",
    "FaultPlan",
    "Faults",
    "Injector",
    "NoFaults",
    "Undo",
]
