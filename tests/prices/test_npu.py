"""The roofline in exact picoseconds, and that no bandwidth or peak ever makes a kernel dearer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import UsageError
from emulator.npu import PriceList, ceil_ps
from emulator.profile import load_profile
from emulator.profile_keys import KERNEL_PEAKS, PROFILE_KEYS

PRICES = PriceList(load_profile())
RATES = sorted(
    key
    for key, spec in PROFILE_KEYS.items()
    if spec.unit in ("GB/s", "TFLOPS", "TOPS") or "efficiency" in key
)


def test_memory_bound_gemm_in_closed_form() -> None:
    rows, inputs, outputs = 4, 16384, 7168
    moved = inputs * outputs + rows * (inputs + 2 * outputs)
    expected = 4_000_000 + -(-moved * 10**12 // 1_345_600_000_000)  # 1600 GB/s x 0.841
    assert PRICES.gemm_ps(rows, inputs, outputs) == expected


def test_compute_bound_gemm_in_closed_form() -> None:
    rows, inputs, outputs = 4096, 16384, 7168
    ops = 2 * rows * inputs * outputs
    assert PRICES.gemm_ps(rows, inputs, outputs) == 4_000_000 + -(-ops * 10**12 // 582_048_000_000_000)


def test_bf16_is_dearer_than_int8() -> None:
    for rows in (1, 4096):
        assert PRICES.gemm_ps(rows, 7168, 7168, bf16=True) > 1.9 * (
            PRICES.gemm_ps(rows, 7168, 7168) - 4_000_000
        )


def test_zero_rows_cost_nothing() -> None:
    assert PRICES.gemm_ps(0, 7168, 7168) == 0
    assert PRICES.grouped_gemm_ps([0, 0], 7168, 2048) == 0
    assert PRICES.elementwise_ps(0) == 0


def test_an_empty_group_loads_no_weights() -> None:
    one = PRICES.grouped_gemm_ps([8], 7168, 2048)
    assert PRICES.grouped_gemm_ps([0, 8, 0], 7168, 2048) == one
    assert PRICES.grouped_gemm_ps([4, 4], 7168, 2048) > 1.5 * one
    assert PRICES.grouped_gemm_ps(np.array([8]), 7168, 2048) == one


def test_unknown_kernel_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'gemm_int8'"):
        PRICES.price_ps("gem_int8", 1, 1)
    with pytest.raises(UsageError, match="must not be negative"):
        PRICES.price_ps("gemm_int8", -1, 1)


def test_ceil() -> None:
    assert ceil_ps(0, 7) == 0
    assert ceil_ps(1, 3 * 10**12) == 1
    assert ceil_ps(164, 164 * 10**9) == 1000


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    kernel=st.sampled_from(sorted(KERNEL_PEAKS)),
    ops=st.integers(0, 10**15),
    moved=st.integers(0, 10**12),
    key=st.sampled_from(RATES),
    factor=st.sampled_from([1.001, 1.2]),
)
def test_a_higher_rate_never_raises_a_price(
    kernel: str, ops: int, moved: int, key: str, factor: float
) -> None:
    value = load_profile().value(key)
    faster = min(value * factor, PROFILE_KEYS[key].high)
    raised = PriceList(load_profile(overrides={key: faster}))
    assert raised.price_ps(kernel, ops, moved) <= PRICES.price_ps(kernel, ops, moved)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    kernel=st.sampled_from(sorted(KERNEL_PEAKS)),
    ops=st.integers(0, 10**15),
    moved=st.integers(0, 10**12),
    more=st.integers(0, 10**12),
)
def test_more_work_never_costs_less(kernel: str, ops: int, moved: int, more: int) -> None:
    base = PRICES.price_ps(kernel, ops, moved)
    assert PRICES.price_ps(kernel, ops + more, moved) >= base
    assert PRICES.price_ps(kernel, ops, moved + more) >= base
