"""Plans under one prepared replay: run, checked, noted in a file, and made smaller where they fail."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from emulator.config import clock_of
from emulator.errors import UsageError
from emulator.faults import STATES, FaultPlan
from emulator.faults.generate import Moment, timed
from emulator.faults.kinds import DEADLY
from emulator.faults.links import LINK_KINDS
from launch import paths
from launch.helper import Helper
from launch.recovery_options import TIMES_FILE, Policy
from serving.replay import Replay

_MARGIN = 1.1
"""What a run under faults may take over the sum of its parts: steps form anew after a pause."""
_LADDER = 9
"""What waits for a link waits at most so many times as long as the link is faulty: each wait is eight times
the last."""
_PS_PER_S = 10**12
_NEVER_PS = 1 << 60
_IDLE = FaultPlan([{"kind": "slow", "rank": 0, "factor": 1.0, "at_ps": _NEVER_PS}])
"""The plan of the calm run: nothing happens, and ranks take the same steps as under any other."""


@dataclass
class Campaign:
    """Plans under one prepared replay.

    Attributes:
        calm_ps: time of the last token without faults. moments: of the run without faults.
        records: one a plan, in order.
    """

    replay: Replay
    answers: Mapping[int, tuple[tuple[int, ...], str]]
    own: paths.RunDirectory
    limit_s: float
    times_ps: Mapping[str, int]
    calm_ps: int = 0
    runs: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)

    @property
    def directory(self) -> Path:
        """Where the files of its runs go."""
        return self.own.path

    def run(self, plan: FaultPlan) -> tuple[dict[str, Any], str]:
        """Serve under a plan; its record and its time-line."""
        from launch.chaos.calendar import calendar
        from launch.chaos.degraded import masked_answers, touched_requests
        from launch.chaos.history import check
        from launch.chaos.plot import timeline
        from launch.chaos.report import record
        from launch.chaos.rounds import serve

        self.runs += 1
        place = self.directory / f"run-{self.runs}"
        calm = not plan.faults
        replay = replace(self.replay, job=replace(self.replay.job, note_states=True)) if calm else self.replay
        ran = _IDLE if calm else timed(plan, self.moments)
        served = serve(replay, ran, place, self.times_ps, self._limit_s(plan))
        if calm:
            print("".join(f"{text}\n" for text in served.warnings), end="", file=sys.stderr)
        touched = touched_requests(served)
        answers = {**self.answers, **masked_answers(touched, replay, self.own)}
        violations = check(served, replay.specs, answers, self._deadline_ps(plan))
        served.plan = plan
        entry = record(served, replay.specs, answers, violations, self.calm_ps, ran, touched)
        if calm and not violations:
            self.calm_ps, self.moments = entry["last_token_ps"], calendar(served, replay.specs)
        for file in sorted(place.rglob("*"), reverse=True):
            file.unlink() if file.is_file() else file.rmdir()
        return entry, timeline(served, entry, replay.specs)

    def _limit_s(self, plan: FaultPlan) -> float | None:
        """Host seconds of a round; under the wall clock what is slept comes on top, and the calm run, which
        says how long that is, has no limit but the engine's own."""
        clock = clock_of()
        if clock.get("clock", "virtual") == "virtual":
            return self.limit_s
        if not self.calm_ps:
            return None
        return self.limit_s + float(clock.get("dilation", 1.0)) * self._deadline_ps(plan) / _PS_PER_S

    def _deadline_ps(self, plan: FaultPlan) -> int:
        """By when every request must have ended: the calm run stretched by slow dies, once a life, and the
        pauses, restarts and freezes on top."""
        if not plan.faults:
            return _NEVER_PS
        deaths = sum(fault.kind in (*DEADLY, "leave", "join") for fault in plan.faults)
        deaths += sum(fault.kind == "leave" and fault.duration_ps is not None for fault in plan.faults)
        if (in_place := self.replay.job.recovery) is not None:
            deaths += sum(
                (fault.duration_ps or 0) > in_place.timeout_ps - in_place.period_ps for fault in plan.faults
            )
        factor, pauses = _MARGIN, 0
        for fault in plan.faults:
            factor *= fault.factor or 1.0 if fault.kind == "slow" else 1.0
            pauses += (fault.duration_ps or 0) * (_LADDER if fault.kind in LINK_KINDS else 1)
        down = self.times_ps["detect"] + self.times_ps["world"]
        if in_place is not None:
            slots = self.replay.placement.slots_per_rank  # the survivors may have to load what one rank held
            down += in_place.timeout_ps + in_place.period_ps + in_place.recovery_ps(slots)
        restarts = deaths * down
        return round((deaths + 1) * factor * self.calm_ps) + pauses + restarts

    def carry_out(
        self, plans: Sequence[FaultPlan], shrinking: bool, noted: Notebook | None = None
    ) -> tuple[list[tuple[FaultPlan, str]], str]:
        """Run the plans; the failing ones at their smallest with what they break, and the last time-line."""
        from launch.chaos.shrink import shrink

        smallest, picture = [], ""
        for number, plan in enumerate(plans, 1):
            entry = None if noted is None else noted.known.get(plan.seed)
            if entry is None:
                entry, picture = self.run(plan)
                if noted is not None:
                    noted.add(entry)
            self.records.append(entry)
            _tell(number, len(plans), self.records)
            if entry["violations"]:
                print(f"superpod: seed {plan.seed}: {entry['violations'][0]}", file=sys.stderr)
                if shrinking:
                    plan = shrink(plan, lambda p: bool(self.run(p)[0]["violations"]), most_runs=20)
                smallest.append((plan, entry["violations"][0]))
        return smallest, picture


def _tell(number: int, of: int, records: Sequence[Mapping[str, Any]]) -> None:
    """How far it is: on a terminal each plan, else each tenth of all."""
    broken = sum(bool(entry["violations"]) for entry in records)
    if sys.stderr.isatty():
        print(f"\rplan {number} of {of}, {broken} broken", end="" if number < of else "\n", file=sys.stderr)
    elif of >= 20 and number % (of // 10) == 0:
        print(f"superpod: plan {number} of {of}, {broken} broken", file=sys.stderr, flush=True)


class Notebook:
    """Records of a campaign in a file, a line each, so that it can go on where it was stopped.

    Args:
        path: the file; the first line says what campaign it is of.
        settings: this campaign's.

    Attributes:
        known: records that are there already, by seed.

    Raises:
        UsageError: the file is another campaign's, or cannot be read or written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path, self.known = path, dict[int, dict[str, Any]]()
        try:
            lines = path.read_text().splitlines() if path.exists() else []
            if not lines:
                path.write_text(json.dumps(settings) + "\n")
                return
            first, *rows = (json.loads(line) for line in lines)
        except (OSError, ValueError) as error:
            raise UsageError(f"--resume {path}: {error}") from None
        if first != settings:
            differing = next(name for name in settings if first.get(name) != settings[name])
            was, now = first.get(differing), settings[differing]
            raise UsageError(
                f"--resume {path}: it is of a campaign with {differing} {was}, this one has {now}"
            )
        self.known = {row["seed"]: row for row in rows}

    def add(self, entry: dict[str, Any]) -> None:
        """Note a plan that has run."""
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def prepared(
    own: paths.RunDirectory,
    num_ranks: int,
    requests: int,
    limit_s: float,
    after: Policy,
    states: Sequence[str] = STATES,
) -> Campaign:
    """Make model and reference in a process of its own (this one stays without torch), then a calm run.

    Raises:
        UsageError: the calm run is not well, or no request of it comes into one of `states`.
    """
    from launch.chaos.rounds import restart_times

    helper = Helper("the reference", own, partial(_make, str(own.path), num_ranks, requests, after, states))
    with helper:
        helper.start()
        helper.wait()
    replay, answers = pickle.loads((own.path / "chaos.pickle").read_bytes())
    campaign = Campaign(replay, answers, own, limit_s, restart_times(TIMES_FILE))
    calm, _ = campaign.run(FaultPlan())
    if calm["violations"]:
        raise UsageError(f"chaos: the run without faults is not well: {calm['violations'][0]}")
    missing = [state for state in states if not any(m.state == state for m in campaign.moments)]
    if missing:
        raise UsageError(
            f"chaos: without faults no request of {requests} on {num_ranks} ranks comes into "
            f"{', '.join(missing)}; give more --requests, or other --states"
        )
    return campaign


def _make(directory: str, num_ranks: int, requests: int, after: Policy, states: Sequence[str]) -> None:
    from launch.chaos.workload import prepare

    made = prepare(Path(directory), num_ranks, requests, after=after, states=states)
    (Path(directory) / "chaos.pickle").write_bytes(pickle.dumps(made))
