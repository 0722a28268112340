"""What DeepEP tunes and CUDA needs: taken, asked for by programs, of no effect here.

Source: deepseek-ai/DeepEP `deep_ep/buffers/legacy.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from collectives.ep.faces import EventOverlap
from collectives.ep.traffic import low_latency_buffer
from emulator.errors import UsageError


class Config(NamedTuple):
    """DeepEP's tuning of its kernels; of no effect here."""

    num_sms: int = 24
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 128

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes for `Buffer(num_nvl_bytes=…)`: blocks of 4096 rows, four of them."""
        return 4 * 4096 * (hidden_bytes + 128) + 64 * num_ranks

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes for `Buffer(num_rdma_bytes=…)`; hops between nodes need no memory of their own here."""
        return 0 * hidden_bytes * num_ranks


class Tuning:
    """The calls of a buffer that need none."""

    num_sms = 24

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes DeepEP would need; see `traffic.low_latency_buffer`."""
        return low_latency_buffer(num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts)

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """How many SMs DeepEP would use. Of no effect here. Raises: UsageError, odd or below 2."""
        if new_num_sms < 2 or new_num_sms % 2:
            raise UsageError(f"set_num_sms: an even number of at least 2, got {new_num_sms}")
        Tuning.num_sms = new_num_sms

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        """DeepEP's tuning for `dispatch`."""
        return Config(Tuning.num_sms)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        """DeepEP's tuning for `combine`."""
        return Config(Tuning.num_sms)

    @staticmethod
    def capture() -> EventOverlap:
        """An event of now."""
        import emulator

        return EventOverlap(emulator.device().now_ps)

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """Nothing to do: counters grow for ever here, so none has to be zero before a use."""
