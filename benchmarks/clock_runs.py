"""Runs of `clocks.py` and how they are judged."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

RANKS = Path(__file__).with_name("clock_ranks.py")
LIMIT = 0.05
LONGEST_S = 600.0
"""Host seconds any command may take."""


class Verdict(NamedTuple):
    """One line of what must hold: what was asked, the limit, what was found, whether that is met, and the
    command that was judged."""

    line: str
    limit: str
    found: str
    met: bool
    command: str = ""


def clock_words(dilation: float | None) -> list[str]:
    return ["--clock", "wall", "--dilation", f"{dilation:g}", "--grace-s", "60"] if dilation else []


def run(
    ranks: int, part: str, out: Path, dilation: float | None, *words: str, limit_s: float = LONGEST_S
) -> Any:
    """Run `clock_ranks.py`; (what rank 0 measured, the run's result)."""
    report, facts = out / "report.json", out / "facts.json"
    env = {**os.environ, "SUPERPOD_CONFIG": json.dumps({"report": str(report)})}
    command = ["superpod", "run", "-n", str(ranks), *clock_words(dilation), *words]
    command += [str(RANKS), part, str(facts)]
    subprocess.run(command, env=env, check=True, timeout=limit_s, stderr=subprocess.DEVNULL)
    result = json.loads(report.read_text())
    return json.loads(facts.read_text()), {**result, "command": told(command)}


def error(row: dict[str, float], dilation: float) -> float:
    """How far an achieved delay is from the emulated one."""
    return row["host_ms"] * 1e3 / (dilation * row["emulated_us"]) - 1


def told(command: list[str]) -> str:
    """A command as a reader may give it: paths by their last part."""
    return shlex.join(Path(word).name if "/" in word else word for word in command)


@functools.cache
def suggested(ranks: int, part: str, out: Path) -> tuple[float, float]:
    """What a short run of a part at a small dilation suggests, and from where on each kind of its delays is
    kept."""
    _, result = run(ranks, part, out, 1000.0)
    wall = result["wall"]
    found, each = float(wall["suggested_dilation"]), float(wall["kept"]["suggested_for_each"])
    print(
        f"  {part} on {ranks} ranks x 1000: suggests {found:g}, each kind of delay is kept from {each:g} on, "
        f"single transfers were expected to need {wall['host']['single_transfers_dilation']:g}",
        flush=True,
    )
    return found, each


def marked(name: str, kept: dict[str, Any], dilation: float, command: str) -> Verdict:
    """Below the suggested dilation a run is marked."""
    found = f"error {kept['error']:.1%}, trustworthy {kept['trustworthy']}"
    line = f"{name} below the suggested dilation, at {dilation:.4g}: marked"
    return Verdict(line, "", found, not kept["trustworthy"], command)


def serve(ranks: int, out: Path, dilation: float | None) -> tuple[Any, float, str]:
    """A replay of 8 requests that arrive together, 4 output tokens; its JSON, host seconds, and command."""
    trace, found = out / "trace.jsonl", out / "replay.json"
    line = {"timestamp": 0, "input_length": 16, "output_length": 4}
    trace.write_text("".join(json.dumps({**line, "hash_ids": [i]}) + "\n" for i in range(8)))
    words = ["-n", str(ranks), "--trace", str(trace), "--requests", "8", "--max-output", "4"]
    words += ["--no-memory-check", *clock_words(dilation), "--json", str(found)]
    began = time.monotonic()
    subprocess.run(
        ["superpod", "replay", *words],
        check=True,
        timeout=LONGEST_S,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    took_s = time.monotonic() - began
    return json.loads(found.read_text()), took_s, told(["superpod", "replay", *words])


def paced(ranks: int, out: Path, virtual: Any, dilation: float) -> dict[str, Any]:
    """The replay under the wall clock beside the virtual one."""
    result, host_s, command = serve(ranks, out, dilation)
    wall, emulated_s = result["wall"], virtual["virtual_duration_s"]
    same = all(
        result[key] == virtual[key] for key in ("tokens_sha256", "logits_sha256", "virtual_duration_s")
    )
    kept, off = wall["kept"], wall["achieved_duration_s"] / emulated_s - 1
    print(
        f"  {ranks} ranks x {dilation:g}: emulated {emulated_s:.4f} s, achieved {off:+.2%}; tokens, logits "
        f"and emulated duration equal: {same}; command {host_s:.0f} s; delays off by {kept['error']:.2%} of "
        f"{kept['requested_s']:.1f} s, trustworthy {kept['trustworthy']}",
        flush=True,
    )
    found = {"dilation": dilation, "command_s": host_s, "off": off, "same": same, "wall": wall}
    return {**found, "command": command}


def replay_verdicts(ranks: int, found: dict[str, Any], limit_s: float) -> list[Verdict]:
    kept, name = found["wall"]["kept"], f"{ranks} ranks, replay"
    off = f"{found['off']:+.2%} of the duration, delays off by {kept['error']:.2%}"
    at = f" at a dilation of {found['dilation']:g}"
    within = max(abs(found["off"]), kept["error"]) <= LIMIT and kept["trustworthy"]
    command_s, same, command = found["command_s"], found["same"], found["command"]
    took = f"{command_s:.0f} s"
    return [
        Verdict(f"{name} within 5 %{at}", "5 %", off, within, command),
        Verdict(f"{name}{at}: command", f"{limit_s:g} s", took, command_s < limit_s, command),
        Verdict(
            f"{name}: tokens, logits, emulated duration in both clocks", "equal", f"{same}", same, command
        ),
    ]


def show(verdicts: list[Verdict]) -> None:
    for v in verdicts:
        limit = f" (limit {v.limit})" if v.limit else ""
        print(f"{'met' if v.met else 'NOT MET':<8}{v.line}{limit}: {v.found}")
        if v.command:
            print(f"{'':<8}  {v.command}")
