"""The layouts of `layout_matrix.py`: what a cell is, the replay that it is, and whether it came out right."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from serving.eplb.options import EplbOptions
from serving.job import PagingOptions, ReplayJob
from serving.model import ModelConfig, preset_config
from serving.replay import Replay
from serving.report import check_invariants, equal_to_reference, outcomes

RANKS = (1, 4, 16, 64, 384)
BUSY = {1: 1, 4: 2, 16: 4, 64: 2, 384: 2}
"""So many ranks, the first ones, have three long requests each. The others have two of one token."""
BLOCK, SCALE, OUTPUT = 128, 64, 14
PROMPT, SHARED = 1660, 1024
BUDGETS = {True: 1024, False: 8192}
ACCEPTANCE = (0.7, 0.6)
DENSE_LAYERS, MOE_LAYERS, EXPERTS, INTERVAL = 1, 2, 256, 2


@dataclass(frozen=True)
class Cell:
    """One layout."""

    ranks: int
    prefix_cache: bool
    mtp: int
    eplb: bool
    chunked: bool
    preempted: bool

    def blocks(self) -> int:
        """KV blocks of a rank; where preemption is forced two prompts fill them but for 8 tokens, with the
        prefix they share counted once. (With drafts a block's content depends on the tokens after it, so the
        last block before prompts part is not shared.)"""
        if not self.preempted:
            return 0
        shared = SHARED // BLOCK - (self.mtp > 0) if self.prefix_cache else 0
        return 2 * -(-PROMPT // BLOCK) - shared

    def job(self, model: Path) -> ReplayJob:
        """The replay that is this layout."""
        moving = self.eplb and self.ranks > 1
        return ReplayJob(
            model_dir=str(model),
            num_ranks=self.ranks,
            priced_as="deepseek-r1",
            profile="cloudmatrix384",
            overrides={"vpc.storage_gb_per_s": "1e6"},  # so that a move ends within a cell
            token_scale=SCALE,
            batched_tokens=BUDGETS[self.chunked],
            redundant_experts=max(16, self.ranks - EXPERTS) if moving else 0,
            eplb=EplbOptions("xdeepserve", INTERVAL) if moving else None,
            check_memory=False,
            paging=PagingOptions(BLOCK, self.blocks(), self.prefix_cache, self.chunked),
            balancing="round-robin",
            mtp=self.mtp,
            mtp_acceptance=ACCEPTANCE[: self.mtp],
        )


@dataclass
class Outcome:
    """What came of a cell: right; wrong; empty, where what it is for never happened; or not run."""

    cell: Cell
    verdict: str
    why: str = ""
    counts: dict[str, int] = field(default_factory=dict)


def cells(ranks: Sequence[int]) -> Iterator[Cell]:
    """All layouts of these numbers of ranks, 48 for each."""
    truth = (False, True)
    for values in itertools.product(ranks, truth, (0, 1, 2), truth, truth, truth):
        yield Cell(*values)


def pairwise(every: Sequence[Cell]) -> list[Cell]:
    """Few of these cells, in which all pairs of settings of two fields come together: greedy, in order."""

    def pairs(cell: Cell) -> set[tuple[Any, ...]]:
        values = list(enumerate(astuple(cell)))
        return set(itertools.combinations(values, 2))

    missing: set[tuple[Any, ...]] = set().union(*(pairs(cell) for cell in every))
    chosen = []
    while missing:
        best = max(every, key=lambda cell: len(pairs(cell) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


def model_config() -> ModelConfig:
    """DeepSeek-V3's architecture, small, with all its 256 experts and two draft layers."""
    layers = {"first_k_dense_replace": DENSE_LAYERS, "num_hidden_layers": DENSE_LAYERS + MOE_LAYERS}
    return preset_config("mini").model_copy(update={**layers, "num_nextn_predict_layers": 2})


def write_trace(path: Path, ranks: int, busy: int) -> int:
    """Requests for each rank by turns: two long ones at once for the first `busy` ranks, a third soon, their
    prompts with the same beginning; the other ranks have a short one in between. Requests written."""
    first, rest = range(busy), range(busy, ranks)
    turns = [
        (0, PROMPT, first),
        (0, 0, rest),
        (0, PROMPT, first),
        (300, 0, rest),
        (300, PROMPT - SCALE, first),
    ]
    rng, rows = np.random.default_rng(5), []
    for at_ms, length, places in turns:
        for own in rng.integers(10, 1 << 40, (len(places), 2)).tolist():
            ids = [1, 2, *own] if length else own[:1]
            size = {"input_length": length or SCALE, "output_length": OUTPUT if length else 1}
            rows.append({"timestamp": at_ms, **size, "hash_ids": ids})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)


def judge(
    cell: Cell, plan: Replay, results: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
) -> Outcome:
    """Whether answers are the reference's, and what should have happened has. What the machine charged is not
    known by cell, so the invariant that compares with its bytes is left out."""
    endings, counts = outcomes(results), count(results)
    holds = check_invariants(plan.specs, results, endings, cell.ranks, 0)
    broken = [name for name, ok in holds.items() if not ok and name != "fabric_charged_what_was_posted"]
    differing = equal_to_reference(endings, answers)
    if differing or broken or len(endings) != len(answers):
        return Outcome(cell, "wrong", f"requests {differing} differ; broken: {broken}", counts)
    wanted = {
        "hits": cell.prefix_cache,
        "preemptions": cell.preempted,
        "moves": cell.eplb and cell.ranks > 1,
        "rejected": cell.mtp > 0,
        "accepted": cell.mtp > 0,
    }
    odd = [name for name, asked in wanted.items() if bool(counts[name]) != asked]
    return Outcome(
        cell, "empty" if odd else "right", f"should and did not, or did: {odd}" if odd else "", counts
    )


def count(results: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Events of a cell: hits and tokens computed again in priced tokens, experts moved, drafts."""
    drafts = [result["speculation"] for result in results if "speculation" in result]
    rounds = [r for r in results[0].get("balancing", []) if "restored_ps" in r]
    return {
        "requests": sum(len(result["requests"]) for result in results),
        "tokens": sum(len(entry["tokens"]) for result in results for entry in result["requests"]),
        "steps": results[0]["steps"],
        "hits": sum(result["cache"]["hit"] for result in results),
        "preemptions": sum(result["cache"]["preemptions"] for result in results),
        "moves": sum(r["moves"] for r in rounds),
        "accepted": sum(sum(each["taken"]) for each in drafts),
        "rejected": sum(each["rejected"] for each in drafts),
    }
