"""Token equality over every layout: `python benchmarks/layout_matrix.py [--ranks 1,4,16] [--json FILE]`.

240 cells: ranks 1, 4, 16, 64, 384 x prefix cache off/on x MTP 0/1/2 x experts moving no/yes x chunked prefill
off/on x preemption no/forced. Every cell serves requests that share a prefix, and must give the tokens and
logits of the one-process reference, bit for bit; in the cells that say so, cache hits, preemptions and moves
of experts are counted and must have happened. Exit code 1 if a cell that ran is wrong or empty.

Experts move only where routing is uneven enough: give `--model` a checkpoint made with `--expert-skew`.
What cannot be asked for (an option this build does not have) is a cell "not there": it is listed, never
counted as right.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from launch import cmd_replay

RANKS = (1, 4, 16, 64, 384)
VERDICTS = ("right", "wrong", "empty", "not there")
BLOCK, SCALE, BUDGET = 128, 64, 1024
OUTPUT = 24
COMMON = ["--token-scale", str(SCALE), "--no-memory-check", "--load-balancing", "round-robin"]


@dataclass(frozen=True)
class Cell:
    """One layout."""

    ranks: int
    prefix_cache: bool
    mtp: int
    eplb: bool
    chunked: bool
    preempted: bool

    def options(self) -> list[str]:
        """Words for `superpod replay`."""
        words = ["--block-size", str(BLOCK)]
        words += ["--enable-prefix-caching"] if self.prefix_cache else []
        words += ["--max-num-batched-tokens", str(BUDGET if self.chunked else 8192)]
        words += [] if self.chunked else ["--no-enable-chunked-prefill"]
        if self.preempted:  # two prompts fill these exactly, with the prefix they share counted once
            words += ["--num-gpu-blocks-override", "18" if self.prefix_cache else "26"]
        words += ["--mtp", str(self.mtp)] if self.mtp else []
        if self.eplb and self.ranks > 1:  # one rank holds every expert once: there is nothing to move
            spare = str(max(16, self.ranks - 256))
            words += ["--eplb", "xdeepserve", "--eplb-step-interval", "6", "--redundant-experts", spare]
        return words


@dataclass
class Outcome:
    """What came of a cell: right; wrong; empty, where what it is for never happened; or not there."""

    cell: Cell
    verdict: str
    why: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0


def cells(ranks: list[int]) -> Iterator[Cell]:
    """All layouts of these numbers of ranks, 48 for each."""
    truth = (False, True)
    for values in itertools.product(ranks, truth, (0, 1, 2), truth, truth, truth):
        yield Cell(*values)


def write_trace(path: Path, num_ranks: int) -> int:
    """Two prompts that share a prefix for each of the first ranks, arriving by two; requests written.

    Two that run together fill 26 blocks exactly, or 18 where they share 8, so that their answers find none.
    """
    busy = min(num_ranks, 8)
    count = 3 * busy
    rng = np.random.default_rng(5)
    rows = []
    for i in range(count):
        length = 1664 if i < 2 * busy else 1600
        own = rng.integers(10, 1 << 40, -(-length // 512) - 2).tolist()
        arrival = 0 if i < 2 * busy else 4000
        rows.append({"timestamp": arrival, "input_length": length, "output_length": OUTPUT,
                     "hash_ids": [1, 2, *own]})  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return count


def serve(cell: Cell, folder: Path, model: list[str], check: bool, known: set[str]) -> Outcome:
    """Run one cell."""
    missing = [word for word in cell.options() if word.startswith("--") and word not in known]
    if missing:
        return Outcome(cell, "not there", f"no option {missing[0]}")
    trace, out = folder / f"trace{min(cell.ranks, 8)}.jsonl", folder / "out.json"
    count = write_trace(trace, cell.ranks)
    words = ["superpod", "replay", "-n", str(cell.ranks), "--trace", str(trace), "--requests", str(count)]
    words += [*COMMON, *model, *cell.options(), "--json", str(out), *(["--check-reference"] if check else [])]
    start = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True)
    wall = time.perf_counter() - start
    if done.returncode:
        return Outcome(cell, "wrong", (done.stderr.strip().splitlines() or ["no message"])[-1], {}, wall)
    return judge(cell, json.loads(out.read_text()), count, wall)


def judge(cell: Cell, result: dict[str, Any], count: int, wall: float) -> Outcome:
    """Whether what should have happened has."""
    counts = {
        "hits": result["cache"]["hit"],
        "preemptions": result["cache"]["preemptions"],
        "moves": result.get("eplb", {}).get("moves", 0),
        "rejected": result.get("mtp", {}).get("rejected", 0),
    }
    wanted = {
        "hits": cell.prefix_cache,
        "preemptions": cell.preempted,
        "moves": cell.eplb and cell.ranks > 1,
        "rejected": bool(cell.mtp),
    }
    absent = [name for name, asked in wanted.items() if asked and not counts[name]]
    broken = [name for name, holds in result["invariants"].items() if not holds]
    if result["completed"] != count or broken:
        return Outcome(cell, "wrong", f"{result['completed']} of {count} completed; {broken}", counts, wall)
    if absent:
        return Outcome(cell, "empty", f"never happened: {', '.join(absent)}", counts, wall)
    counts["logits"] = result["logits_sha256"]
    return Outcome(cell, "right", "", counts, wall)


def compare(outcomes: list[Outcome], reference: dict[int, str]) -> None:
    """A cell is wrong whose logits are not those of its workload's reference."""
    for outcome in outcomes:
        logits = outcome.counts.pop("logits", None)
        if outcome.verdict == "right" and logits != reference[min(outcome.cell.ranks, 8)]:
            outcome.verdict, outcome.why = "wrong", "tokens or logits differ from the reference"


def references(folder: Path, model: list[str], ranks: list[int]) -> dict[int, str]:
    """Hash of all logits of each workload, from a run that one process has checked bit for bit."""
    found = {}
    for busy in sorted({min(n, 8) for n in ranks}):
        trace, out = folder / f"reference{busy}.jsonl", folder / "reference.json"
        count = write_trace(trace, busy)
        words = ["superpod", "replay", "-n", "1", "--trace", str(trace), "--requests", str(count), *COMMON]
        words += [*model, "--check-reference", "--json", str(out)]
        subprocess.run(words, check=True, capture_output=True)
        result = json.loads(out.read_text())
        assert result["tokens_equal_reference"] is True
        found[busy] = result["logits_sha256"]
    return found


def known_options() -> set[str]:
    """Options `superpod replay` has."""
    app = typer.Typer()
    cmd_replay.register(app)
    return {word for p in typer.main.get_command(app).params for word in (*p.opts, *p.secondary_opts)}


def table(outcomes: list[Outcome]) -> Table:
    """How many cells came out how, for each number of ranks."""
    shown = Table("ranks", *VERDICTS, title="Tokens and logits equal the reference")
    for ranks in sorted({o.cell.ranks for o in outcomes}):
        mine = [o.verdict for o in outcomes if o.cell.ranks == ranks]
        shown.add_row(str(ranks), *(str(mine.count(v)) for v in VERDICTS))
    return shown


def main() -> None:
    """Run the matrix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)))
    parser.add_argument("--every", type=int, default=1, help="run each so-many-th cell only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--model", help="checkpoint (else the mini preset is made)")
    given = parser.parse_args()
    ranks = [int(word) for word in given.ranks.split(",")]
    with TemporaryDirectory(prefix="superpod-matrix-") as name:
        folder = Path(name)
        directory = given.model or str(folder / "model")
        if not given.model:
            subprocess.run(["superpod", "make-checkpoint", directory, "--preset", "mini"], check=True)
        model = ["--model", directory]
        reference, known = references(folder, model, ranks), known_options()
        outcomes = []
        for cell in list(cells(ranks))[:: given.every]:
            outcomes.append(serve(cell, folder, model, False, known))
            print(f"{outcomes[-1].verdict:9} {cell} {outcomes[-1].why}", flush=True)
        compare(outcomes, reference)
    Console().print(table(outcomes))
    for outcome in outcomes:
        if outcome.verdict in ("wrong", "empty"):
            print(f"{outcome.verdict}: {outcome.cell}: {outcome.why}")
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    sys.exit(any(outcome.verdict in ("wrong", "empty") for outcome in outcomes))


if __name__ == "__main__":
    main()
