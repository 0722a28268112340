"""Wall time of collectives, ours beside gloo, Open MPI and SimGrid's SMPI, in one table.

    python benchmarks/collectives_table.py [RANKS …] [--most-polling 32] [--json FILE] [--markdown FILE]

gloo and Open MPI run up to `--most-polling` ranks: gloo opens n² sockets and cannot form a group of 384 on
one host, Open MPI's ranks poll for the cores. SMPI (Debian's libsimgrid-dev) is left out where it is not
installed; its figure is the fastest of the algorithms `smpi/run.py` tries. All move the same bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch_backend

HERE = Path(__file__).parent
CALLS = ["barrier", "all_to_all 64 B", "all_to_all 7680 B", "all_reduce 1 MiB"]
GLOO = {
    "all_to_all 64 B": "all_to_all_single 64 B a pair",
    "all_to_all 7680 B": "all_to_all_single 7,680 B a pair",
}
SMPI = {
    ("barrier", 0): "barrier",
    ("alltoall", 64): "all_to_all 64 B",
    ("alltoall", 7680): "all_to_all 7680 B",
    ("allreduce", 1 << 20): "all_reduce 1 MiB",
}
COLUMNS = ["superpod", "superpod through torch", "gloo", "Open MPI", "SMPI"]
COPIES = {"clone_ms": "two processes clone the bytes", "warm_copy_ms": "... into touched memory"}
Milliseconds = dict[str, float]


def ours(ranks: int, folder: Path) -> dict[str, Any]:
    """By call, its row of `coll.py`."""
    path = folder / "coll.json"
    command = ["superpod", "run", "-n", str(ranks), str(HERE / "coll.py"), "--json", str(path)]
    subprocess.run([*command, "--only", ",".join(CALLS)], check=True, stdout=subprocess.DEVNULL)
    return {row["call"]: row for row in json.loads(path.read_text())["rows"]}


def through_torch(backend: str, ranks: int) -> Milliseconds:
    """By call, its time under a backend of torch.distributed; nothing where it fails."""
    rows = torch_backend.run(backend, ranks) or {}
    return {call: rows[GLOO.get(call, call)]["wall_ms"] for call in CALLS if GLOO.get(call, call) in rows}


def open_mpi(ranks: int) -> Milliseconds:
    """By call, the time of Open MPI's own."""
    command = ["mpirun", "-n", str(ranks), "--oversubscribe", "--allow-run-as-root"]
    done = subprocess.run(
        [*command, sys.executable, str(HERE / "open_mpi.py")], check=True, capture_output=True, text=True
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["call"]: row["wall_ms"] for row in rows}


def smpi(ranks: int) -> Milliseconds:
    """By call, SMPI's fastest algorithm."""
    if shutil.which("smpicc") is None:
        return {}
    command = [sys.executable, str(HERE / "smpi" / "run.py"), str(ranks)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    best: Milliseconds = {}
    for row in map(json.loads, done.stdout.splitlines()):
        call = SMPI[row["operation"], row["bytes"]]
        best[call] = min(best.get(call, float("inf")), row["wall_s"] * 1e3)
    return best


def gather(sizes: list[int], most: int) -> list[dict[str, Any]]:
    """A row for each size and call."""
    rows = []
    for ranks in sizes:
        with tempfile.TemporaryDirectory() as folder:
            mine = ours(ranks, Path(folder))
        columns: list[Milliseconds] = [
            {call: row["wall_ms"] for call, row in mine.items()},
            through_torch("superpod", ranks),
            through_torch("gloo", ranks) if ranks <= most else {},
            open_mpi(ranks) if ranks <= most else {},
            smpi(ranks),
        ]
        for call in CALLS:
            wall = {name: c.get(call) for name, c in zip(COLUMNS, columns, strict=True)}
            copied = {name: mine[call][name] or None for name in COPIES}
            rows.append({"ranks": ranks, "call": call, "wall_ms": wall, **copied})
            print(json.dumps(rows[-1]), flush=True)
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table; milliseconds of wall time a call."""

    def cell(value: float | None) -> str:
        return "–" if value is None else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"

    head = ["ranks", "call", *COLUMNS, *COPIES.values()]
    lines = [f"| {' | '.join(head)} |", "|---:|---|" + "---:|" * (len(head) - 2)]
    for row in rows:
        cells = [cell(row["wall_ms"][name]) for name in COLUMNS] + [cell(row[name]) for name in COPIES]
        lines.append(f"| {row['ranks']} | {row['call']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("ranks", nargs="*", type=int, default=[8, 32, 384])
    parser.add_argument("--most-polling", type=int, default=32)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    rows = gather(options.ranks, options.most_polling)
    print(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(rows))


if __name__ == "__main__":
    main()
