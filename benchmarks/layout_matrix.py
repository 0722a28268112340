"""Token equality over every layout: `python benchmarks/layout_matrix.py [--ranks 1,4,16] [--json FILE]`.

240 cells: ranks 1, 4, 16, 64, 384 x prefix cache off/on x MTP 0/1/2 x experts moving no/yes x chunked prefill
off/on x preemption no/forced. The ranks start twice for each number of ranks and serve its cells one after
another (`serving.series`); one process answers the requests once for all of them. Every cell serves requests
that share a prefix and must give the tokens and logits of that process, bit for bit; cache hits, preemptions,
moves of experts, accepted and rejected drafts are counted, must have happened where the cell says so, and
preemptions nowhere else. On one rank there is nothing to move: its cells with `eplb` are the ones without it.
Exit code 1 if a cell is wrong, empty, or did not run.

`--json FILE` is written after every cell and keeps what it has of other cells; `--resume` leaves out cells
that are right in it. `--cells N` runs the first N (of each number of ranks) that are left. `--pairwise` runs
a sample in which every two settings meet.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from layout_cells import BUSY, RANKS, Cell, Outcome, cells, judge, model_config, pairwise, write_trace
from rich.console import Console
from rich.table import Table

from launch import run
from launch.cmd_replay import Running, machine_config
from serving.job import Progress, read_reference, read_results, write_reference
from serving.model import ModelConfig, make_checkpoint
from serving.reference import answer_requests
from serving.replay import Replay, plan_replay, write_replay
from serving.series import follow, write_series
from serving.traces import read_trace

RANK_BYTES = 24 << 20


def run_cells(
    chosen: Sequence[Cell], folder: Path, model: Path, ended: Callable[[Outcome], None] = lambda outcome: None
) -> list[Outcome]:
    """Run cells of one number of ranks on one start; `ended` hears of each as soon as it has run."""
    ranks, config = chosen[0].ranks, ModelConfig.from_hf(model)
    folder.mkdir()
    count = write_trace(folder / "trace.jsonl", ranks, BUSY.get(ranks, ranks))
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
    found: list[Outcome] = []

    def look(number: int) -> None:
        found.append(judge(chosen[number], plans[number], read_results(places[number]), answers))
        ended(found[-1])

    with follow(folder, look):
        exit_code = run_ranks(ranks, folder, plans, settings)
    while len(found) < len(chosen) and len(read_results(places[len(found)])) == ranks:
        look(len(found))  # nobody waits for the last one
    why = f"the ranks ended with exit code {exit_code}"
    return found + [Outcome(cell, "not run", why) for cell in chosen[len(found) :]]


def run_ranks(ranks: int, folder: Path, plans: Sequence[Replay], settings: Mapping[str, Any]) -> int:
    """Serve the series; exit code."""
    shm_bytes = ranks * max(plan.touched_bytes for plan in plans)
    argv = ["-m", "serving", str(folder)]
    return run.run_job(ranks, argv, settings, rank_bytes=RANK_BYTES, shm_bytes=shm_bytes).exit_code


def answered(plan: Replay, folder: Path) -> list[dict[str, Any]]:
    """What one process answers."""
    folder.mkdir()
    write_replay(plan, folder)
    answer_requests(str(folder))
    return read_reference(folder)


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


class Kept:
    """Outcomes by cell, in a file if there is one, with a line on the terminal for each that comes."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._begin_s, self._count, self.planned = path, time.perf_counter(), 0, 0
        self.outcomes: dict[Cell, Outcome] = {}
        if path is not None and path.exists():
            rows = json.loads(path.read_text())["cells"]
            known = [Outcome(Cell(**row.pop("cell")), **row) for row in rows]
            self.outcomes = {outcome.cell: outcome for outcome in known}

    def add(self, outcome: Outcome) -> None:
        """Keep one that has run, and say so."""
        self.outcomes[outcome.cell] = outcome
        self._count += 1
        took_s = time.perf_counter() - self._begin_s
        said = " ".join(f"{name}={value}" for name, value in asdict(outcome.cell).items())
        line = f"{self._count}/{self.planned} after {took_s:.0f} s: {said}: {outcome.verdict} {outcome.why}"
        print(line.rstrip(), flush=True)
        if self._path is not None:
            self._write(self._path)

    def _write(self, path: Path) -> None:
        """One line a cell; the old file stays until the new one is whole."""
        ordered = sorted(self.outcomes.values(), key=lambda o: astuple(o.cell))
        lines = ",\n".join(json.dumps(asdict(outcome)) for outcome in ordered)
        names = json.dumps([f.name for f in fields(Cell)])
        right = sum(outcome.verdict == "right" for outcome in ordered)
        part = path.with_name(path.name + ".part")
        part.write_text(f'{{"cell": {names}, "right": {right}, "cells": [\n{lines}\n]}}\n')
        part.replace(path)


def wanted(given: argparse.Namespace, kept: Kept) -> Iterator[list[Cell]]:
    """The cells to run, for each number of ranks; those whose experts move apart, for their ranks hold more
    experts and so have an exchange of their own: 384 ranks with both need 30 GB."""
    ranks = [int(word) for word in given.ranks.split(",")]
    chosen = list(cells(ranks))
    chosen = pairwise(chosen) if given.pairwise else chosen
    if given.resume:
        right = {cell for cell, outcome in kept.outcomes.items() if outcome.verdict == "right"}
        chosen = [cell for cell in chosen if cell not in right]
    for n in ranks:
        mine = [cell for cell in chosen if cell.ranks == n][: given.cells]
        yield from filter(None, ([cell for cell in mine if cell.eplb == eplb] for eplb in (False, True)))


def main() -> None:
    """Run the matrix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    parser.add_argument("--pairwise", action="store_true", help="a sample in which every two settings meet")
    parser.add_argument("--resume", action="store_true", help="leave out what is right in the result file")
    parser.add_argument("--cells", type=int, help="so many of each number of ranks")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    kept, found = Kept(given.json), list[Outcome]()
    groups = list(wanted(given, kept))
    kept.planned = sum(map(len, groups))
    with TemporaryDirectory(prefix="superpod-matrix-") as name:
        model = Path(name) / "model"
        if groups:
            make_checkpoint(model, model_config(), 0)
        for mine in groups:
            begin_s, n = time.perf_counter(), mine[0].ranks
            found += run_cells(mine, Path(name) / f"ranks-{n}-{mine[0].eplb}", model, kept.add)
            print(f"{n} ranks: {len(mine)} cells in {time.perf_counter() - begin_s:.0f} s", flush=True)
    for outcome in found:
        if outcome.verdict != "right":
            print(f"{outcome.verdict}: {outcome.cell}: {outcome.why}; {outcome.counts}")
    Console().print(table(list(kept.outcomes.values())))
    sys.exit(any(outcome.verdict != "right" for outcome in found))


if __name__ == "__main__":
    main()
