"""Run rows of docs/memory_model.md and say what was seen:

    SUPERPOD_CONFIG='{"delivery": "adversarial"}' superpod run -n 4 benchmarks/litmus.py 1000 MP+none MP+fence

The first word is the number of seeds; without names all rows are run. Exit code 1: a forbidden outcome.
"""

import sys
import tempfile
from pathlib import Path

import emulator
from memsem.litmus import by_name, every_litmus
from memsem.litmus_run import main, read_results
from memsem.model import outcomes


def report(directory: Path) -> int:
    """Print a line for each row; returns how many show an outcome that the model does not allow."""
    wrong = 0
    for name, seen in read_results(directory).items():
        row = by_name(name)
        shown = sum(count for pairs, count in seen.items() if row.outcome(dict(pairs)))
        forbidden = [dict(pairs) for pairs in set(seen) - outcomes(row)]
        wrong += bool(forbidden)
        line = (
            f"{name:26} {row.verdict:9} shown {shown} of {sum(seen.values())}, {len(seen)} different outcomes"
        )
        print(line + (f", NOT ALLOWED: {forbidden}" if forbidden else ""))
    return wrong


device = emulator.init()
seeds, names = sys.argv[1], sys.argv[2:] or [litmus.name for litmus in every_litmus()]
folder = Path(tempfile.gettempdir()) / f"superpod-litmus-{device.board.header[device.board.HEADER_JOB]:x}"
folder.mkdir(exist_ok=True)
main([",".join(names), "0", seeds, str(folder)])
device.barrier()
if device.rank == 0:
    failed = report(folder)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    sys.exit(1 if failed else 0)
