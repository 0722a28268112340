"""What a context says of its device: limits, the port, asynchronous events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memsem.verbs.enums import ibv_event_type


@dataclass(frozen=True)
class AsyncEvent:
    """Something that belongs to no completion. Attributes: event_type (`ibv_event_type`), element."""

    event_type: ibv_event_type
    element: Any


@dataclass(frozen=True)
class DeviceAttr:
    """Limits of the emulated NIC."""

    max_qp: int
    max_mr: int
    max_srq: int
    max_qp_wr: int = 32768
    max_sge: int = 32
    max_cqe: int = 1 << 22
    max_qp_rd_atom: int = 16
    phys_port_cnt: int = 1


@dataclass(frozen=True)
class PortAttr:
    """The one port. Attributes: lid (rank + 1), max_mtu, active_mtu (`ibv_mtu`), state (4, active)."""

    lid: int
    max_mtu: int = 5
    active_mtu: int = 5
    state: int = 4
