"""Token equality over every layout: `python benchmarks/layout_matrix.py [--ranks 1,4,16] [--json FILE]`.

240 cells: ranks 1, 4, 16, 64, 384 x prefix cache off/on x MTP 0/1/2 x experts moving no/yes x chunked prefill
off/on x preemption no/forced. The ranks start once for each number of ranks and serve its cells one after
another (`serving.series`). Every cell serves requests that share a prefix and must give the tokens and logits
of the one-process reference, bit for bit; cache hits, preemptions, moves of experts, accepted and rejected
drafts are counted, must have happened where the cell says so, and preemptions nowhere else. On one rank there
is nothing to move: its cells with `eplb` are the ones without it. Exit code 1 if a cell is wrong or empty.

`--json FILE` keeps what the file has of other cells; cells that were not finished when the ranks were ended
are "not run", and not written. `--pairwise` runs a sample in which every two
settings meet. What the machine charges is not known by cell, so of the invariants of a replay the one that
compares with the machine's bytes is left out.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from launch import run
from launch.cmd_replay import Running, machine_config
from serving.eplb.options import EplbOptions
from serving.job import PagingOptions, Progress, ReplayJob, read_results, write_reference
from serving.model import ModelConfig, make_checkpoint, preset_config
from serving.replay import Replay, plan_replay, write_replay
from serving.report import check_invariants, equal_to_reference, outcomes
from serving.series import write_series
from serving.traces import read_trace

RANKS = (1, 4, 16, 64, 384)
BUSY = {1: 1, 4: 4, 16: 8, 64: 4, 384: 2}
"""So many ranks have requests, three each; the others host experts."""
BLOCK, SCALE, OUTPUT = 128, 64, 14
PROMPT, SHARED = 1660, 1024
BUDGETS = {True: 1024, False: 8192}
ACCEPTANCE = (0.7, 0.6)
MOE_LAYERS, EXPERTS, INTERVAL = 2, 256, 2
RANK_BYTES = 24 << 20


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


def write_trace(path: Path, busy: int) -> int:
    """Two prompts that share a prefix for each rank at once, and a third soon; requests written."""
    rng = np.random.default_rng(5)
    rows = []
    for i in range(3 * busy):
        own = rng.integers(10, 1 << 40, 2).tolist()
        length, at_ms = (PROMPT, 0) if i < 2 * busy else (PROMPT - 64, 300)
        ids = [1, 2, *own]
        rows.append({"timestamp": at_ms, "input_length": length, "output_length": OUTPUT, "hash_ids": ids})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)


def run_cells(chosen: Sequence[Cell], folder: Path, model: Path) -> list[Outcome]:
    """Run cells of one number of ranks on one start."""
    ranks, config = chosen[0].ranks, ModelConfig.from_hf(model)
    folder.mkdir()
    count = write_trace(folder / "trace.jsonl", BUSY.get(ranks, ranks))
    lines = read_trace(folder / "trace.jsonl", count)
    plans = [plan_replay(cell.job(model), config, lines, 1.0, None) for cell in chosen]
    answers = answered(plans[0], folder / "reference")
    places = [folder / f"cell-{number}" for number in range(len(plans))]
    for plan, place in zip(plans, places, strict=True):
        place.mkdir()
        write_replay(plan, place)
        write_reference(place, answers)
        Progress(place, ranks, create=True)
    sizes = write_series(folder, places, [plan.machine_bytes for plan in plans])
    settings = machine_config(plans[0], folder, Running("shared", False, False, None)) | sizes
    shm_bytes = ranks * max(plan.touched_bytes for plan in plans)
    done = run.run_job(
        ranks, ["-m", "serving", str(folder)], settings, rank_bytes=RANK_BYTES, shm_bytes=shm_bytes
    )
    said = "" if not done.exit_code else f"the ranks ended with exit code {done.exit_code}"
    return [judge(*each, answers, said) for each in zip(chosen, plans, places, strict=True)]


def answered(plan: Replay, folder: Path) -> list[dict[str, Any]]:
    """What one process answers."""
    from serving.job import read_reference
    from serving.reference import answer_requests

    folder.mkdir()
    write_replay(plan, folder)
    answer_requests(str(folder))
    return read_reference(folder)


def judge(cell: Cell, plan: Replay, place: Path, answers: Sequence[Mapping[str, Any]], said: str) -> Outcome:
    """Whether answers are the reference's, and what should have happened has."""
    results = read_results(place)
    if len(results) != cell.ranks:
        return Outcome(cell, "not run" if said else "wrong", said or f"{len(results)} of {cell.ranks} ended")
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
    return (
        Outcome(cell, "empty", f"should and did not, or did: {odd}", counts)
        if odd
        else Outcome(cell, "right", "", counts)
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


def table(outcomes: Sequence[Outcome]) -> Table:
    """How many cells came out how, and what happened in them, for each number of ranks."""
    names = ("hits", "preemptions", "moves", "accepted", "rejected")
    verdicts = ("right", "wrong", "empty")
    shown = Table("ranks", *verdicts, *names, title="Tokens and logits equal the reference")
    for ranks in sorted({o.cell.ranks for o in outcomes}):
        mine = [o for o in outcomes if o.cell.ranks == ranks]
        row = [sum(o.verdict == v for o in mine) for v in verdicts]
        row += [sum(o.counts.get(name, 0) for o in mine) for name in names]
        shown.add_row(str(ranks), *map(str, row))
    return shown


def kept(path: Path | None, found: Sequence[Outcome]) -> list[Outcome]:
    """Outcomes of other cells that a result file has."""
    if path is None or not path.exists():
        return []
    known = [Outcome(Cell(**row.pop("cell")), **row) for row in json.loads(path.read_text())["cells"]]
    mine = {outcome.cell for outcome in found}
    return [outcome for outcome in known if outcome.cell not in mine]


def write_result(path: Path, all_outcomes: Sequence[Outcome]) -> None:
    """One line a cell."""
    ordered = sorted(all_outcomes, key=lambda o: astuple(o.cell))
    lines = ",\n".join(json.dumps(asdict(outcome)) for outcome in ordered)
    names = json.dumps([f.name for f in fields(Cell)])
    right = sum(outcome.verdict == "right" for outcome in ordered)
    path.write_text(f'{{"cell": {names}, "right": {right}, "cells": [\n{lines}\n]}}\n')


def main() -> None:
    """Run the matrix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    parser.add_argument("--pairwise", action="store_true", help="a sample in which every two settings meet")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    ranks = [int(word) for word in given.ranks.split(",")]
    chosen = list(cells(ranks))
    chosen = pairwise(chosen) if given.pairwise else chosen
    found: list[Outcome] = []
    with TemporaryDirectory(prefix="superpod-matrix-") as name:
        config = preset_config("mini")
        layers = config.first_k_dense_replace + MOE_LAYERS
        config = config.model_copy(update={"num_hidden_layers": layers, "num_nextn_predict_layers": 2})
        make_checkpoint(Path(name) / "model", config, 0)
        for n in ranks:
            begin = time.perf_counter()
            mine = [cell for cell in chosen if cell.ranks == n]
            found += run_cells(mine, Path(name) / f"ranks-{n}", Path(name) / "model")
            print(f"{n} ranks: {len(mine)} cells in {time.perf_counter() - begin:.0f} s", flush=True)
    for outcome in found:
        if outcome.verdict != "right":
            print(f"{outcome.verdict}: {outcome.cell}: {outcome.why}; {outcome.counts}")
    ran = [outcome for outcome in found if outcome.verdict != "not run"]
    every = kept(given.json, ran) + ran
    Console().print(table(every))
    if given.json is not None:
        write_result(given.json, every)
    sys.exit(any(outcome.verdict != "right" for outcome in found))


if __name__ == "__main__":
    main()
