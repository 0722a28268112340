"""What a chaos run serves: a tiny model with DeepSeek's architecture, short requests that overlap.

The model is charged as DeepSeek-R1 cut to nine layers, with the tiny model's routing shape.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import serving
from emulator.errors import InternalError
from emulator.faults import STATES
from emulator.faults.plan import draw
from launch.chaos.history import reference_answers
from launch.recovery_options import Policy
from serving.eplb.options import EplbOptions
from serving.job import PagingOptions, ReplayJob
from serving.model import preset_config
from serving.replay import Replay, plan_replay
from serving.request import RequestSpec
from serving.traces import TraceRequest

LAYERS = 9
PROMPT, OUTPUT = 256, 4
GAP_PS = 2_000_000_000
"""Between arrivals, 2 ms: faster than a pod of 16 answers."""
TOKEN_SCALE = 64
_BLOCKS = 8
"""Blocks of KV of a rank where some are to be given up: the prompts of two requests, and no output."""
_CROWDED = 5
"""Where KV is to be given up, requests come so many times as fast: two and more on a rank."""
_ABORTED = 4
"""Of so many requests one is aborted, at a time drawn from its number."""
_ABORT_WITHIN_PS = 40_000_000_000
_STEPS_BETWEEN_MOVES = 2
Answers = dict[int, tuple[tuple[int, ...], str]]


def priced_model(directory: Path) -> Path:
    """Write the price file of the tiny model and return it."""
    tiny = preset_config("tiny")
    shape = {
        "layers": LAYERS,
        "dense_layers": 1,
        "routed_experts": tiny.n_routed_experts,
        "top_k": tiny.num_experts_per_tok,
        "groups": tiny.n_group,
        "topk_groups": tiny.topk_group,
    }
    text = (Path(str(serving.__file__)).parent / "priced" / "deepseek-r1.toml").read_text()
    for name, value in shape.items():
        text, count = re.subn(rf"(?m)^({name} = {{ value = )\d+", rf"\g<1>{value}", text)
        if count != 1:
            raise InternalError(f"deepseek-r1.toml has {count} lines for {name}")
    path = directory / "tiny.toml"
    path.write_text(text)
    return path


def prepare(
    directory: Path,
    num_ranks: int,
    num_requests: int,
    seed: int = 0,
    after: Policy | None = None,
    states: Sequence[str] = STATES,
) -> tuple[Replay, Answers]:
    """Make model, workload and the reference's answers once, for all plans.

    Args:
        directory: where the model goes.
        num_ranks: ranks of every run.
        num_requests: requests of every run.
        seed: of the model, the contents and the samplers.
        after: what follows a death; by default the pod restarts.
        states: that requests are to go through; those of `SERVING_STATES` bring their part of the engine.

    Returns:
        the checked replay, and request -> (tokens, hash of the logits) as one process answers.
    """
    import torch

    from serving.model import make_checkpoint

    torch.set_num_threads(1)
    after = after or Policy()
    config = preset_config("tiny").model_copy(update={"num_nextn_predict_layers": int("draft" in states)})
    make_checkpoint(directory / "model", config, seed)
    job = ReplayJob(
        model_dir=str(directory / "model"),
        num_ranks=num_ranks,
        priced_as=str(priced_model(directory)),
        profile="cloudmatrix384",
        seed=seed,
        token_scale=TOKEN_SCALE,
        check_memory=False,
        recovery=after.times,
        spares=after.spares,
        lost_experts=after.lost_experts,
        **_parts(states, num_ranks),
    )
    gap_ps = GAP_PS // _CROWDED if "preemption" in states else GAP_PS
    trace = [TraceRequest(i * gap_ps, PROMPT, OUTPUT, (i,)) for i in range(num_requests)]
    replay = plan_replay(job, config, trace, 1.0, None)
    if "abort" in states:
        replay = replace(replay, specs=[_maybe_aborted(spec) for spec in replay.specs])
    return replay, reference_answers(replay, directory)


def _parts(states: Sequence[str], num_ranks: int) -> dict[str, Any]:
    """Fields of the job that bring requests into states."""
    parts: dict[str, Any] = {}
    if "preemption" in states:
        parts["paging"] = PagingOptions(block_size=TOKEN_SCALE, num_blocks=_BLOCKS, reuse=True)
    if "move" in states:
        parts |= {"eplb": EplbOptions(interval=_STEPS_BETWEEN_MOVES), "redundant_experts": num_ranks}
    if "draft" in states:
        parts["mtp"] = 1
    return parts


def _maybe_aborted(spec: RequestSpec) -> RequestSpec:
    """Every fourth request, some time between its arrival and what a request takes in a calm run."""
    if spec.request_id % _ABORTED != _ABORTED - 1:
        return spec
    after_ps = draw(f"abort:{spec.request_id}", _ABORT_WITHIN_PS)
    return replace(spec, abort_ps=spec.arrival_ps + after_ps)
