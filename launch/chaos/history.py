"""What must hold after a run under faults; pure, over what the ranks report.

Each check takes the run and returns sentences, one a violation; none is well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.request import RequestSpec
from serving.restart import Ending

if TYPE_CHECKING:
    from launch.chaos.rounds import Life, Served
    from serving.replay import Replay

Answers = Mapping[int, tuple[tuple[int, ...], str]]


def reference_answers(replay: Replay, directory: Path) -> dict[int, tuple[tuple[int, ...], str]]:
    """Let one process answer every request: request -> (tokens, hash of the logits)."""
    from serving.job import read_reference
    from serving.reference import answer_requests
    from serving.replay import write_replay

    write_replay(replay, directory)
    answer_requests(str(directory))
    return {
        entry["id"]: (tuple(entry["tokens"]), entry["logits_sha256"]) for entry in read_reference(directory)
    }


def check(served: Served, specs: Sequence[RequestSpec], answers: Answers, deadline_ps: int) -> list[str]:
    """Every violation of a run, as sentences."""
    found = [
        *_hangs(served),
        *_terminal(served, specs),
        *_tokens(served.endings, answers),
        *_aborts(served.endings, specs, answers),
        *_order(served, specs),
    ]
    for life in served.lives:
        found += [f"round {life.round.number}: {sentence}" for sentence in _accounts(life)]
    last = max((e.times_ps[-1] for e in served.endings if e.times_ps), default=0)
    if last > deadline_ps:
        found.append(
            f"recovery is not bounded: the last token came at {last} ps, the deadline is {deadline_ps} ps"
        )
    return found


def _hangs(served: Served) -> list[str]:
    found = []
    for life in served.lives:
        if life.exit_code is None:
            found.append(f"round {life.round.number}: hung, ended from outside")
        elif life.machine is None:
            found.append(f"round {life.round.number}: ended without a report: {life.stderr.strip()[-300:]}")
        if "Traceback (most recent call last)" in life.stderr:  # it died of itself, whoever went on
            found.append(f"round {life.round.number}: a rank failed: {life.stderr.strip()[-300:]}")
        if life.leftovers:
            found.append(f"round {life.round.number}: left {', '.join(life.leftovers)} in /dev/shm")
    return found


def _terminal(served: Served, specs: Sequence[RequestSpec]) -> list[str]:
    """Each request ends exactly once, over all rounds and ranks."""
    counts = Counter(ending.request for ending in served.endings)
    return [
        f"request {spec.request_id} has {counts[spec.request_id]} terminal states instead of one"
        for spec in specs
        if counts[spec.request_id] != 1
    ]


def _tokens(endings: Sequence[Ending], answers: Answers) -> list[str]:
    return [
        f"request {e.request} (rank {e.rank}) differs from the reference: {list(e.tokens)}, "
        f"not {list(answers[e.request][0])}"
        for e in endings
        if e.error is None and not e.aborted and answers.get(e.request) != (e.tokens, e.logits_sha256)
    ]


def _aborts(endings: Sequence[Ending], specs: Sequence[RequestSpec], answers: Answers) -> list[str]:
    """Who is aborted wanted to be, not before its time, and got the beginning of its answer."""
    found = []
    for e in endings:
        abort_ps, tokens = specs[e.request].abort_ps, answers.get(e.request, ((), ""))[0]
        if e.aborted and abort_ps is None:
            found.append(f"request {e.request} (rank {e.rank}) was aborted, which nobody asked for")
        if e.aborted and e.error is None and e.tokens != tokens[: len(e.tokens)]:
            found.append(
                f"request {e.request} (rank {e.rank}) was given {list(e.tokens)} before its abort, which "
                f"does not begin {list(tokens)}"
            )
    return found


def _order(served: Served, specs: Sequence[RequestSpec]) -> list[str]:
    """Tokens come one after the other, none before its request."""
    found = []
    for e in served.endings:
        times = (specs[e.request].arrival_ps, *e.times_ps)
        if any(later < earlier for earlier, later in zip(times, times[1:], strict=False)):
            found.append(f"request {e.request}: token times run backwards: {times}")
    return found


def _accounts(life: Life) -> list[str]:
    """Blocks, rows and bytes of the ranks that lived; all of them only balance where nobody died."""
    found = []
    for result in life.results:
        work: Mapping[str, Any] = result["work"]
        if work["kv_blocks_allocated"] != work["kv_blocks_freed"]:
            found.append(
                f"rank {result['rank']} allocated {work['kv_blocks_allocated']} KV blocks and freed "
                f"{work['kv_blocks_freed']}"
            )
        delivery = result.get("delivery", {})
        for what in ("pending", "ring_lost"):
            if delivery.get(what):
                found.append(f"rank {result['rank']}: {delivery[what]} tokens or ring slots lost: {delivery}")
        doubles = [e["id"] for e in result["requests"] if e["ends"] != 1]
        if doubles:
            found.append(f"rank {result['rank']}: requests {doubles} did not end exactly once")
    if life.machine is None:
        return found
    lost = len(life.machine["dead_ranks"])
    ranks = int(life.machine["ranks"])
    if len(life.results) != ranks - lost:
        found.append(f"{len(life.results)} of {ranks - lost} living ranks reported")
    if not lost:
        for what in ("functional_rows", "functional_bytes", "priced_rows", "priced_bytes"):
            sums = [sum(r["work"][f"{what}_{way}"] for r in life.results) for way in ("sent", "received")]
            if sums[0] != sums[1]:
                found.append(f"{what}: {sums[0]} sent and {sums[1]} received")
    return found
