"""What a replay with drafts says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emulator.errors import UsageError
from serving.job import ReplayJob
from serving.model.drafters import SpeculationCounts

__all__ = ["check_speculation", "rejected_rows", "speculation_facts"]


def rejected_rows(results: Sequence[Mapping[str, Any]]) -> int:
    """Rows of drafts that were computed in vain, on all ranks."""
    return sum(int(result.get("speculation", {}).get("rejected", 0)) for result in results)


def speculation_facts(
    layers: int, configured: Sequence[float], results: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Acceptance and tokens per step as counted; `drafts` says whose they were: measured, the layers' own, or
    configured. Acceptance of few steps strays from the configured one by chance: `standard_errors` says how
    far, 1.2 points for a rate of 0.7 that was tried 1,400 times."""
    total = SpeculationCounts()
    for found in (result["speculation"] for result in results if "speculation" in result):
        total.add(SpeculationCounts(found["steps"], found["tokens"], found["tried"], found["taken"]))
    return {
        "layers": layers,
        "drafts": "configured" if configured else "measured",
        "configured_acceptance": list(configured),
        "acceptance": total.acceptance,
        "standard_errors": total.standard_errors,
        "tokens_per_step": total.tokens_per_step,
        "steps": total.steps,
        "tokens": total.tokens,
        "rejected": rejected_rows(results),
    }


def check_speculation(job: ReplayJob) -> None:
    """Refuse what drafts do not go with.

    Raises:
        UsageError: acceptance without drafts, or of requests that nobody has answered before; a recorded
            schedule, measured decode steps.
    """
    if not job.mtp:
        if job.mtp_acceptance:
            raise UsageError("--mtp-acceptance: there are no drafts; give --mtp 1 or --mtp 2")
        return
    if job.mtp_acceptance and job.feed:
        raise UsageError(
            "--mtp-acceptance: drafts are drawn against true answers, which nobody knows of requests from "
            "outside; leave it out"
        )
    others = {"a recorded schedule (--schedule-from)": job.schedule, "measured decode steps": job.decode}
    for what, asked in others.items():
        if asked:
            raise UsageError(f"--mtp {job.mtp} does not go with {what}; leave one of them out")
