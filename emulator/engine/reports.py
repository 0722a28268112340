"""Reports when a run cannot go on: who waits for whom, on what, since when, in a few lines."""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from emulator.engine.api import HERE
from emulator.engine.codes import (
    COMPARISONS,
    FATAL_ABORT,
    FATAL_DEADLOCK,
    FATAL_DIRTY,
    FATAL_GROUP,
    FATAL_LIVELOCK,
    FATAL_LOST,
    FATAL_WALL,
    INTERRUPTED,
    OPERATIONS,
    OVERFLOWS,
    W_ATOMIC,
    W_EXCHANGE,
    W_GET,
    W_POLL,
    W_READ,
    W_SCHEDULE,
    W_TEST,
    W_WAIT,
)
from emulator.engine.primitives import Primitives, Waiter
from emulator.errors import (
    DeadlockError,
    InternalError,
    MembershipChanged,
    RankLostError,
    UsageError,
    WallDeadlineError,
)


def raise_fatal(engine: Primitives, code: int) -> NoReturn:
    """Say why the run cannot go on."""
    if code == INTERRUPTED:
        lost = engine.lost()
        dead = np.flatnonzero(lost).tolist()
        raise MembershipChanged(f"ranks {dead} are dead (change {lost.max()})", dead, epoch=int(lost.max()))
    culprit = engine._culprit()
    if code == FATAL_ABORT:
        raise InternalError(f"rank {culprit} ended the run: {engine._reason()}", rank=engine.rank)
    if code == FATAL_GROUP:
        raise UsageError(OVERFLOWS[code].format(rank=culprit), rank=culprit)
    if code in OVERFLOWS:
        raise InternalError(OVERFLOWS[code].format(rank=culprit), rank=culprit)
    if code == FATAL_DIRTY:
        raise RankLostError(f"rank {culprit} died inside the engine; its state is half changed", [culprit])
    waiters = engine._waiters()
    text = describe(waiters)
    dead = engine.dead_ranks()
    if code == FATAL_LOST or (code == FATAL_DEADLOCK and dead):
        raise RankLostError(f"lost: ranks {dead}. Blocked: {text}", dead, waiters=tuple(waiters))
    if code == FATAL_WALL:
        limit = engine.config.wall_deadline_s
        raise WallDeadlineError(
            f"no rank entered the engine for {limit:g} s of host time; still running: {engine._running()}. "
            f"Blocked: {text}",
            waiters=tuple(waiters),
        )
    why = "nobody runs and nothing is under way" if code == FATAL_DEADLOCK else "everybody polls in vain"
    text += absentees(engine, [waiter["rank"] for waiter in waiters])
    raise DeadlockError(f"deadlock, {why}: {text}", waiters, livelock=code == FATAL_LIVELOCK)


def absentees(engine: Primitives, blocked: Sequence[int]) -> str:
    """Who does not wait, where nobody runs, and what ranks have remarked: why others wait in vain."""
    ended = sorted(set(range(engine.num_ranks)) - set(blocked))
    return (f"; {ranges(ended)} ended" if ended else "") + (engine.remarks() if engine.remarks else "")


def describe(waiters: Sequence[Waiter], most: int = 12) -> str:
    """Blocked ranks in words, those in the same wait together, at most `most` groups."""
    groups: dict[tuple[str, str, str], list[Waiter]] = {}
    for w in waiters:
        missing = f", not come: {ranges(w['waits_for'])}" if w["waits_for"] else ""
        groups.setdefault((w["operation"], w["detail"], missing), []).append(w)
    parts = []
    for (operation, detail, missing), members in list(groups.items())[:most]:
        since = sorted(w["since_ps"] for w in members)
        span = f"{since[0]} ps" if since[0] == since[-1] else f"{since[0]} to {since[-1]} ps"
        parts.append(f"{ranges([w['rank'] for w in members])} in {operation}{detail} since {span}{missing}")
    if len(groups) > most:
        parts.append(f"and {len(groups) - most} other waits")
    return "; ".join(parts) or "nobody is blocked"


def ranges(ranks: Sequence[int], most: int = 8) -> str:
    """Ranks in words: 'rank 3', 'ranks 0-5, 9'."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:most])
    more = f" and {sum(b - a + 1 for a, b in runs[most:])} more" if len(runs) > most else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {text}{more}"


def make_waiter(
    rank: int,
    wait: int,
    args: tuple[int, int, int],
    since: int,
    conditions: Any,
    any_: bool,
    missing: Any,
    inbox_word: int = -1,
    group: tuple[int, int] | None = None,
) -> Waiter:
    """Say what a blocked rank waits for. missing: ranks that have not posted its exchange; group: which
    exchange of its group that is (from 1), and how many ranks the group has."""
    a, b, c = args

    def word(number: int) -> str:
        return "inbox records" if number == inbox_word else f"word {number}"

    detail = {
        W_GET: f"(handle {a})",
        W_ATOMIC: f"(rank {a}, word {b})",
        W_READ: f"({word(a)})",
        W_TEST: f"({word(a)} {COMPARISONS[b % 6]} {c})",
        W_POLL: f"({word(a)} {COMPARISONS[b % 6]} {c})",
        W_EXCHANGE: f" {group[0]} of channel {a} of {group[1]} ranks" if group else f"(channel {a})",
    }.get(wait, "")
    if wait in (W_WAIT, W_SCHEDULE):
        joint = " or " if any_ else " and "
        detail = joint.join(
            f"exchange of channel {w}" if k == HERE else f"{word(w)} {COMPARISONS[k]} {v}"
            for w, k, v in conditions
        )
        detail = f"(step {a}: {detail})" if wait == W_SCHEDULE else f"({detail})"
    waits_for = missing if wait == W_EXCHANGE else [a] if wait == W_ATOMIC else None
    return Waiter(
        rank=rank, operation=OPERATIONS[wait], since_ps=since, detail=detail, waits_for=waits_for, wait=wait
    )
