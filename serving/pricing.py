"""What the target model is charged: kernels at its true shapes, bytes of rows, weights and KV.

The functional model decides who computes and sends how much; this module turns row counts and context
lengths into picoseconds and bytes of the priced model (say DeepSeek-R1 671B INT8 on Ascend 910C). It moves
nothing and knows no clock. Kernel names follow the published decode profile (arXiv 2508.02520v6 Fig 20);
`Others` collects what that figure does not name.

Left out: host launch of kernels (decode runs a captured graph), the embedding look-up, and norms' weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectives.libraries import Library, row_bytes
from emulator.errors import UsageError
from emulator.npu import PriceList
from emulator.profile import Profile, exact
from serving.exchange_price import ExchangeCosts, exchange_costs, is_library_key, priced_library
from serving.priced_shape import ModelShape, load_model_entries

PREPROCESS, ATTENTION, MATMUL, OTHERS = "MlaPreprocess", "MultiLatentAttention", "QuantBatchMatmul", "Others"
Kernels = dict[str, int]
"""Kernel name -> ps."""

_GB = 10**9


@dataclass(frozen=True)
class PricedModel:
    """Prices of one model on one machine. Row counts are priced tokens of one die; zero rows cost zero."""

    name: str
    shape: ModelShape
    entries: Profile
    profile: Profile
    prices: PriceList
    library: Library
    parts: int = 1
    """Ranks that share a layer (`serving.tensor.price`); `shape` is then one rank's."""

    @classmethod
    def load(
        cls, name: str, profile: Profile, overrides: Mapping[str, str | float] | None = None
    ) -> "PricedModel":
        """Load a priced model by name, alias or path of a .toml; overrides of `xccl.KEY` are the library's.
        Raises UsageError."""
        given, library = overrides or {}, priced_library(overrides or {})
        entries = load_model_entries(name, {k: v for k, v in given.items() if not is_library_key(k)})
        return cls(name, ModelShape.from_entries(entries), entries, profile, PriceList(profile), library)

    # ---- attention --------------------------------------------------------------------------------

    def layer_kernels(
        self, decode_kv: NDArray[np.int64], prefill: Sequence[tuple[int, int]] = (), queries: int = 1
    ) -> Kernels:
        """Return the kernels of one attention block, norms and residuals of the layer included.

        Args:
            decode_kv: int64 [sequences], context each decoding sequence attends to, its new tokens included.
            prefill: (start, length) of each chunk: `length` new tokens after `start` cached ones.
            queries: rows a decoding sequence has in this step; 2 where one draft token is verified with it.
        """
        kv = np.asarray(decode_kv, dtype=np.int64)
        decode_rows = len(kv) * queries
        rows = decode_rows + sum(length for _, length in prefill)
        if rows == 0:
            return dict.fromkeys((PREPROCESS, ATTENTION, MATMUL, OTHERS), 0)
        s = self.shape
        return {
            PREPROCESS: self._preprocess_ps(rows, decode_rows),
            ATTENTION: self._decode_attention_ps(kv, queries) + self._prefill_attention_ps(prefill),
            MATMUL: self.prices.gemm_ps(rows, s.heads * s.v_head, s.hidden),
            OTHERS: self._value_ps(decode_rows, prefill) + self._small_ps(rows),
        }

    def _preprocess_ps(self, rows: int, decode_rows: int) -> int:
        """Query and KV projections, RoPE and, for decode, the absorbed key projection, in one kernel."""
        s = self.shape
        weights = self._projection_elements
        if s.kv_heads:
            width = (s.heads + 2 * s.kv_heads) * s.qk_rope
            return self.prices.price_ps("mla_preprocess", 2 * rows * weights, weights + 2 * rows * width)
        absorbed = s.heads * s.qk_nope * s.kv_lora
        # The absorbed product runs in BF16, at half the INT8 peak this kernel is rated by: it counts twice.
        ops = 2 * rows * weights + 2 * 2 * decode_rows * absorbed
        moved = weights + (2 * absorbed if decode_rows else 0)
        moved += rows * 2 * (s.hidden + s.heads * (s.kv_lora + s.qk_rope))
        return self.prices.price_ps("mla_preprocess", ops, moved)

    def _decode_attention_ps(self, kv: NDArray[np.int64], queries: int) -> int:
        s, total = self.shape, int(kv.sum())
        values = s.v_head if s.kv_heads else 2 * s.kv_lora
        ops = 2 * s.heads * (values + s.qk_rope) * total * queries
        moved = total * self.kv_bytes_per_layer
        share = exact(self.entries.value("cost.mla_int8_share"))
        bf16 = self.prices.price_ps("mla_decode", ops, moved)
        int8 = self.prices.price_ps("mla_decode_int8", ops, moved)
        return round(bf16 * (1 - share) + int8 * share)

    def _prefill_attention_ps(self, prefill: Sequence[tuple[int, int]]) -> int:
        """Causal attention over expanded heads: each new token sees the cached ones and those before it."""
        s = self.shape
        width = s.heads * (s.qk_nope + s.qk_rope + s.v_head)
        kept = s.kv_heads * (s.qk_rope + s.v_head) if s.kv_heads else width
        pairs = sum(length * start + length * (length + 1) // 2 for start, length in prefill)
        context = sum(start + length for start, length in prefill if length)
        return self.prices.price_ps("attention_prefill", 2 * width * pairs, 2 * kept * context)

    def _value_ps(self, decode_rows: int, prefill: Sequence[tuple[int, int]]) -> int:
        """Decode: the absorbed value projection. Prefill: keys and values of the whole context expanded."""
        s = self.shape
        if s.kv_heads:
            return 0
        weights = s.heads * s.kv_lora * s.v_head
        moved = 2 * weights + 2 * decode_rows * s.heads * (s.kv_lora + s.v_head)
        decode = self.prices.price_ps("gemm_bf16", 2 * decode_rows * weights, moved) if decode_rows else 0
        context = sum(start + length for start, length in prefill if length)
        return decode + self.prices.gemm_ps(context, s.kv_lora, s.heads * (s.qk_nope + s.v_head), bf16=True)

    def _small_ps(self, rows: int) -> int:
        passes = self.entries.integer("cost.hidden_passes")
        starts = self.entries.integer("cost.small_kernels") * self.prices.rate("elementwise").start_ps
        return starts + self.prices.elementwise_ps(rows * passes * 2 * self.shape.hidden)

    # ---- feed-forward ---------------------------------------------------------------------------------

    def experts_kernels(
        self, rows_per_local_expert: Sequence[int] | NDArray[np.int64], parts: int = 1
    ) -> Kernels:
        """Return the kernels of this die's experts.

        Args:
            rows_per_local_expert: int64 [slots], rows of each local expert; empty slots load no weights.
            parts: dies that share the width of each expert.
        """
        s, rows = self.shape, np.asarray(rows_per_local_expert, dtype=np.int64)
        width = s.expert_intermediate // parts
        up = self.prices.grouped_gemm_ps(rows, s.hidden, 2 * width)
        down = self.prices.grouped_gemm_ps(rows, width, s.hidden)
        return {MATMUL: up + down, OTHERS: self._activation_ps(int(rows.sum()), width)}

    def experts_ps(self, rows_per_local_expert: Sequence[int] | NDArray[np.int64]) -> int:
        """Return the time of this die's experts; see `experts_kernels`."""
        return sum(self.experts_kernels(rows_per_local_expert).values())

    def shared_kernels(self, rows: int) -> Kernels:
        """Return the kernels of shared experts computed where the tokens are."""
        return self.experts_kernels([rows] * self.shape.shared_experts, self.parts)

    def shared_ps(self, rows: int) -> int:
        """Return the time of local shared experts over `rows` tokens."""
        return sum(self.shared_kernels(rows).values())

    def dense_mlp_kernels(self, rows: int) -> Kernels:
        """Return the kernels of a dense layer's MLP."""
        s = self.shape
        up = self.prices.gemm_ps(rows, s.hidden, 2 * s.dense_intermediate)
        down = self.prices.gemm_ps(rows, s.dense_intermediate, s.hidden)
        return {MATMUL: up + down, OTHERS: self._activation_ps(rows, s.dense_intermediate)}

    def dense_mlp_ps(self, rows: int) -> int:
        """Return the time of a dense layer's MLP over `rows` tokens."""
        return sum(self.dense_mlp_kernels(rows).values())

    def router_ps(self, rows: int) -> int:
        """Return the time of scoring all experts for `rows` tokens (its top-k is among the small kernels)."""
        return self.prices.gemm_ps(rows, self.shape.hidden, self.shape.routed_experts, bf16=True)

    def head_ps(self, rows: int) -> int:
        """Return the time of logits and sampling for `rows` positions."""
        logits = self.prices.gemm_ps(rows, self.shape.hidden, self.shape.vocab, bf16=True, output_bytes=4)
        return logits + self.prices.elementwise_ps(rows * self.shape.vocab * 4)

    def mtp_projection_ps(self, rows: int) -> int:
        """Return what an MTP layer has beyond a MoE layer and a head: joining hidden state and embedding."""
        return self.prices.gemm_ps(rows, 2 * self.shape.hidden, self.shape.hidden)

    def _activation_ps(self, rows: int, intermediate: int) -> int:
        """SwiGLU and requantisation: reads two 16-bit halves, writes one INT8 half."""
        return self.prices.elementwise_ps(rows * 5 * intermediate)

    @property
    def step_overhead_ps(self) -> int:
        """The scheduler's bubble between two steps."""
        return self.entries.ps("cost.step_bubble_us")

    # ---- exchanges --------------------------------------------------------------------------------

    @property
    def dispatch_row_bytes(self) -> int:
        """A dispatched row: INT8 activations and their aligned scale."""
        return row_bytes(self.library, self.shape.hidden, "int8")

    @property
    def combine_row_bytes(self) -> int:
        """A combined row: 16-bit activations."""
        return row_bytes(self.library, self.shape.hidden, "bf16")

    def dispatch_costs(self, rows_sent: int, num_ranks: int) -> ExchangeCosts:
        """Return a dispatch's costs on a rank that sends `rows_sent` rows, each quantised there."""
        return exchange_costs(self.library, self.profile, "dispatch", num_ranks, self.shape.hidden, rows_sent)

    def combine_costs(self, rows_back: int, num_ranks: int) -> ExchangeCosts:
        """Return a combine's costs on a rank that gives `rows_back` rows back, each copied there."""
        return exchange_costs(self.library, self.profile, "combine", num_ranks, self.shape.hidden, rows_back)

    # ---- bytes ------------------------------------------------------------------------------------

    @property
    def kv_bytes_per_layer(self) -> int:
        """KV of one token in one layer: latent and RoPE part, or keys and values of the KV heads."""
        if self.shape.kv_heads:
            elements = self.shape.kv_heads * (self.shape.qk_rope + self.shape.v_head)
            return self.entries.num_bytes("cost.kv_rope_bytes") * elements
        latent = self.entries.num_bytes("cost.kv_latent_bytes") * self.shape.kv_lora
        return latent + self.entries.num_bytes("cost.kv_rope_bytes") * self.shape.qk_rope

    def kv_bytes(self, tokens: int, mtp: bool = False) -> int:
        """Return the KV of `tokens` tokens in all layers (39,040 B a token for DeepSeek-R1)."""
        layers = self.shape.layers + (self.shape.mtp_layers if mtp else 0)
        return tokens * layers * self.kv_bytes_per_layer

    @property
    def _projection_elements(self) -> int:
        """Weights of the fused preprocessing kernel: query and (latent) KV projections, INT8."""
        s = self.shape
        if s.kv_heads:
            return s.hidden * (s.heads * s.qk_rope + s.kv_heads * (s.qk_rope + s.v_head))
        query = s.heads * (s.qk_nope + s.qk_rope)
        queries = s.hidden * s.q_lora + s.q_lora * query if s.q_lora else s.hidden * query
        return queries + s.hidden * (s.kv_lora + s.qk_rope)

    @property
    def expert_bytes(self) -> int:
        """One expert of one layer, INT8."""
        return 3 * self.shape.hidden * self.shape.expert_intermediate

    @property
    def attention_bytes(self) -> int:
        """Attention of one layer: INT8 projections and output, 16-bit key and value expansion."""
        s = self.shape
        return self._projection_elements + s.heads * (
            s.v_head * s.hidden + 2 * s.kv_lora * (s.qk_nope + s.v_head)
        )

    def weights_bytes(self, expert_slots: int, shared_local: bool = False, mtp: bool = False) -> int:
        """Return the weights of one die: everything but experts is on every die.

        Args:
            expert_slots: routed, placed shared and redundant experts of one layer on this die.
            shared_local: the shared experts are on the die besides.
            mtp: the MTP layer is loaded.
        """
        s = self.shape
        shared = s.shared_experts * self.expert_bytes // self.parts if shared_local else 0
        moe = expert_slots * self.expert_bytes + shared + 2 * s.hidden * s.routed_experts
        dense = s.dense_layers * 3 * s.hidden * s.dense_intermediate
        main = s.layers * self.attention_bytes + s.moe_layers * moe + dense + 2 * 2 * s.vocab * s.hidden
        extra = self.attention_bytes + moe + 2 * s.hidden * s.hidden
        return main + (s.mtp_layers * extra if mtp else 0)

    def memory_bytes(
        self, expert_slots: int, kv_tokens: int, shared_local: bool = False, mtp: bool = False
    ) -> dict[str, int]:
        """Return what fills one die: weights, KV, exchange buffers and the runtime's reserve, in bytes."""
        return {
            "weights": self.weights_bytes(expert_slots, shared_local, mtp),
            "KV": self.kv_bytes(kv_tokens, mtp),
            "buffers": self.library.numbers.num_bytes("ring.buffers_mb"),
            "reserve": self.profile.num_bytes("die.reserved_gb"),
        }

    def check_memory(
        self, expert_slots: int, kv_tokens: int, shared_local: bool = False, mtp: bool = False
    ) -> None:
        """Raise UsageError when a die cannot hold these experts a layer and KV tokens at priced size."""
        parts = self.memory_bytes(expert_slots, kv_tokens, shared_local, mtp)
        capacity = self.profile.num_bytes("die.hbm_gb")
        if sum(parts.values()) <= capacity:
            return
        listing = ", ".join(f"{name} {size / _GB:.1f}" for name, size in parts.items())
        fit = self.max_kv_tokens(expert_slots, shared_local, mtp)
        raise UsageError(
            f"{self.name} needs {sum(parts.values()) / _GB:.1f} GB on a die of {capacity / _GB:g} GB "
            f"({listing}); with {expert_slots} expert slots a die at most {fit} KV tokens fit"
        )

    def max_kv_tokens(self, expert_slots: int, shared_local: bool = False, mtp: bool = False) -> int:
        """Return how many KV tokens fit beside the weights; 0 when not even those do."""
        used = sum(self.memory_bytes(expert_slots, 0, shared_local, mtp).values())
        return max(0, self.profile.num_bytes("die.hbm_gb") - used) // self.kv_bytes(1, mtp)

    # ---- priced against executed ------------------------------------------------------------------

    def repeat(self, executed_moe_layers: int) -> list[int]:
        """Return how many priced MoE layers each executed one stands for: executed j for priced j, j+m, …"""
        return _spread(self.shape.moe_layers, executed_moe_layers, "MoE")

    def repeat_dense(self, executed_dense_layers: int) -> list[int]:
        """Return how many priced dense layers each executed one stands for."""
        return _spread(self.shape.dense_layers, executed_dense_layers, "dense")

    def check_routing(self, routing: Mapping[str, int]) -> None:
        """Raise UsageError unless a functional model's `ModelShape.routing` is the priced model's."""
        for name, priced in self.shape.routing.items():
            if routing.get(name) != priced:
                raise UsageError(
                    f"priced as {self.name}, which has {priced} {name}: the model has {routing.get(name)}"
                )


def _spread(priced: int, executed: int, kind: str) -> list[int]:
    if executed < (1 if priced else 0) or executed > priced:
        raise UsageError(f"{executed} executed {kind} layers cannot stand for {priced} priced ones")
    return [priced // executed + (j < priced % executed) for j in range(executed)]
