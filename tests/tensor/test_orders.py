"""What a leader tells its group, and what a rank of it is charged: pure parts."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from emulator.errors import InternalError, UsageError
from emulator.profile import load_profile
from serving.job import ReplayJob
from serving.kv.cache import Move, Transfer
from serving.model.config import preset_config
from serving.pricing import PricedModel
from serving.request import Request, RequestSpec
from serving.scheduler import make_segment
from serving.tensor.check import check_tensor
from serving.tensor.orders import Mirror, Orders, Teller
from serving.tensor.price import TensorCharges, gathered_bytes, shard

MI = 1 << 20


def test_followers_have_the_requests_of_the_leader() -> None:
    """Random lives of requests, given up and begun again: every follower makes the leader's batch.

    Fails with outputs told twice, or a request kept after its number came again.
    """
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw, teller, mirror = random.Random(seed), Teller(), Mirror()
    alive: dict[int, Request] = {}
    ended: list[int] = []
    for step in range(60):
        if len(alive) < 4:
            prompt = np.array([draw.randrange(64) for _ in range(draw.randint(1, 9))])
            spec = RequestSpec(draw.randrange(9), 5, prompt, 4 * len(prompt), 4, 12, False, 0)
            if spec.request_id not in alive and spec.request_id not in ended:
                alive[spec.request_id] = Request(spec)
        chosen = [r for r in alive.values() if draw.random() < 0.7]
        segments = []
        for r in chosen:
            if draw.random() < 0.1:  # given up
                r.num_computed, r.replayed, r.answered = 0, len(r.outputs), len(r.outputs)
            left = r.known_tokens - r.num_computed if r.in_prefill else 1
            segments.append(make_segment(r, draw.randint(1, left)))
        tables = [[draw.randrange(100) for _ in range(3)] for _ in segments]
        transfers = [Transfer(draw.choice(list(Move)), 1, 2, step)] if draw.random() < 0.3 else []
        told = Orders(ended, segments, tables, transfers, [step])
        heard = mirror.read(teller.write(told))
        assert (list(heard.released), list(heard.transfers), list(heard.found)) == (ended, transfers, [step])
        assert heard.tables == tables
        ended = []
        for mine, theirs in zip(segments, heard.segments, strict=True):
            assert replace(theirs, request=mine.request) == mine
            assert theirs.answers == mine.answers and theirs.shares() == mine.shares()
            assert np.array_equal(
                theirs.request.input_tokens(mine.count), mine.request.input_tokens(mine.count)
            )
        for segment in segments:
            r = segment.request
            r.num_computed += segment.count
            if segment.samples and segment.answers:
                r.append_output(draw.randrange(64), step)
            if r.is_done:
                ended.append(r.spec.request_id)
                del alive[r.spec.request_id]
    assert mirror.requests.keys() <= alive.keys() | set(ended)
    assert not len(teller.write(Orders()))
    assert mirror.read(np.empty(0, np.int32)) == Orders()


def test_orders_cut_short_are_noticed() -> None:
    words = Teller().write(Orders(released=[3, 4], found=[7]))
    for wrong in (words[:-1], np.append(words, words[:1])):
        with pytest.raises(InternalError, match="orders of a tensor-parallel group"):
            Mirror().read(wrong)


def test_prices_of_a_share() -> None:
    """What is split costs a part; what every rank keeps whole costs the whole. Figures of DeepSeek-R1."""
    whole = PricedModel.load("deepseek-r1", load_profile("cloudmatrix384", None))
    part = shard(whole, 4)
    assert shard(whole, 1) is whole
    assert (part.shape.heads, part.shape.vocab, part.shape.routing) == (32, 32320, whole.shape.routing)
    assert part.kv_bytes(1) == whole.kv_bytes(1)  # the latent, whole on every rank
    moe = 58 * 256 * 7168 * 2 + 58 * 4 * whole.expert_bytes
    assert part.weights_bytes(4) - moe < 0.3 * (whole.weights_bytes(4) - moe)
    shared = [m.weights_bytes(4, shared_local=True) - m.weights_bytes(4) for m in (part, whole)]
    assert 4 * shared[0] == shared[1]
    assert part.shared_ps(4096) < 0.4 * whole.shared_ps(4096)
    assert part.dense_mlp_ps(4096) < 0.3 * whole.dense_mlp_ps(4096)
    kernels = [sum(m.layer_kernels(np.zeros(0, np.int64), [(0, 4096)]).values()) for m in (part, whole)]
    assert 0.25 < kernels[0] / kernels[1] < 0.4
    assert gathered_bytes(part, "values", 10) == 10 * 128 * 128 // 4 * 2
    assert gathered_bytes(part, "hidden", 10) == 10 * 7168 // 4 * 2
    assert gathered_bytes(part, "rows", 10) == 3 * 7168 * 2
    assert gathered_bytes(part, "shared", 10) == 10 * 512 * 2
    assert gathered_bytes(part, "logits", 1) == 32320 * 4
    request = Request(RequestSpec(0, 0, np.zeros(64, np.int64), 4096, 64, 2, False, 0))
    charge = TensorCharges(part, 8, True).step([make_segment(request, 64)])
    assert charge.attention_ps - charge.dense_attention_ps == whole.router_ps(1024)
    qwen = PricedModel.load("qwen3-30b-a3b", load_profile("cloudmatrix384", None))
    assert shard(qwen, 4).kv_bytes(1) * 4 == qwen.kv_bytes(1)
    assert shard(qwen, 8).kv_bytes(1) * 4 == qwen.kv_bytes(1)  # two ranks keep the same KV head
    with pytest.raises(UsageError, match="--tp-size 3: priced as .* heads=128 does not split"):
        shard(whole, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_ranks": 6, "tp_size": 4}, "6 ranks are no whole number of groups; the nearest is 3"),
        (
            {"num_ranks": 8, "tp_size": 8},
            "num_attention_heads=4 does not split into 8 parts; the nearest is 4",
        ),
        ({"num_ranks": 4, "tp_size": 2, "schedule": "x"}, "--tp-size 2 does not go with --schedule-from"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(changes: dict[str, int], said: str) -> None:
    job = ReplayJob("m", 1, "deepseek-r1", "cloudmatrix384")
    config = preset_config("mini")
    check_tensor(replace(job, num_ranks=4, tp_size=2), config)
    with pytest.raises(UsageError, match=said) as caught:
        check_tensor(replace(job, **changes), config)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
