"""Experts that nobody holds any more: whom that touches, and from which token on.

A dead rank's expert has no replica, no spare loads it, and it is not loaded anew (`--no-reload`,
`--allow-degraded`). Then, by policy:

    fail    a request that is routed to a lost expert ends with an error; all others stay exact
    mask    routing leaves lost experts out, for every row; a request with a row that is routed otherwise than
            it would be is *touched*: flagged with the experts, and with the output from which on

`history` says under which mask each position of a request was computed, so that one process can do the same
(`recovery.masked_reference`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray

from emulator.errors import UsageError
from serving.model.layers import Layer
from serving.recovery.touch import Touch
from serving.scheduler import Segment


class LostExperts(Enum):
    """What becomes of experts that no living rank holds."""

    LOAD = "load"
    FAIL = "fail"
    MASK = "mask"


def route_without(layer: Layer, h: torch.Tensor, lost: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """As `Layer.route` where these experts cannot be chosen.

    Raises:
        UsageError: fewer are left than a token needs.
    """
    bias = layer.router_bias
    masked = bias.clone()
    masked[list(lost)] = -torch.inf
    layer.set_router_bias(masked)
    try:
        experts, weights = layer.route(h)
    finally:
        layer.set_router_bias(bias)
    if bool(torch.isin(experts, torch.tensor(list(lost))).any()):
        raise UsageError(f"layer {layer.index}: too few experts are left without {sorted(lost)}")
    return experts, weights


class Masks:
    """What one rank knows of lost experts.

    Attributes:
        lost: experts nobody holds, ascending.
        change: number of the last change of membership. touched: by request. history: by request, (first
            position computed after a change, the change).
    """

    def __init__(self, policy: LostExperts) -> None:
        self.policy = policy
        self.lost: list[int] = []
        self.change = 0
        self.touched: dict[int, Touch] = {}
        self.history: dict[int, list[tuple[int, int]]] = {}
        self._segments: dict[int, Segment] = {}

    def begin(self, segments: Sequence[Segment]) -> None:
        """A step over these segments begins."""
        self._segments = {segment.request.spec.request_id: segment for segment in segments}
        for request, segment in self._segments.items():
            known = [entry for entry in self.history.get(request, []) if entry[0] < segment.start]
            if not known or known[-1][1] != self.change:
                known.append((segment.start, self.change))
            self.history[request] = known

    def route(
        self, layer: Layer, h: torch.Tensor, owners: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `serving.forward.Router`."""
        experts, weights = layer.route(h)
        if not self.lost:
            return experts, weights
        without, others = route_without(layer, h, self.lost)
        if self.policy == LostExperts.MASK:
            touched: NDArray[np.bool_] = (without != experts).any(dim=1).numpy()
        else:
            touched = np.asarray(np.isin(experts.numpy(), self.lost).any(axis=1))
        for row in np.flatnonzero(touched).tolist():
            self._touch(int(owners[row]), int(positions[row]), experts[row].tolist())
        if self.policy == LostExperts.MASK:
            return without, others
        rows = torch.from_numpy(touched)[:, None]
        return torch.where(rows, without, experts), torch.where(rows, others, weights)

    def _touch(self, request: int, position: int, experts: Sequence[int]) -> None:
        segment = self._segments[request].request
        first = max(segment.replayed, position - segment.spec.prompt_tokens + 1)
        touch = self.touched.setdefault(request, Touch())
        touch.experts |= set(experts) & set(self.lost)
        touch.first_output = min(touch.first_output, first)

    def refused(self) -> dict[int, str]:
        """Requests of this step that cannot be served exactly, and why."""
        if self.policy != LostExperts.FAIL:
            return {}
        return {
            request: f"routed to experts {sorted(touch.experts)}, of which no replica and no spare is left"
            for request, touch in self.touched.items()
            if request in self._segments
        }
