"""What a chaos run serves: a tiny model with DeepSeek's architecture, short requests that overlap.

The model is charged as DeepSeek-R1 cut to nine layers, with the tiny model's routing shape.
"""

from __future__ import annotations

import re
from pathlib import Path

import serving
from emulator.errors import InternalError
from launch.chaos.history import reference_answers
from launch.recovery_options import Policy
from serving.job import ReplayJob
from serving.model import preset_config
from serving.replay import Replay, plan_replay
from serving.traces import TraceRequest

LAYERS = 9
PROMPT, OUTPUT = 256, 4
GAP_PS = 2_000_000_000
"""Between arrivals, 2 ms: faster than a pod of 16 answers."""
TOKEN_SCALE = 64
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
    directory: Path, num_ranks: int, num_requests: int, seed: int = 0, after: Policy | None = None
) -> tuple[Replay, Answers]:
    """Make model, workload and the reference's answers once, for all plans.

    Args:
        directory: where the model goes.
        num_ranks: ranks of every run.
        num_requests: requests of every run.
        seed: of the model, the contents and the samplers.
        after: what follows a death; by default the pod restarts.

    Returns:
        the checked replay, and request -> (tokens, hash of the logits) as one process answers.
    """
    import torch

    from serving.model import make_checkpoint

    torch.set_num_threads(1)
    after = after or Policy()
    make_checkpoint(directory / "model", "tiny", seed)
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
    )
    trace = [TraceRequest(i * GAP_PS, PROMPT, OUTPUT, (i,)) for i in range(num_requests)]
    replay = plan_replay(job, preset_config("tiny"), trace, 1.0, None)
    return replay, reference_answers(replay, directory)
