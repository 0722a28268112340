"""Requests that were served without experts they needed: what one process answers under the same masks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from launch import paths
from launch.chaos.rounds import Served
from launch.helper import Helper
from serving.recovery.touch import ANSWERED, ASKED
from serving.replay import Replay, write_replay

Answers = dict[int, tuple[tuple[int, ...], str]]


def touched_requests(served: Served) -> dict[int, dict[str, Any]]:
    """Touched requests that were answered, in the run's numbers: `experts` they missed, `from_output` on, and
    `history`, `given` as `serving.recovery.masked_reference` takes them."""
    found: dict[int, dict[str, Any]] = {}
    answered = {(e.round, e.request) for e in served.endings if e.error is None}
    for life in served.lives:
        lost = [[], *(entry["experts_lost"] for entry in life.recoveries)]
        for number, touched in life.touched.items():
            request = life.round.requests[number]
            if (life.round.number, request) in answered:
                found[request] = {
                    "from_output": touched.first_output,
                    "experts": touched.experts,
                    "history": [(at, lost[change]) for at, change in touched.history],
                    "given": touched.given,
                }
    return found


def masked_answers(
    touched: Mapping[int, Mapping[str, Any]], replay: Replay, own: paths.RunDirectory
) -> Answers:
    """Let one process answer them: request -> (tokens, hash of the logits). Files go to `own`."""
    if not touched:
        return {}
    write_replay(replay, own.path)
    (own.path / ASKED).write_text(json.dumps(touched))
    helper = Helper("the reference under masks", own, partial(_answer, str(own.path)))
    with helper:
        helper.start()
        helper.wait()
    lines = (Path(own.path) / ANSWERED).read_text().splitlines()
    told = [json.loads(line) for line in lines]
    return {entry["id"]: (tuple(entry["tokens"]), entry["logits_sha256"]) for entry in told}


def _answer(directory: str) -> None:
    import torch

    from serving.recovery.masked_reference import answer_masked

    torch.set_num_threads(1)
    answer_masked(directory)
