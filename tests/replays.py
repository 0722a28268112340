"""Short replays over real ranks: a tiny model priced like DeepSeek-R1 cut to nine layers.

`serve` prepares a replay and runs its ranks under `mpirun superpod-rank`, whose fork server stays up between
runs; `command` is `superpod replay` itself.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ranks import BIN, MCA, MPIRUN, ROOT

import serving
from launch import prepared
from launch.cli import main
from serving.model.checkpoint import make_checkpoint
from serving.model.config import PRESETS


@dataclass(frozen=True)
class Model:
    """A checkpoint and the price file with its routing shape."""

    directory: str
    priced_as: str


def make_model(folder: Path) -> Model:
    tiny = PRESETS["tiny"]
    make_checkpoint(folder / "tiny", "tiny", seed=5)
    text = (Path(serving.__file__).parent / "priced" / "deepseek-r1.toml").read_text()
    shape = {
        "layers": 9,
        "dense_layers": 1,
        "routed_experts": tiny.n_routed_experts,
        "top_k": tiny.num_experts_per_tok,
        "groups": tiny.n_group,
        "topk_groups": tiny.topk_group,
    }
    for name, value in shape.items():
        text, count = re.subn(rf"(?m)^({name} = {{ value = )\d+", rf"\g<1>{value}", text)
        assert count == 1, name
    (folder / "tiny.toml").write_text(text)
    return Model(str(folder / "tiny"), str(folder / "tiny.toml"))


def lines(requests: Sequence[tuple[float, int, int]]) -> str:
    """A trace: (arrival in ms, prompt, output) of each request."""
    ids = itertools.count()
    entries = [
        {
            "timestamp": t,
            "input_length": p,
            "output_length": o,
            "hash_ids": [next(ids) for _ in range(0, p, 512)],
        }
        for t, p, o in requests
    ]
    return "".join(json.dumps(entry) + "\n" for entry in entries)


def arguments(trace: Path, model: Model, num_ranks: int, *options: str) -> list[str]:
    """Words of `superpod replay` for all requests of a trace."""
    count = len(trace.read_text().splitlines())
    words = ["replay", "-n", str(num_ranks), "--trace", str(trace), "--requests", str(count)]
    words += ["--model", model.directory, "--priced-as", model.priced_as]
    return [*words, "--token-scale", "64", "--no-memory-check", *options]


def command(trace: Path, model: Model, num_ranks: int, out: Path, *options: str) -> dict[str, Any]:
    """Run `superpod replay`; its JSON, which it writes to `out`."""
    assert main(arguments(trace, model, num_ranks, "--json", str(out), *options)) == 0
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def serve(folder: Path, trace: Path, model: Model, num_ranks: int, *options: str) -> dict[str, Any]:
    """Prepare a replay in a new `folder`, run its ranks, return the result; its invariants hold."""
    assert main(arguments(trace, model, num_ranks, "--prepare", str(folder), *options)) == 0
    environment = os.environ | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SUPERPOD_CONFIG": (folder / "config.json").read_text(),
    }
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    mpirun = [*MPIRUN, *root, *MCA, "-n", str(num_ranks), "superpod-rank", "-m", "serving", str(folder)]
    subprocess.run(mpirun, env=environment, check=True, timeout=120, start_new_session=True)
    result = prepared.read(folder)
    assert all(result["invariants"].values()), result["invariants"]
    return result
