"""How many cube cores decode's attention stream gets: such that the longer stream is shortest. Pure.

Published (arXiv 2506.12708 4.2, summary) are 16 of 24, and 32 of 48 vector cores, at which both streams take
about 600 us. That is what this rule gives for contexts of 4K and 96 sequences a chip; that the system divides
its cores by the same rule where batch or context is another is assumed.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from collectives.libraries import EpCharges
from emulator.npu import ceil_ps
from emulator.topology import Topology, write_bytes_per_s
from serving.decode.charges import step_kernels
from serving.job import DecodeOptions
from serving.pricing import PricedModel
from serving.published.cases import Case
from serving.published.lanes import ROWS_A_TOKEN, costs_of
from serving.published.routing import Routing
from serving.published.system import System, load_system, streams_at


@cache
def attention_cores(case: Case) -> int:
    """Cube cores of the attention stream; 0 where there is one stream. Ties go to fewer."""
    if case.phase != "decode" or case.microbatches == 1:
        return 0
    system = load_system(case.system)
    most = system.whole.profile.integer("die.aic_cores")
    return min(range(1, most), key=lambda cores: max(stream_times(streams_at(system, cores), case)))


def stream_times(system: System, case: Case) -> tuple[int, int]:
    """What attention, and router to combine, of half a batch take on their streams, ps: all contexts of the
    mean length, experts of the busiest die, rows spread evenly over the ports."""
    tokens, sequences = case.tokens // 2, case.batch // 2
    kv = np.full(sequences, (case.low + case.high) // 2, np.int64)
    options = DecodeOptions(1, case.queries, case.mtp, True)
    attention = sum(step_kernels(system.attention, kv, options).attention.values())
    routing = Routing(case.ranks, 1.0 if case.balanced else system.expert_imbalance)
    rows = round(tokens * ROWS_A_TOKEN * routing.imbalance)
    slots = routing.slots_per_die
    experts = system.moe.experts_ps([rows // slots + (i < rows % slots) for i in range(slots)])
    out, back = (
        costs_of(system.library, system.moe.profile, operation, case.ranks, system.moe.shape.hidden, tokens)
        for operation in ("dispatch", "combine")
    )
    moved = _exchange_ps(system.moe, out, case.ranks, rows) + _exchange_ps(system.moe, back, case.ranks, rows)
    return attention, experts + moved


def _exchange_ps(model: PricedModel, costs: EpCharges, ranks: int, rows: int) -> int:
    """Start, all rows through one port, end."""
    rates = write_bytes_per_s(model.profile)
    classes = np.bincount(Topology.from_profile(model.profile, ranks).classes(0), minlength=len(rates))
    each = rows * costs.row_bytes // ranks
    busy = sum(int(n) * ceil_ps(each, rate) for n, rate in zip(classes[1:], rates[1:], strict=True))
    return costs.start_ps + busy + costs.pull_start_ps
