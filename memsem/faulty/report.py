"""From ranks' notes to a table: each fault, each path, what was noticed, when, at what cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SLOWER = 1.02
"""A transfer that takes so much longer than without faults was noticeably slower."""
Ranks = Sequence[Mapping[str, Any]]


def notices(
    path: str, calm: Ranks, faulty: Ranks, faults: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """What one path let the program notice of each fault that fired.

    Args:
        calm, faulty: the ranks' results without and with the plan.
        faults: the log of the plan's faults, as the run reports it.

    Returns:
        a row a fault: told (exception, status, "slower" or "nothing"), rank, after_ps (from the fault on),
        cost_ps (what senders waited longer until the next fault), lost (transfers given up then).
    """
    fired = sorted((row for row in faults if row["fired"]), key=lambda row: row["fired_ps"])
    ends = [*(row["fired_ps"] for row in fired[1:]), 1 << 62][: len(fired)]
    usual = {rank["rank"]: {k: end - start for k, start, end in rank["done"]} for rank in calm}
    return [
        {
            "path": path,
            "fault": row["fault"],
            "kind": row["kind"],
            **_first(row["fired_ps"], until_ps, faulty, usual),
            "cost_ps": _cost(row["fired_ps"], until_ps, faulty, usual),
        }
        for row, until_ps in zip(fired, ends, strict=True)
    ]


def _first(
    begin_ps: int, until_ps: int, ranks: Ranks, usual: Mapping[int, Mapping[int, int]]
) -> dict[str, Any]:
    """What was noticed first, an error before a delay."""
    told = [
        (note["at_ps"], rank["rank"], note["told"])
        for rank in ranks
        for note in rank["notes"]
        if note["at_ps"] >= begin_ps
    ]
    errors = [entry for entry in told if entry[0] < until_ps] or (told if until_ps == 1 << 62 else [])
    slow = [
        (end, rank["rank"], "slower")
        for rank in ranks
        if rank["sends"]
        for k, start, end in rank["done"]
        if start < until_ps
        and end >= begin_ps
        and end - start > _SLOWER * usual[rank["rank"]].get(k, 1 << 62)
    ]
    at_ps, who, what = min(errors or slow, default=(None, None, "nothing"))
    lost = sum(1 for entry in errors if entry[2] != "slower") if errors else 0
    return {
        "told": what,
        "rank": who,
        "after_ps": None if at_ps is None else at_ps - begin_ps,
        "errors": lost,
    }


def _cost(begin_ps: int, until_ps: int, ranks: Ranks, usual: Mapping[int, Mapping[int, int]]) -> int:
    """How much longer the slowest sender waited for transfers that ended after the fault and began before the
    next one."""
    waited = [
        sum(
            max(0, end - start - usual[rank["rank"]].get(k, 0))
            for k, start, end in rank["done"]
            if start < until_ps and end >= begin_ps
        )
        for rank in ranks
        if rank["sends"]
    ]
    return max(waited, default=0)


def totals(path: str, calm: Ranks, faulty: Ranks, transfers: int) -> dict[str, Any]:
    """A path as a whole: transfers completed by senders that lived, and how much later the last one ended."""
    ends = [max((end for rank in ranks for _, _, end in rank["done"]), default=0) for ranks in (calm, faulty)]
    senders = [rank for rank in faulty if rank["sends"]]
    return {
        "path": path,
        "completed": sum(len(rank["done"]) for rank in senders),
        "of": transfers * sum(rank["sends"] for rank in calm),
        "later_ps": ends[1] - ends[0],
    }
