"""The published decode iteration and exchanges within stated tolerances, and points nothing was fitted to."""

import math

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from emulator.profile import load_profile
from launch import cmd_prices, cmd_run
from serving.exchange_price import estimate_ps
from serving.price_tables import (
    COMBINE,
    DISPATCH,
    PUBLISHED_EXCHANGE_US,
    PUBLISHED_ITERATION_MS,
    PUBLISHED_SHARES,
    DecodeCase,
    attention_table,
    decode_kernels,
    exchange_ps,
    gemm_table,
    prefill_table,
)
from serving.pricing import PricedModel

MS, US = 10**9, 10**6


@pytest.fixture(scope="module")
def r1() -> PricedModel:
    return PricedModel.load("deepseek-r1", load_profile())


@pytest.fixture(scope="module")
def quiet_r1() -> PricedModel:
    """Without what surrounds an exchange in a decode step: a kernel alone on the fabric."""
    return PricedModel.load("deepseek-r1", load_profile(overrides={"exchange.in_situ_us": 0}))


def test_iteration_is_93_ms(r1: PricedModel) -> None:
    total = sum(decode_kernels(r1).values()) / MS
    assert total == pytest.approx(PUBLISHED_ITERATION_MS, rel=0.15)
    assert total == pytest.approx(PUBLISHED_ITERATION_MS, rel=0.03)  # where the fit stands
    assert r1.step_overhead_ps == 2 * MS


def test_kernel_shares(r1: PricedModel) -> None:
    kernels = decode_kernels(r1)
    assert set(kernels) == set(PUBLISHED_SHARES)
    for name, published in PUBLISHED_SHARES.items():
        share = 100 * kernels[name] / sum(kernels.values())
        assert share == pytest.approx(published, abs=1.5), name


def test_an_mtp_layer_is_a_moe_layer_with_a_head_and_a_projection(r1: PricedModel) -> None:
    case = DecodeCase()
    extra = sum(decode_kernels(r1, case).values()) - sum(decode_kernels(r1, DecodeCase(mtp=False)).values())
    attention = r1.layer_kernels(np.full(60, 3072), queries=2)
    parts = [*attention.values(), *exchange_ps(r1, case).values()]
    parts += [r1.router_ps(120), r1.experts_ps([540, 540]), r1.head_ps(120), r1.mtp_projection_ps(120)]
    assert extra == sum(parts)


def test_exchanges_in_situ(r1: PricedModel) -> None:
    for name, ps in exchange_ps(r1, DecodeCase()).items():
        assert ps / US == pytest.approx(PUBLISHED_EXCHANGE_US[name], rel=0.05), name


@pytest.mark.parametrize("ranks", [8, 16, 32, 64, 128, 256])
def test_exchanges_alone_on_the_fabric(quiet_r1: PricedModel, ranks: int) -> None:
    """128 tokens, top-8: 116 + 7.2 log2(p/8) and 118 + 6.2 log2(p/8) us (arXiv 2506.12708), within 18 %."""
    doublings = math.log2(ranks / 8)
    dispatch = estimate_ps(quiet_r1.profile, quiet_r1.dispatch_costs(1024, ranks), ranks, 1024)
    combine = estimate_ps(quiet_r1.profile, quiet_r1.combine_costs(1024, ranks), ranks, 1024)
    assert dispatch / US == pytest.approx(116 + 7.2 * doublings, rel=0.18)
    assert combine / US == pytest.approx(118 + 6.2 * doublings, rel=0.18)


@pytest.mark.parametrize(
    ("sequences", "context", "tpot_ms", "tolerance"),
    [(48, 4224, 49.4, 0.15), (64, 1536, 46.8, 0.15), (12, 4224, 24.6, 0.30)],
)
def test_points_nothing_was_fitted_to(
    r1: PricedModel, sequences: int, context: int, tpot_ms: float, tolerance: float
) -> None:
    """arXiv 2506.12708, EP320, 1.7 tokens a step: step = TPOT x 1.7. Fixed costs weigh most at 12."""
    case = DecodeCase(sequences=sequences, context=context, ranks=320, expert_slots=1)
    step = (sum(decode_kernels(r1, case).values()) + r1.step_overhead_ps) / MS
    assert step == pytest.approx(1.7 * tpot_ms, rel=tolerance)


def test_exchange_grows_with_rows_and_ranks(r1: PricedModel) -> None:
    for op in (DISPATCH, COMBINE):
        by_rows = [exchange_ps(r1, DecodeCase(sequences=n))[op] for n in (1, 8, 60, 120)]
        by_ranks = [exchange_ps(r1, DecodeCase(ranks=n))[op] for n in (16, 64, 288, 768)]
        assert by_rows == sorted(set(by_rows))
        assert by_ranks == sorted(set(by_ranks))


def test_closed_form_of_one_exchange() -> None:
    """Two ranks on one chip, worked by hand: 10 rows from each of the two, one port, one copy in the die."""
    model = PricedModel.load("deepseek-r1", load_profile(overrides={"exchange.in_situ_us": 1}))
    start = 5_000_000 + 1_800_000 + math.ceil(20 * 14_336 * 1000 / 250)
    meta = math.ceil(32 * 1000 / 210)
    pull = math.ceil(10 * 7680 * 1000 / 210)
    expected = start + meta + (2 * 68_000 + 1_000_000) + pull + 2 * 200_000
    assert estimate_ps(model.profile, model.dispatch_costs(20, 2), 2, 20) == expected


def test_an_exchange_for_k_layers_costs_k_exchanges(r1: PricedModel) -> None:
    for costs in (r1.dispatch_costs(1080, 288), r1.combine_costs(1080, 288)):
        one = estimate_ps(r1.profile, costs, 288, 1080)
        assert estimate_ps(r1.profile, costs.repeated(12), 288, 1080) == pytest.approx(12 * one, rel=1e-3)
        assert costs.repeated(1) == costs


def test_without_mtp_a_step_has_fewer_rows_and_layers(r1: PricedModel) -> None:
    plain = decode_kernels(r1, DecodeCase(queries=1, mtp=False))
    assert sum(plain.values()) < 0.75 * sum(decode_kernels(r1).values())


@pytest.mark.parametrize(("make", "columns"), [(attention_table, 1), (gemm_table, 3), (prefill_table, 2)])
def test_tables_grow_downwards(r1: PricedModel, make: object, columns: int) -> None:
    table = make(r1)  # type: ignore[operator]
    for column in table.columns[1 : 1 + columns]:
        values = [float(str(cell)) for cell in column.cells]
        assert values == sorted(values)
        assert values[-1] > values[0]


def test_the_command_prints_both_columns_and_sources() -> None:
    app = typer.Typer()
    cmd_prices.register(app)
    app.callback()(lambda: None)
    result = CliRunner().invoke(app, ["prices", "--sources", "--set", "ub.latency_inter_us=4"])
    assert result.exit_code == 0, result.output
    for word in ("QuantBatchMatmul", "published", "93 ms", "override", "mla_int8_share"):
        assert word in result.output


def test_overrides_of_the_command() -> None:
    assert cmd_run.parse_set(["a.b=1", "c = 2"]) == {"a.b": "1", "c": "2"}
    with pytest.raises(Exception, match="write key=value"):
        cmd_run.parse_set(["a.b"])


def test_source_table_lists_every_number() -> None:
    profile = load_profile()
    table = cmd_prices.source_table(profile)
    assert table.row_count == len(dict(profile.items()))
    Console(quiet=True).print(table)


def test_prices_are_whole_picoseconds(r1: PricedModel) -> None:
    kernels = decode_kernels(r1)
    assert all(type(ps) is int for ps in kernels.values())
    assert type(r1.layer_kernels(np.array([7]))["MultiLatentAttention"]) is int
