"""Price lists a person can check: one decode iteration beside the published one, and how prices grow.

The decode iteration is a closed form with uniform routing. What is published (arXiv 2508.02520v6 7.1): 288
dies decode 60 sequences each at about 3K tokens of context in 93 ms, plus 2 ms between iterations, and yield
1.9 tokens a sequence because one drafted token is verified with each. A main-model step therefore has 60 x 2
= 120 rows a die, and so has the MTP layer (static shapes of a captured graph). That the 93 ms include the MTP
layer, that it runs on 120 rows, and that every die computes the whole output head, is assumed. Evidence for
120 rows rather than 60: the fastest dispatch and combine seen in situ (185 and 165 us) fit the 152 and 149 us
of a stand-alone exchange of 128 tokens, not that of 64.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from rich.table import Table

from emulator.profile import exact
from serving.exchange_price import estimate_ps
from serving.pricing import ATTENTION, MATMUL, OTHERS, PREPROCESS, Kernels, PricedModel

COMBINE, DISPATCH = "MoE-Combine", "MoE-Dispatch"

#: Kernel shares of the iteration in percent, and its length; arXiv 2508.02520v6 7.1, Fig 20.
PUBLISHED_SHARES: Final = {
    MATMUL: 22.1,
    ATTENTION: 21.8,
    COMBINE: 20.4,
    DISPATCH: 15.3,
    OTHERS: 11.7,
    PREPROCESS: 8.7,
}
PUBLISHED_ITERATION_MS: Final = 93.0
PUBLISHED_EXCHANGE_US: Final = {DISPATCH: 234.0, COMBINE: 312.0}

_MS, _US = 10**9, 10**6


@dataclass(frozen=True)
class DecodeCase:
    """One decode iteration of a die, the defaults being the published one.

    sequences: decoding on the die; context: tokens each attends to; ranks: dies that exchange; queries: rows
    a sequence has in a step; rows_per_token: routed and placed shared experts a token goes to; expert_slots:
    experts of one layer on the die, one routed or shared and one redundant; mtp: the MTP layer runs too.
    """

    sequences: int = 60
    context: int = 3072
    ranks: int = 288
    queries: int = 2
    rows_per_token: int = 9
    expert_slots: int = 2
    mtp: bool = True

    @property
    def rows(self) -> int:
        """Rows of the die in each layer."""
        return self.sequences * self.queries


def decode_kernels(model: PricedModel, case: DecodeCase | None = None) -> Kernels:
    """Return the time of each kernel over one decode iteration, in ps, without the bubble after it."""
    case = case or DecodeCase()
    shape, mtp = model.shape, model.shape.mtp_layers if case.mtp else 0
    total: Counter[str] = Counter()
    _add(total, _attention_kernels(model, case), shape.layers + mtp)
    _add(total, model.dense_mlp_kernels(case.rows), shape.dense_layers)
    _add(total, _moe_kernels(model, case), shape.moe_layers + mtp)
    _add(total, {OTHERS: model.head_ps(case.rows)}, 1 + mtp)
    _add(total, {MATMUL: model.mtp_projection_ps(case.rows)}, mtp)
    return dict(total)


def exchange_ps(model: PricedModel, case: DecodeCase) -> Kernels:
    """Return one dispatch and one combine, each with its wait for the slowest die: a dispatch waits for the
    attention of others, a combine for their experts."""
    rows = case.rows * case.rows_per_token
    dispatch = estimate_ps(model.profile, model.dispatch_costs(rows, case.ranks), case.ranks, rows)
    combine = estimate_ps(model.profile, model.combine_costs(rows, case.ranks), case.ranks, rows)
    attention = sum(_attention_kernels(model, case).values()) + model.router_ps(case.rows)
    experts = sum(_expert_kernels(model, case).values())
    return {
        DISPATCH: dispatch + _wait_ps(model, "estimate.attention_imbalance", attention),
        COMBINE: combine + _wait_ps(model, "estimate.expert_imbalance", experts),
    }


def _wait_ps(model: PricedModel, key: str, mean_ps: int) -> int:
    return int((exact(model.entries.value(key)) - 1) * mean_ps)


def _moe_kernels(model: PricedModel, case: DecodeCase) -> Kernels:
    experts = _expert_kernels(model, case)
    return {
        MATMUL: experts[MATMUL],
        OTHERS: experts[OTHERS] + model.router_ps(case.rows),
        **exchange_ps(model, case),
    }


def _attention_kernels(model: PricedModel, case: DecodeCase) -> Kernels:
    return model.layer_kernels(np.full(case.sequences, case.context), queries=case.queries)


def _expert_kernels(model: PricedModel, case: DecodeCase) -> Kernels:
    """Uniform routing over equal dies: a die receives as many rows as it sends, spread over its slots."""
    rows = case.rows * case.rows_per_token
    slots = [rows // case.expert_slots + (j < rows % case.expert_slots) for j in range(case.expert_slots)]
    return model.experts_kernels(slots)


def _add(total: Counter[str], kernels: Kernels, times: int) -> None:
    for name, ps in kernels.items():
        total[name] += ps * times


def decode_table(model: PricedModel, case: DecodeCase | None = None) -> Table:
    """Return one decode iteration, kernel by kernel, beside the published shares."""
    case = case or DecodeCase()
    kernels = decode_kernels(model, case)
    total = sum(kernels.values())
    table = Table(title=f"One decode iteration of {model.name}", caption=_caption(model, case))
    for column in ("kernel", "ms", "share %", "published %", "us a layer"):
        table.add_column(column, justify="left" if column == "kernel" else "right")
    for name, published in PUBLISHED_SHARES.items():
        ps = kernels.get(name, 0)
        per_layer = ps / _US / (model.shape.layers or 1)
        table.add_row(
            name, f"{ps / _MS:.2f}", f"{100 * ps / total:.1f}", f"{published:.1f}", f"{per_layer:.0f}"
        )
    table.add_section()
    table.add_row("iteration", f"{total / _MS:.2f}", "100.0", f"{PUBLISHED_ITERATION_MS:g} ms", "")
    table.add_row("with bubble", f"{(total + model.step_overhead_ps) / _MS:.2f}", "", "95 ms", "")
    return table


def _caption(model: PricedModel, case: DecodeCase) -> str:
    exchange = exchange_ps(model, case)
    return (
        f"{case.ranks} dies, {case.sequences} sequences x {case.queries} rows a die, context {case.context}; "
        f"uniform routing, closed form. One dispatch {exchange[DISPATCH] / _US:.0f} us (in situ "
        f"{PUBLISHED_EXCHANGE_US[DISPATCH]:g}), one combine {exchange[COMBINE] / _US:.0f} us "
        f"({PUBLISHED_EXCHANGE_US[COMBINE]:g}). Published: arXiv 2508.02520v6 7.1."
    )


def attention_table(
    model: PricedModel, contexts: Sequence[int] = (1024, 2048, 4096, 8192, 16384, 32768)
) -> Table:
    """Return the price of one layer's decode attention against the KV length, 60 sequences of one row."""
    table = _growth("Decode attention of one layer, 60 sequences", "context", ("us", "KV MB"))
    for context in contexts:
        ps = model.layer_kernels(np.full(60, context))[ATTENTION]
        table.add_row(
            f"{context:,}", f"{ps / _US:.1f}", f"{60 * context * model.kv_bytes_per_layer / 1e6:.0f}"
        )
    return table


def gemm_table(model: PricedModel, batches: Sequence[int] = (1, 8, 32, 60, 120, 256, 512, 1024)) -> Table:
    """Return prices of matrix products against the rows of a batch: output projection, one expert, head."""
    table = _growth("Matrix products against the batch", "rows", ("output us", "one expert us", "head us"))
    for rows in batches:
        output = model.layer_kernels(np.full(rows, 1024))[MATMUL]
        prices = (output, model.experts_kernels([rows])[MATMUL], model.head_ps(rows))
        table.add_row(f"{rows:,}", *(f"{ps / _US:.1f}" for ps in prices))
    return table


def prefill_table(
    model: PricedModel, lengths: Sequence[int] = (256, 1024, 2048, 4096, 16384, 65536)
) -> Table:
    """Return the price of one layer's attention block for a whole prompt against its length."""
    table = _growth(
        "Prefill of one prompt, attention block of one layer", "tokens", ("attention us", "all us")
    )
    for length in lengths:
        kernels = model.layer_kernels(np.zeros(0, dtype=np.int64), [(0, length)])
        table.add_row(f"{length:,}", f"{kernels[ATTENTION] / _US:.1f}", f"{sum(kernels.values()) / _US:.1f}")
    return table


def price_tables(model: PricedModel) -> list[Table]:
    """Return all tables: the decode iteration, attention, matrix products, prefill."""
    return [decode_table(model), attention_table(model), gemm_table(model), prefill_table(model)]


def _growth(title: str, first: str, columns: Sequence[str]) -> Table:
    table = Table(title=title)
    for column in (first, *columns):
        table.add_column(column, justify="right")
    return table
