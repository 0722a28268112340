"""One decode iteration priced as DeepSeek-R1 beside the published one, run over the emulated fabric.

    superpod run -n 288 benchmarks/decode_iteration.py --model DIR

DP288/EP288, 60 sequences a die, about 3K tokens of context, one MTP layer, 256 routed and 32 shared experts,
a spare slot a die. Published (arXiv 2508.02520v6 section 7.1): 93 ms, and the share of each kernel. Routing
is the functional model's own; each row it sends stands for the two rows of a sequence (one verified draft
token). Prints a table and one line of JSON; the closed form with uniform routing is `superpod prices`.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import emulator
from serving.ahead import common_parts
from serving.charges import Charges, LayerPlan, StepCharge, plan_layers
from serving.exchange_price import ExchangeCosts
from serving.forward import ExpertLink, Forward, Received
from serving.job import ReplayJob
from serving.model.config import ModelConfig
from serving.price_tables import (
    COMBINE,
    DISPATCH,
    PUBLISHED_ITERATION_MS,
    PUBLISHED_SHARES,
    DecodeCase,
    decode_kernels,
)
from serving.pricing import PricedModel
from serving.rank_main import build
from serving.request import RequestSpec
from serving.scheduler import Segment

CASE = DecodeCase()
SCALE = 512
STEPS = 12
MS = 1e9
Rows = NDArray[np.float32]
Layers = Sequence[tuple[ExchangeCosts, ExchangeCosts]]


class IterationCharges(Charges):
    """A step with `queries` rows a sequence, two heads and the MTP layer's projection.

    `decoding` tells whether the latest step was one: every sequence of the die decoding.
    """

    decoding = False

    def step(self, segments: Sequence[Segment]) -> StepCharge:
        charge = super().step(segments)
        self.decoding = len(segments) == CASE.sequences and all(segment.decode for segment in segments)
        if not self.decoding:
            return charge
        kv = np.array([segment.priced_start + 1 for segment in segments], dtype=np.int64)
        rows = len(segments) * CASE.queries
        attention = sum(self.priced.layer_kernels(kv, queries=CASE.queries).values())
        heads = 2 * self.priced.head_ps(rows) + self.priced.mtp_projection_ps(rows)
        return StepCharge(
            rows=rows,
            attention_ps=attention + self.priced.router_ps(rows),
            dense_attention_ps=attention,
            dense_ps=self.priced.dense_mlp_ps(rows),
            shared_ps=0,
            head_ps=heads,
        )


class IterationLink:
    """A link whose decode rows stand for `queries` priced rows, and that times dispatch and combine."""

    def __init__(self, link: ExpertLink, device: emulator.Device, charges: IterationCharges) -> None:
        self._link, self._device, self.charges = link, device, charges
        self.spent = {DISPATCH: 0, COMBINE: 0}

    def dispatch(
        self, x: Rows, slots: NDArray[np.int64], shares: NDArray[np.int64], costs: ExchangeCosts
    ) -> Received:
        begin = self._device.now_ps
        shares = shares * (CASE.queries if self.charges.decoding else 1)
        received = self._link.dispatch(x, slots, shares, costs)
        self.spent[DISPATCH] += self._device.now_ps - begin
        return received

    def combine(self, received: Received, results: Rows, weights: Rows, costs: ExchangeCosts) -> Rows:
        begin = self._device.now_ps
        out = self._link.combine(received, results, weights, costs)
        self.spent[COMBINE] += self._device.now_ps - begin
        return out

    def idle(self, layers: Layers) -> tuple[int, Received | None]:
        return self._link.idle(layers)

    def combine_then_idle(
        self, received: Received, results: Rows, costs: ExchangeCosts, layers: Layers
    ) -> tuple[int, Received | None]:
        return self._link.combine_then_idle(received, results, costs, layers)


class Watch:
    """In the place of the progress display: virtual time and exchange time at the end of each step."""

    def __init__(self) -> None:
        self.link: IterationLink | None = None
        self.steps: list[tuple[int, int, int, bool]] = []

    def update(self, rank: int, ended: int, now_ps: int) -> None:
        assert self.link is not None
        spent, decoding = self.link.spent, self.link.charges.decoding
        self.steps.append((now_ps, spent[DISPATCH], spent[COMBINE], decoding))

    def mean(self) -> list[int]:
        """Mean of a pure decode step after another: its length, its dispatches, its combines, ps."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        steps = [np.subtract(b[:3], a[:3]) for a, b in pairs if a[3] and b[3]]
        return [int(x) for x in np.mean(steps[:3], axis=0)]


def with_mtp(plans: list[LayerPlan]) -> list[LayerPlan]:
    """The MTP layer is one more MoE layer: the executed one that stands for fewest takes it."""
    least = min((plan for plan in plans if plan.is_moe), key=lambda plan: plan.repeat)
    return [replace(plan, repeat=plan.repeat + 1) if plan is least else plan for plan in plans]


def requests(count: int, steps: int) -> list[RequestSpec]:
    """Sequences of the published context; a computed prompt token stands for `SCALE`."""
    draw = np.random.default_rng(0).integers(0, 512, (count, CASE.context // SCALE))
    return [RequestSpec(i, 0, p, CASE.context, SCALE, steps + 1, False, i) for i, p in enumerate(draw)]


def print_result(model: PricedModel, case: DecodeCase, figures: dict[str, float]) -> None:
    """The emulated iteration beside the published one."""
    kernels = {name: ps / MS for name, ps in decode_kernels(model, case).items()}
    kernels |= {DISPATCH: figures["dispatch_ms"], COMBINE: figures["combine_ms"]}
    total = figures["iteration_ms"]
    table = Table(
        title=f"Decode iteration, DP{case.ranks}/EP{case.ranks}, {case.sequences} a die, 3K context"
    )
    for column in ("kernel", "ms", "share %", "published %"):
        table.add_column(column, justify="right" if column != "kernel" else "left")
    for name, published in PUBLISHED_SHARES.items():
        share = 100 * kernels[name] / total
        table.add_row(name, f"{kernels[name]:.2f}", f"{share:.1f}", f"{published:.1f}")
    table.add_row("iteration", f"{total:.2f}", "", f"{PUBLISHED_ITERATION_MS} ms")
    Console(width=100).print(table)
    figures["error_percent"] = round(100 * (total / PUBLISHED_ITERATION_MS - 1), 2)
    print(json.dumps(figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="mini checkpoint: superpod make-checkpoint DIR")
    parser.add_argument("--redundant-experts", type=int, default=256)
    args = parser.parse_args()
    ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
    case = replace(CASE, ranks=ranks)
    job = ReplayJob(
        model_dir=args.model,
        num_ranks=ranks,
        priced_as="deepseek-r1",
        profile="cloudmatrix384",
        token_scale=SCALE,
        batched_tokens=case.sequences * SCALE,
        max_seqs=case.sequences,
        shared_experts="placed",
        redundant_experts=args.redundant_experts,
    )
    device = emulator.init(heap_bytes=1 << 16, staging_bytes=1 << 16, managed_bytes=24 << 20)
    watch = Watch()
    specs = requests(ranks * case.sequences, STEPS)
    common = common_parts(job, specs, device.profile)
    engine, record, _ = build(common, specs, device, watch)
    forward = engine._forward
    assert isinstance(forward, Forward)
    charges = IterationCharges(forward._charges.priced, ranks, shared_local=False)
    watch.link = IterationLink(forward._link, device, charges)
    plans = with_mtp(plan_layers(ModelConfig.from_hf(args.model), charges.priced))
    engine._forward = Forward(
        device.rank,
        device,
        forward._model,
        plans,
        charges,
        forward._placement,
        watch.link,
        forward._kv,
        record.time,
    )
    engine.run()
    mine = watch.mean()
    means = [int(device.exchange(0, None, 0, tag=value).tags.mean()) / MS for value in mine]
    if device.rank == 0:
        figures = dict(zip(("iteration_ms", "dispatch_ms", "combine_ms"), means, strict=True))
        figures["iteration_ms"] -= charges.step_overhead_ps / MS  # the published 93 ms are without the bubble
        print_result(charges.priced, case, {k: round(v, 3) for k, v in figures.items()} | {"ranks": ranks})
    emulator.finalize()


if __name__ == "__main__":
    main()
