"""`superpod compare --faults PLAN`: one plan over windows, verbs and messages, side by side.

Each path carries the same stream of transfers twice, without and with the plan. Exit code 0: all runs ended
and nobody hung; 1: a run did not end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emulator.errors import UsageError
from emulator.faults.log import never_fired
from launch import run
from launch.outputs import write_out
from launch.replay_faults import load_checked
from launch.workplace import work_directory
from memsem.faulty.lanes import PATHS
from memsem.faulty.report import notices, totals

GAP_PS = 100_000_000
"""A sender computes 100 us between two transfers."""
_FAILED = 1


def compare_under(
    plan: Path, num_ranks: int, size: int, transfers: int, config: Mapping[str, Any], json_out: Path | None
) -> int:
    """Run, print and return the exit code.

    Args:
        plan: the fault plan's file. size: bytes of a transfer. transfers: of each sender.
        config: what the ranks' `emulator.init` reads.

    Raises:
        UsageError: an odd number of ranks, or a plan that does not fit, or that leaves no transfers.
    """
    if num_ranks % 2:
        raise UsageError(
            f"-n {num_ranks}: ranks work in pairs here, rank 2i sends to 2i + 1; nearest: {num_ranks + 1}"
        )
    load_checked(plan, num_ranks, config["profile"], config["set"])
    rows: list[dict[str, Any]] = []
    sums: list[dict[str, Any]] = []
    log: list[dict[str, Any]] = []
    for path in PATHS:
        settings = {"path": path, "size": size, "transfers": transfers, "gap_ps": GAP_PS}
        calm, _ = _one(settings, num_ranks, config, None)
        faulty, log = _one(settings, num_ranks, config, plan)
        if calm is None or faulty is None:
            print(f"superpod: error: {path}: a run did not end", file=sys.stderr)
            return _FAILED
        _check_lanes(plan, path, calm, faulty, log)
        rows += notices(path, calm, faulty, log)
        sums.append(totals(path, calm, faulty, transfers))
        if (idle := never_fired(log)) is not None:
            print(f"superpod: {path}: {idle}", file=sys.stderr)
    if json_out is not None:
        write_out(
            "--json",
            json_out,
            json.dumps({"notices": rows, "paths": sums, "ranks": num_ranks}, indent=1) + "\n",
        )
    Console(width=None if sys.stdout.isatty() else 150).print(_table(rows), _totals(sums))
    return 0


def _check_lanes(
    plan: Path, path: str, calm: Sequence[Mapping[str, Any]], faulty: Sequence[Mapping[str, Any]], log: Any
) -> None:
    """Raises UsageError: a fault came before a path's lanes were there, and ended it."""
    ready_ps = max(rank["begin_ps"] for rank in calm)
    early = [row for row in log if row["fired"] and row["fired_ps"] < ready_ps]
    told = [rank["no_lane"] for rank in faulty if "no_lane" in rank]
    if told:
        which = f"fault {early[0]['fault']} ({early[0]['kind']})" if early else "the plan"
        raise UsageError(
            f"--faults {plan}: {path}: {which} comes before the first transfer and leaves none to compare: "
            f"{told[0]}; nearest: at_ps = {ready_ps}"
        )


def _one(
    settings: Mapping[str, Any], num_ranks: int, config: Mapping[str, Any], plan: Path | None
) -> tuple[list[dict[str, Any]] | None, list[dict[str, Any]]]:
    """One run: its ranks' results and the log of its faults."""
    with work_directory() as folder:
        report = folder / "report.json"
        own: dict[str, Any] = {**config, "report": str(report), "keep_going": True}
        own |= {} if plan is None else {"faults": str(plan.resolve())}
        program = ["-m", "memsem.faulty", json.dumps(dict(settings)), str(folder)]
        run.run_job(num_ranks, program, own, keep_going=True, started_s=run.command_start_s())
        if not report.exists():
            return None, []
        log = json.loads(report.read_text()).get("faults", [])
        files = [folder / f"{rank}.json" for rank in range(num_ranks)]
        return [json.loads(file.read_text()) for file in files if file.exists()], log


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        "fault",
        "path",
        "noticed",
        "by rank",
        "after (us)",
        "errors",
        "cost (us)",
        title="one plan, three paths",
    )
    for row in sorted(rows, key=lambda row: (row["fault"], PATHS.index(row["path"]))):
        after = "-" if row["after_ps"] is None else f"{row['after_ps'] / 1e6:.1f}"
        who = "-" if row["rank"] is None else str(row["rank"])
        what = f"{row['fault']} {row['kind']}"
        table.add_row(
            what, row["path"], row["told"], who, after, str(row["errors"]), f"{row['cost_ps'] / 1e6:.1f}"
        )
    return table


def _totals(sums: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("path", "transfers completed", "last one later by (us)")
    for row in sums:
        later_us = round(row["later_ps"] / 1e6, 1) + 0.0  # no minus before a zero
        table.add_row(row["path"], f"{row['completed']} of {row['of']}", f"{later_us:.1f}")
    return table
