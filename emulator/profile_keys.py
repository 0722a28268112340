"""Every number a machine profile must hold: its unit and the range outside which it is certainly a mistake.

The list is complete on purpose. A key missing from a profile is an error, never a default in the code; a
key that is not listed is a misspelling. Ranges are wide: they catch a slipped unit (ns for us, bits for
bytes), not an unusual machine.
"""

from dataclasses import dataclass
from typing import Final

UNITS: Final = (
    "ps", "ns", "us", "ms", "s", "B", "KB", "MB", "GB", "GB/s", "TFLOPS", "TOPS",
    "ratio", "dies", "chips", "nodes", "cores", "polls", "layers", "heads", "groups", "kernels", "experts",
    "elements", "hops", "turns",
)  # fmt: skip


@dataclass(frozen=True)
class KeySpec:
    """One required key: the only unit it may have and the closed range of believable values."""

    unit: str
    low: float
    high: float
    integer: bool = False


def _kernel(name: str) -> dict[str, KeySpec]:
    return {
        f"kernels.{name}.start_us": KeySpec("us", 0, 10_000),
        f"kernels.{name}.compute_efficiency": KeySpec("ratio", 1e-4, 1),
        f"kernels.{name}.memory_efficiency": KeySpec("ratio", 1e-4, 1),
    }


#: Kernel kinds and the peak each is measured against (`die.int8_tops` or `die.bf16_tflops`).
KERNEL_PEAKS: Final = {
    "gemm_int8": "die.int8_tops",
    "gemm_bf16": "die.bf16_tflops",
    "grouped_gemm_int8": "die.int8_tops",
    "mla_preprocess": "die.int8_tops",
    "mla_decode": "die.bf16_tflops",
    "mla_decode_int8": "die.int8_tops",
    "attention_prefill": "die.bf16_tflops",
    "elementwise": "die.bf16_tflops",
}

#: Link classes whose ports are UB; SELF is the die's own memory.
UB_CLASSES: Final = ("chip", "intra", "inter")

#: Times a work request passes on its way through an RDMA NIC; `rdma.<part>_us`.
RDMA_TIMES: Final = ("post", "doorbell", "fetch", "cqe", "nic", "roce", "hop", "pcie", "gap", "atomic")

#: URMA calls of the control plane with a price; `urma.<call>_us`.
URMA_CALLS: Final = ("register", "create_jetty", "create_jfc", "create_jfr", "import_seg", "import_jetty")

PROFILE_KEYS: Final[dict[str, KeySpec]] = {
    "pod.nodes": KeySpec("nodes", 1, 100_000, integer=True),
    "pod.chips_per_node": KeySpec("chips", 1, 1_024, integer=True),
    "pod.dies_per_chip": KeySpec("dies", 1, 64, integer=True),
    "die.bf16_tflops": KeySpec("TFLOPS", 0.1, 100_000),
    "die.int8_tops": KeySpec("TOPS", 0.1, 100_000),
    "die.hbm_gb": KeySpec("GB", 0.1, 10_000),
    "die.hbm_gb_per_s": KeySpec("GB/s", 1, 1_000_000),
    "die.reserved_gb": KeySpec("GB", 0, 1_000),
    "die.aic_cores": KeySpec("cores", 1, 10_000, integer=True),
    "die.aiv_cores": KeySpec("cores", 1, 10_000, integer=True),
    "ub.latency_self_us": KeySpec("us", 0, 1_000),
    **{f"ub.latency_{c}_us": KeySpec("us", 0, 1_000) for c in UB_CLASSES},
    "ub.self_gb_per_s": KeySpec("GB/s", 0.001, 1_000_000),
    "ub.line_gb_per_s": KeySpec("GB/s", 0.001, 100_000),
    **{f"ub.read_{c}_gb_per_s": KeySpec("GB/s", 0.001, 100_000) for c in UB_CLASSES},
    **{f"ub.write_{c}_gb_per_s": KeySpec("GB/s", 0.001, 100_000) for c in UB_CLASSES},
    "ub.request_share": KeySpec("ratio", 0, 1),
    "ub.ack_share": KeySpec("ratio", 0, 1),
    "mte.start_us": KeySpec("us", 0, 10_000),
    "mte.core_gb_per_s": KeySpec("GB/s", 0.001, 100_000),
    "mte.cores": KeySpec("cores", 1, 10_000, integer=True),
    "dma.start_us": KeySpec("us", 0, 10_000),
    "dma.turns": KeySpec("turns", 0, 100, integer=True),
    "dma.block_us": KeySpec("us", 0, 10_000),
    "dma.gb_per_s": KeySpec("GB/s", 0.001, 100_000),
    "urma.side_us": KeySpec("us", 0, 1_000),
    "urma.atomic_us": KeySpec("us", 0, 1_000),
    "urma.gap_us": KeySpec("us", 0, 1_000),
    **{f"urma.{call}_us": KeySpec("us", 0, 10_000_000) for call in URMA_CALLS},
    "rdma.gb_per_s": KeySpec("GB/s", 0.001, 10_000),
    "rdma.efficiency": KeySpec("ratio", 0.01, 1),
    **{f"rdma.{part}_us": KeySpec("us", 0, 1_000) for part in RDMA_TIMES},
    **{f"rdma.hops_{c}": KeySpec("hops", 0, 100, integer=True) for c in UB_CLASSES},
    "rdma.inline_bytes": KeySpec("B", 0, 65_536, integer=True),
    "rdma.wqe_bytes": KeySpec("B", 1, 4_096, integer=True),
    "rdma.register_us": KeySpec("us", 0, 10_000_000),
    "vpc.gb_per_s": KeySpec("GB/s", 0.001, 10_000),
    "vpc.latency_us": KeySpec("us", 0, 100_000),
    "vpc.storage_gb_per_s": KeySpec("GB/s", 0.001, 1_000_000),
    "message.eager_bytes": KeySpec("B", 0, 1 << 30, integer=True),
    **{f"message.{part}_us": KeySpec("us", 0, 10_000) for part in ("send", "isend", "recv", "match")},
    "message.copy_gb_per_s": KeySpec("GB/s", 0.001, 1_000_000),
    "message.control_bytes": KeySpec("B", 1, 65_536, integer=True),
    "vector.quantise_gb_per_s": KeySpec("GB/s", 1, 1_000_000),
    "vector.copy_gb_per_s": KeySpec("GB/s", 1, 1_000_000),
    "vector.copy_overlap": KeySpec("ratio", 0, 1),
    "exchange.round_tokens": KeySpec("elements", 1, 1_000_000, integer=True),
    "exchange.in_situ_us": KeySpec("us", 0, 100_000),
    "engine.call_price_ns": KeySpec("ns", 0.001, 1_000_000),
    "engine.poll_price_ns": KeySpec("ns", 0.001, 1_000_000),
    "engine.poll_max_polls": KeySpec("polls", 1, 1_000_000_000, integer=True),
    **{key: spec for name in KERNEL_PEAKS for key, spec in _kernel(name).items()},
}
