"""`superpod replay --faults PLAN`: a replay under a fault plan, restarted after deaths, checked at the end.

Ranks are started as `superpod chaos` starts them, a round a life of the pod. Exit code 0: every request
ended exactly once and nothing leaked (with --check-reference: with the reference's tokens); 1 otherwise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emulator.clock import clock_said
from emulator.config import clock_of
from emulator.faults import FaultPlan
from emulator.faults.log import never_fired
from emulator.profile import load_profile
from emulator.topology import Topology
from launch import paths
from launch.chaos.degraded import masked_answers, touched_requests
from launch.chaos.history import check
from launch.chaos.report import record, summary
from launch.chaos.rounds import PS_PER_S, Served, restart_times, serve
from launch.helper import Helper
from launch.outputs import write_out
from launch.recovery_options import TIMES_FILE
from serving.job import read_reference
from serving.replay import Replay, write_replay

_LIMIT_S = 600.0
_NO_DEADLINE = 1 << 62


def load_checked(path: Path, num_ranks: int, pod: str, overrides: Mapping[str, str]) -> FaultPlan:
    """Read a plan and hold it against the machine. Raises UsageError."""
    plan = FaultPlan.load(path)
    plan.resolve(num_ranks, Topology.from_profile(load_profile(pod, overrides), num_ranks))
    return plan


def replay_under(
    replay: Replay,
    plan: FaultPlan,
    own: paths.RunDirectory,
    opening: Helper,
    reference: Helper | None,
    json_out: Path | None,
) -> int:
    """Serve a replay under a plan, print what came of it, and return the exit code.

    Raises:
        UsageError: what `opening` found wrong with the model.
    """
    opening.wait()
    times = restart_times(TIMES_FILE)
    told: list[dict[str, Any]] | None = None
    if reference is not None:  # drafts may be drawn against its answers
        write_replay(replay, own.path)
        reference.wait()
        told = read_reference(own.path)
        replay = replace(replay, answers=told if replay.job.mtp_acceptance else None)
    is_slept = clock_of().get("clock") == "wall"
    limit_s = None if is_slept else _LIMIT_S
    served = serve(replay, plan, own.path / "rounds", times, limit_s)
    answers = {e.request: (e.tokens, e.logits_sha256) for e in served.endings if e.error is None}
    if told is not None:
        answers = {entry["id"]: (tuple(entry["tokens"]), entry["logits_sha256"]) for entry in told}
    touched = touched_requests(served)
    if reference is not None:
        answers |= masked_answers(touched, replay, own)
    violations = check(served, replay.specs, answers, _NO_DEADLINE)
    entry = record(served, replay.specs, answers, violations, 0, touched=touched)
    return _tell(served, entry, reference is not None, json_out)


def _tell(served: Served, entry: dict[str, Any], compared: bool, json_out: Path | None) -> int:
    for text in served.warnings:
        print(text, file=sys.stderr)
    numbers = summary([entry])
    result = {**entry, "tokens_equal_reference": (not entry["violations"]) if compared else None}
    result["endings"] = [
        {"request": e.request, "rank": e.rank, "tokens": e.tokens, "times_ps": e.times_ps, "error": e.error}
        for e in sorted(served.endings, key=lambda e: e.request)
    ]
    if json_out is not None:
        write_out("--json", json_out, json.dumps(result, indent=1) + "\n")
    Console().print(fault_table(entry, numbers, compared))
    if (idle := never_fired(entry["faults"])) is not None:
        print(f"superpod: {idle}", file=sys.stderr)
    for e in served.endings:
        if e.error is not None:
            print(f"superpod: error: request {e.request}: {e.error}", file=sys.stderr)
    for request, facts in entry["degraded"].items():
        print(
            f"superpod: degraded: request {request}: without experts {facts['experts']} from output "
            f"{facts['from_output']} on",
            file=sys.stderr,
        )
    for violation in entry["violations"]:
        print(f"superpod: broken: {violation}", file=sys.stderr)
    return 1 if entry["violations"] else 0


def fault_table(entry: Mapping[str, Any], numbers: Mapping[str, Any], compared: bool) -> Table:
    """What fired, and how the requests ended."""
    table = Table(
        "fault", "rank", "fired at (s)", "undone at (s)", "in flight", title="a replay under faults"
    )
    for row in entry["faults"]:
        if not row["fired"]:
            table.add_row(row["kind"], "-", "never", "-", "-")
            continue
        undone = "-" if row["undone_ps"] is None else f"{row['undone_ps'] / PS_PER_S:.6f}"
        fired = f"{row['fired_ps'] / PS_PER_S:.6f}"
        table.add_row(row["kind"], str(row["rank"]), fired, undone, str(row["in_flight"]))
    ended = "as the reference" if compared else "without error"
    table.caption = (
        f"{entry['exact']} of {entry['requests']} requests ended {ended}, {entry['recomputed']} recomputed, "
        f"{len(entry['degraded'])} degraded, {entry['failed']} failed, {len(entry['restarts'])} restarts, "
        f"{len(entry['recoveries'])} recoveries in place; last token at "
        f"{entry['last_token_ps'] / PS_PER_S:.6f} s; {numbers['wall_s_a_plan']:.1f} s on this machine"
        + "".join(f"; clock: {clock_said(wall)}" for wall in entry.get("wall", []))
    )
    return table
