"""What a kernel costs on one die: a roofline, in integer picoseconds.

price = start + max(operations / (peak * compute efficiency), bytes / (HBM bandwidth * memory efficiency))

Peak, bandwidth, efficiencies and start-ups come from the machine profile, one triple per kernel kind.
Nothing here knows a model; shapes come in as arguments. Left out: overlap between kernels, the cube and
vector cores' own queues, cache hits. Rates are integers per second and times are rounded up, so a price is
exact and never falls when work is added or rises when a rate is raised.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError
from emulator.profile import PS_PER_S, Profile, exact, nearest
from emulator.profile_keys import KERNEL_PEAKS


@dataclass(frozen=True)
class KernelRate:
    """One kernel kind on one machine."""

    start_ps: int
    ops_per_s: int
    bytes_per_s: int

    def price_ps(self, ops: int, num_bytes: int) -> int:
        """Return the time of one call that does `ops` operations and moves `num_bytes` to or from HBM."""
        if ops <= 0 and num_bytes <= 0:
            return 0
        return self.start_ps + max(ceil_ps(ops, self.ops_per_s), ceil_ps(num_bytes, self.bytes_per_s))


class PriceList:
    """Prices of all kernel kinds of one machine profile."""

    def __init__(self, profile: Profile) -> None:
        self.rates = {name: _rate(profile, name, peak) for name, peak in KERNEL_PEAKS.items()}

    def rate(self, kernel: str) -> KernelRate:
        """Return one kernel kind. Raises UsageError naming the nearest kind."""
        try:
            return self.rates[kernel]
        except KeyError:
            hint = nearest(kernel, self.rates) or f"; kinds are {', '.join(self.rates)}"
            raise UsageError(f"no kernel kind {kernel!r}{hint}") from None

    def price_ps(self, kernel: str, ops: int, num_bytes: int) -> int:
        """Return the time of one call of `kernel`; no operations and no bytes cost nothing.

        Args:
            kernel: a key of `KERNEL_PEAKS`.
            ops: operations, a multiply and an add being two; >= 0.
            num_bytes: bytes moved to or from HBM; >= 0.

        Raises:
            UsageError: a negative number, or no such kernel.
        """
        if ops < 0 or num_bytes < 0:
            raise UsageError(
                f"kernel {kernel}: operations and bytes must not be negative, got {ops} and {num_bytes}"
            )
        return self.rate(kernel).price_ps(ops, num_bytes)

    def gemm_ps(
        self,
        rows: int,
        inputs: int,
        outputs: int,
        *,
        bf16: bool = False,
        output_bytes: int = 2,
    ) -> int:
        """Return the time of [rows, inputs] x [inputs, outputs]; zero rows launch nothing and cost nothing.

        Weights and activations are 1 byte an element, 2 with `bf16`; a result has `output_bytes`.
        """
        width = 2 if bf16 else 1
        moved = inputs * outputs * width + rows * (inputs * width + outputs * output_bytes)
        name = "gemm_bf16" if bf16 else "gemm_int8"
        return self.price_ps(name, 2 * rows * inputs * outputs, moved) if rows else 0

    def grouped_gemm_ps(
        self,
        rows_per_group: Sequence[int] | NDArray[np.int64],
        inputs: int,
        outputs: int,
        output_bytes: int = 2,
    ) -> int:
        """Return the time of one INT8 kernel over groups with a weight each; an empty group loads nothing."""
        rows = np.asarray(rows_per_group, dtype=np.int64)
        total, used = int(rows.sum()), int(np.count_nonzero(rows))
        moved = used * inputs * outputs + total * (inputs + outputs * output_bytes)
        return self.price_ps("grouped_gemm_int8", 2 * total * inputs * outputs, moved)

    def elementwise_ps(self, num_bytes: int) -> int:
        """Return the time of a vector kernel that reads and writes `num_bytes` in all."""
        return self.price_ps("elementwise", 0, num_bytes)


def ceil_ps(amount: int, per_s: int) -> int:
    """Return ceil(amount / per_s) in picoseconds: serialisation, or the time of `amount` operations."""
    return -(-amount * PS_PER_S // per_s)


def _rate(profile: Profile, name: str, peak: str) -> KernelRate:
    compute = exact(profile.value(f"kernels.{name}.compute_efficiency"))
    memory = exact(profile.value(f"kernels.{name}.memory_efficiency"))
    return KernelRate(
        start_ps=profile.ps(f"kernels.{name}.start_us"),
        ops_per_s=max(1, int(profile.per_s(peak) * compute)),
        bytes_per_s=max(1, int(profile.per_s("die.hbm_gb_per_s") * memory)),
    )
