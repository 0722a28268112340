"""DeepEP's `Buffer` on the emulated machine: same names, same arguments, torch tensors or NumPy arrays.

    buffer = Buffer(group, num_nvl_bytes=1 << 20)
    recv_x, recv_idx, recv_w, per_expert, handle, _ = buffer.dispatch(x, topk_idx=idx, topk_weights=w, …)
    out, _, _ = buffer.combine(experts(recv_x), handle)

What CUDA needs and this machine does not (QPs, streams, configs, NVLink permissions) is taken and has no
effect. Wrong arguments of one rank are an error on all ranks of the group. Sums are float32, rounded once.
Source: deepseek-ai/DeepEP `deep_ep/buffers/legacy.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collectives.ep import layout as lay
from collectives.ep.area import EpArea
from collectives.ep.faces import EventOverlap, fill, is_torch, numbers, plain, rows_of
from collectives.ep.low_latency import LowLatencyCalls, LowLatencyHandle
from collectives.ep.moves import Moves
from collectives.ep.normal import NormalCalls, NormalHandle
from collectives.ep.scheme import group_ranks
from collectives.ep.traffic import check_planes, check_scheme, whole
from collectives.ep.tuning import Config, Tuning
from collectives.moe import OperationCosts
from emulator.errors import StateError, UsageError


class Buffer(Tuning):
    """Expert-parallel communication of one group.

    Args:
        group: a device, a `collectives.groups.Group`, or None for all ranks. Every rank of the machine makes
            its buffer at the same time; groups are disjoint.
        num_nvl_bytes, num_rdma_bytes: memory for the normal calls' blocks, added up; 0: a quarter of the
            managed area. The low-latency calls take what their shape needs at its first use.
        low_latency_mode: the low-latency calls are allowed.
        explicitly_destroy: `destroy` will be called. enable_shrink: the rank mask may be used.
        scheme, low_latency_scheme: what the machine is charged for, see `traffic.SCHEMES`.
        costs, low_latency_costs: of dispatch and combine (`collectives.libraries.charges`); None: real bytes.
        planes: plane of pushed rows by link class.

    Attributes:
        rank, group_size: my number in the group, and how many we are.
    """

    def __init__(
        self, group: Any = None, num_nvl_bytes: int = 0, num_rdma_bytes: int = 0,
        low_latency_mode: bool = False, num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True, allow_mnnvl: bool = False,
        explicitly_destroy: bool = False, enable_shrink: bool = False, comm: Any = None, *,
        scheme: str = "deepep", low_latency_scheme: str = "deepep-ll",
        costs: tuple[OperationCosts | None, OperationCosts | None] = (None, None),
        low_latency_costs: tuple[OperationCosts | None, OperationCosts | None] = (None, None),
        planes: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> None:  # fmt: skip
        check_scheme(scheme)
        check_scheme(low_latency_scheme)
        check_planes(planes)
        whole("Buffer: num_nvl_bytes", num_nvl_bytes, 0)
        whole("Buffer: num_rdma_bytes", num_rdma_bytes, 0)
        self._ranks = group_ranks(group if group is not None else comm)
        self.rank, self.group_size = self._ranks.me, self._ranks.size
        self.low_latency_mode, self.enable_shrink = low_latency_mode, enable_shrink
        self.explicitly_destroy = explicitly_destroy
        self._bytes, self._planes = num_nvl_bytes + num_rdma_bytes, planes
        self._schemes, self._charged = (scheme, low_latency_scheme), (costs, low_latency_costs)
        self._area: EpArea | None = None
        self._normal: dict[int, NormalCalls] = {}
        self._low: tuple[tuple[int, ...], LowLatencyCalls] | None = None
        self._masked = np.zeros(self.group_size, bool)
        if enable_shrink and self._ranks.device.config.keep_going:
            self._ranks.device.subscribe()  # deaths are told to all at once, and the living go on

    # --- normal -------------------------------------------------------------------------------------------

    def get_dispatch_layout(
        self, topk_idx: Any, num_experts: int, previous_event: Any = None, async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, Any, Any, EventOverlap]:  # fmt: skip
        """Count what my tokens need; local.

        Args:
            topk_idx: int64 [T, K], -1 is unselected.

        Returns:
            num_tokens_per_rank int32 [R], num_tokens_per_rdma_rank int32 [nodes] (None on one node),
            num_tokens_per_expert int32 [E], is_token_in_rank bool [T, R], event.
        """
        layout, torch = (
            lay.dispatch_layout(numbers(topk_idx), num_experts, self._ranks.nodes),
            is_torch(topk_idx),
        )
        per_node = None if layout.tokens_per_node is None else plain(layout.tokens_per_node, torch)
        return (
            plain(layout.tokens_per_rank, torch), per_node, plain(layout.tokens_per_expert, torch),
            plain(layout.is_token_in_rank, torch), EventOverlap(self._ranks.device.now_ps),
        )  # fmt: skip

    def dispatch(
        self, x: Any, handle: NormalHandle | None = None, num_tokens_per_rank: Any = None,
        num_tokens_per_rdma_rank: Any = None, is_token_in_rank: Any = None, num_tokens_per_expert: Any = None,
        topk_idx: Any = None, topk_weights: Any = None, expert_alignment: int = 1, num_worst_tokens: int = 0,
        config: Any = None, previous_event: Any = None, async_finish: bool = False,
        allocate_on_comm_stream: bool = False, *, num_experts: int | None = None,
    ) -> tuple[Any, Any, Any, list[int] | None, NormalHandle | None, EventOverlap]:  # fmt: skip
        """Send each token once to every rank that has one of its experts. All ranks of the group; blocks.

        Args:
            x: [T, hidden] bfloat16 or float32, or (E4M3 [T, hidden], scales [T, hidden / 128]).
            handle: of an earlier dispatch, to send other rows the same way: no counts are exchanged.
            num_tokens_per_…, is_token_in_rank: of `get_dispatch_layout`; checked against topk_idx.
            topk_idx, topk_weights: int64 [T, K] (-1 unselected) and float32 [T, K]; needed without a handle.
            expert_alignment: the counts of experts are rounded up to it.
            num_worst_tokens: pad the outputs to so many rows (topk_idx -1) and give no counts; equal on all
                ranks, and an error on all where more come to one.
            num_experts: of the group; by default the length of num_tokens_per_expert.

        Returns:
            recv_x, recv_topk_idx (local experts, -1 those of others), recv_topk_weights, rows of each local
            expert, handle, event; with a handle given only recv_x and the event.

        Raises:
            UsageError, on all ranks: what one of them cannot do, with its number.
        """
        if handle is not None:
            calls = self._normal_calls(self._experts_of(handle))
            recv_x, *_, event = calls.dispatch(x, handle, None, None, {}, 1, num_worst_tokens)
            return recv_x, None, None, None, None, event
        if num_experts is None:
            if num_tokens_per_expert is None:
                raise UsageError("dispatch: num_tokens_per_expert or num_experts is needed without a handle")
            num_experts = int(numbers(num_tokens_per_expert).size)
        given = {
            "tokens_per_rank": num_tokens_per_rank, "tokens_per_node": num_tokens_per_rdma_rank,
            "is_token_in_rank": is_token_in_rank, "tokens_per_expert": num_tokens_per_expert,
        }  # fmt: skip
        calls = self._normal_calls(num_experts)
        return calls.dispatch(x, None, topk_idx, topk_weights, given, expert_alignment, num_worst_tokens)

    def combine(
        self, x: Any, handle: NormalHandle, topk_weights: Any = None, bias: Any = None, config: Any = None,
        previous_event: Any = None, async_finish: bool = False, allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, EventOverlap]:  # fmt: skip
        """Give one row back for each received one; owners add them up, ranks ascending, without weights.

        Args:
            x: [received, hidden] bfloat16 or float32, in the order of recv_x. handle: of the dispatch.
            topk_weights: float32 [received, K], added up the same way. bias: [T, hidden], or two of them.

        Returns:
            combined_x [T, hidden], combined weights [T, K] or None, event.
        """
        return self._normal_calls(self._experts_of(handle)).combine(x, handle, topk_weights, bias)

    def _experts_of(self, handle: NormalHandle) -> int:
        return int(handle.route.layout.tokens_per_expert.size)

    def _normal_calls(self, num_experts: int) -> NormalCalls:
        if num_experts not in self._normal:
            device = self._ranks.device
            if self._area is None:
                total = self._bytes or device.config.managed_bytes // 4
                each = max(4096, total // 4 - device.num_ranks * 16 - 1024)
                self._area = EpArea(self._ranks, each, each, 1)
            if self._normal:
                raise StateError("Buffer: the normal calls of a buffer are for one number of experts")
            moves = Moves(self._area, self._schemes[0], num_experts, self._planes)
            self._normal[num_experts] = NormalCalls(moves, self._charged[0])
        return self._normal[num_experts]

    # --- low latency --------------------------------------------------------------------------------------

    def low_latency_dispatch(
        self, x: Any, topk_idx: Any, num_max_dispatch_tokens_per_rank: int, num_experts: int,
        cumulative_local_expert_recv_stats: Any = None, dispatch_wait_recv_cost_stats: Any = None,
        use_fp8: bool = True, round_scale: bool = False, use_ue8m0: bool = False, async_finish: bool = False,
        return_recv_hook: bool = False,
    ) -> tuple[Any, Any, LowLatencyHandle, EventOverlap, Callable[[], None]]:  # fmt: skip
        """Send each token to each of its experts, in a shape that does not depend on the routing.

        Args:
            x: [T, hidden] bfloat16 or float32, T at most num_max_dispatch_tokens_per_rank, which like
                hidden, K and num_experts is equal on all ranks. topk_idx: int64 [T, K], -1 unselected.
            cumulative_local_expert_recv_stats: int [slots], rows received are added.
            dispatch_wait_recv_cost_stats: int64 [R] or [R, R] (my row), ps each source came later than I.
            use_fp8: rows travel as E4M3 with a scale for 128 values; round_scale: powers of two;
                use_ue8m0: their exponents, four to an int32 (needs round_scale).
            return_recv_hook: return at once; the rows are there after the hook.

        Returns:
            recv_x [slots, max * R, hidden] (or that and scales), counts int32 [slots], handle, event, hook.

        Raises:
            UsageError, on all ranks: what one of them cannot do. CollectiveMismatchError: other arguments.
            StateError: two operations wait for their hooks.
        """
        try:
            kind = "fp8" if use_fp8 else rows_of(x[:0]).kind
        except UsageError:  # said by all ranks, in the call itself
            kind = "float32"
        calls = self._low_latency_calls(x, topk_idx, num_max_dispatch_tokens_per_rank, num_experts, kind)
        return calls.dispatch(
            x, topk_idx, cumulative_local_expert_recv_stats, dispatch_wait_recv_cost_stats, use_fp8,
            round_scale, use_ue8m0, return_recv_hook,
        )  # fmt: skip

    def low_latency_combine(
        self, x: Any, topk_idx: Any, topk_weights: Any, handle: LowLatencyHandle, use_logfmt: bool = False,
        zero_copy: bool = False, async_finish: bool = False, return_recv_hook: bool = False, out: Any = None,
        combine_wait_recv_cost_stats: Any = None,
    ) -> tuple[Any, EventOverlap, Callable[[], None]]:  # fmt: skip
        """Send the experts' outputs home; owners add them up with weights, in the order of K.

        Args:
            x: [slots, max * R, hidden] bfloat16 or float32; with zero_copy what
                `get_next_low_latency_combine_buffer` gave is taken. topk_idx: as dispatched.
            topk_weights: float32 [T, K]. out: where the sums go.

        Returns:
            [T, hidden], event, hook.

        Raises:
            UsageError: `use_logfmt`, which this machine has no kernels for; others as the dispatch.
        """
        if self._low is None:
            raise StateError("low_latency_combine: nothing was dispatched")
        self._low[1].leave_out(self._masked)
        return self._low[1].combine(
            x, topk_idx, topk_weights, handle, use_logfmt, zero_copy, return_recv_hook, out,
            combine_wait_recv_cost_stats,
        )  # fmt: skip

    def get_next_low_latency_combine_buffer(self, handle: LowLatencyHandle) -> Any:
        """Where to write outputs for a combine with zero_copy: [slots, max * R, hidden], float32."""
        if handle.arrived.zero_copy is None:
            shape = (
                handle.num_experts // self.group_size,
                handle.num_max_dispatch_tokens_per_rank * self.group_size,
                handle.hidden,
            )
            handle.arrived.zero_copy = plain(np.zeros(shape, np.float32), is_torch(handle.src_info))
        return handle.arrived.zero_copy

    def _low_latency_calls(
        self, x: Any, topk_idx: Any, max_tokens: int, num_experts: int, kind: str
    ) -> LowLatencyCalls:
        if not self.low_latency_mode:
            raise StateError("Buffer: low-latency calls need low_latency_mode=True")
        rows = x[0] if isinstance(x, (tuple, list)) else x
        shape = (num_experts, max_tokens, int(rows.shape[-1]), int(topk_idx.shape[-1]))
        for name, value in zip(("num_experts", "num_max_dispatch_tokens_per_rank"), shape, strict=False):
            whole(f"low latency: {name}", value)
        if min(shape) < 1:
            raise UsageError(f"low latency: experts, tokens, hidden and topk are at least 1, got {shape}")
        if self._low is None or self._low[0] != shape:
            if self._low is not None:
                self._low[1].change(kind, *shape)
                self._low[1].release()
            calls = LowLatencyCalls(
                self._ranks, self._schemes[1], *shape, costs=self._charged[1], planes=self._planes
            )
            self._low = shape, calls
        self._low[1].leave_out(self._masked)
        return self._low[1]

    # --- rank mask ----------------------------------------------------------------------------------------

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = True) -> None:
        """Leave a rank of the group out of my low-latency calls from now on, or take it in again.

        Raises:
            StateError: made without `enable_shrink`.
            UsageError: no rank of the group, or my own.
        """
        if not self.enable_shrink:
            raise StateError("Buffer: the rank mask needs enable_shrink=True")
        if not 0 <= rank_to_mask < self.group_size or rank_to_mask == self.rank:
            raise UsageError(f"rank mask: 0 to {self.group_size - 1} but not {self.rank}, got {rank_to_mask}")
        self._masked[rank_to_mask] = mask

    def low_latency_query_mask_buffer(self, mask_status: Any) -> None:
        """Write 1 for each masked rank into int [R]."""
        fill(mask_status, self._masked.astype(np.int32))

    def low_latency_clean_mask_buffer(self) -> None:
        """Take all ranks in again."""
        self._masked[:] = False

    # --- others -------------------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Give the memory back; all ranks of the machine. Raises: StateError, not `explicitly_destroy`."""
        if not self.explicitly_destroy:
            raise StateError("Buffer: destroy needs explicitly_destroy=True")
        for part in (self._area, None if self._low is None else self._low[1]):
            if part is not None:
                part.release()
        self._area, self._low, self._normal = None, None, {}


__all__ = ["Buffer", "Config"]
