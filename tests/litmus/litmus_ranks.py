"""What litmus tests share: running rows under many seeds in one start of four ranks."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ranks import run_ranks

from memsem.litmus import every_litmus
from memsem.litmus_run import read_results

PROGRAM = """
import sys
{patch}
from memsem.litmus_run import main
main(sys.argv[1:])
"""
ROWS = every_litmus()
Observed = dict[str, Counter[tuple[tuple[str, int], ...]]]


def observe(
    names: Iterable[str], seeds: int, first: int = 0, patch: str = "", timeout_s: float = 280, **config: Any
) -> Observed:
    """Outcomes of rows over seeds `first` to `first + seeds`; `patch` is run before the machine starts."""
    settings = {"delivery": "adversarial", **config}
    with tempfile.TemporaryDirectory(prefix="superpod-litmus-") as folder:
        arguments = (",".join(names), str(first), str(seeds), folder)
        run_ranks(4, PROGRAM.format(patch=patch), args=arguments, timeout_s=timeout_s, **settings)
        return read_results(Path(folder))
