"""Choosing a token with everything that changes its logits; sampling parameters and their bounds."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as theirs

from emulator.errors import UsageError
from serving.model.sampling import GREEDY, SamplingParams, choose, sample
from serving.model.sampling import adjusted as adjust

SEED = 20261130
ROWS = torch.randn((6, 300), generator=torch.Generator().manual_seed(SEED)) * 3
PROMPT, OUTPUTS = [5, 7, 7, 299], [9, 9, 11]


def test_without_penalties_it_is_sample() -> None:
    for params in (GREEDY, SamplingParams(top_k=9, top_p=0.8), SamplingParams(temperature=0.3)):
        for row in ROWS:
            for position in range(4):
                assert choose(row, params, 3, 1, position, [1], [2] * position).token == sample(
                    row, params, 3, 1, position
                )


def test_the_own_seed_goes_first() -> None:
    """Mutation: `request_seed if params.seed is None` turned round."""
    own = SamplingParams(seed=17)
    drawn = [choose(ROWS[0], own, engine_seed, 0, 3, [1], [1, 2, 3]).token for engine_seed in range(20)]
    assert len(set(drawn)) == 1
    free = [choose(ROWS[0], SamplingParams(), seed, 0, 3, [1], [1, 2, 3]).token for seed in range(20)]
    assert len(set(free)) > 5


def test_repetition_penalty_is_that_of_transformers() -> None:
    """Mutation: negative logits divided too."""
    params = SamplingParams(repetition_penalty=1.7)
    process = theirs.RepetitionPenaltyLogitsProcessor(1.7)
    for row in ROWS:
        wanted = process(torch.tensor([PROMPT + OUTPUTS]), row.unsqueeze(0).double().clone())[0].numpy()
        np.testing.assert_allclose(adjust(row.double().numpy(), params, PROMPT, OUTPUTS), wanted, rtol=1e-12)


def test_presence_and_frequency_count_outputs_alone() -> None:
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    change = adjust(ROWS[0].double().numpy(), params, PROMPT, OUTPUTS) - ROWS[0].double().numpy()
    wanted = np.zeros(300)
    wanted[[9, 11]] = [-0.5 - 2 * 0.25, -0.5 - 0.25]
    np.testing.assert_allclose(change, wanted, atol=1e-12)


def test_min_p_keeps_what_transformers_keeps() -> None:
    params, process = SamplingParams(temperature=0.7, min_p=0.2), theirs.MinPLogitsWarper(0.2)
    for row in ROWS:
        kept = set(torch.isfinite(process(None, row.unsqueeze(0) / 0.7)[0]).nonzero().flatten().tolist())
        drawn = {choose(row, params, seed, 0, 0, [1], []).token for seed in range(400)}
        assert drawn <= kept and len(drawn) >= min(2, len(kept))


def test_no_end_before_min_tokens() -> None:
    row = torch.zeros(300)
    row[4], row[6], row[8] = 9.0, 8.0, 7.0
    params = SamplingParams(
        temperature=0, min_tokens=3, eos_token_ids=(4,), stop_token_ids=(6,), ignore_eos=True
    )
    assert [choose(row, params, 0, 0, n, [1], [1] * n).token for n in range(5)] == [8, 8, 8, 4, 4]


def test_bias_can_force_and_forbid() -> None:
    top = int(ROWS[0].argmax())
    assert (
        choose(ROWS[0], SamplingParams(temperature=0, logit_bias={"12": 100}), 0, 0, 0, [1], []).token == 12
    )
    assert (
        choose(ROWS[0], SamplingParams(temperature=0, logit_bias={top: -100}), 0, 0, 0, [1], []).token != top
    )


def test_logprobs_are_of_the_raw_logits() -> None:
    wanted = torch.log_softmax(ROWS[1].double(), 0)
    chosen = choose(ROWS[1], SamplingParams(temperature=0, logprobs=3, logit_bias={8: 100}), 0, 0, 0, [1], [])
    assert chosen.token == 8 and chosen.logprobs is not None
    token, value, top = chosen.logprobs
    assert (token, [t for t, _ in top]) == (8, wanted.topk(3).indices.tolist())
    assert value == pytest.approx(float(wanted[8]), abs=1e-12)
    assert [v for _, v in top] == pytest.approx(wanted.topk(3).values.tolist(), abs=1e-12)
    assert choose(ROWS[1], GREEDY, 0, 0, 0, [1], []).logprobs is None


def test_parameters_survive_json() -> None:
    params = SamplingParams(
        stop=["a", "b"], stop_token_ids=[1, 2, 1], logit_bias={"3": 1.5}, seed=4, top_k=-1
    )
    assert (
        SamplingParams(**{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(params).items()})
        == params
    )
    assert (params.stop_token_ids, params.top_k, SamplingParams(stop="x").stop) == ((1, 2), 0, ("x",))


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 0}, {"n": True}, {"n": 10**9}, {"n": 2, "temperature": 0}, {"min_p": 1.5},
        {"presence_penalty": 2.1},
        {"frequency_penalty": float("nan")}, {"repetition_penalty": 0}, {"repetition_penalty": float("inf")},
        {"stop": [""]}, {"stop": [3]}, {"stop_token_ids": [-1]}, {"stop_token_ids": ["1"]}, {"max_tokens": 0},
        {"max_tokens": 1.5}, {"min_tokens": -1}, {"min_tokens": 17}, {"logprobs": 21}, {"logprobs": -2},
        {"seed": 1 << 70}, {"logit_bias": {"x": 1}}, {"logit_bias": {1: 101}}, {"top_k": -2}, {"top_k": 1.5},
        {"temperature": "hot"}, {"temperature": float("inf")}, {"ignore_eos": 1}, {"top_p": float("nan")},
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_is_named(fields: dict[str, object]) -> None:
    name = next(iter(fields))
    with pytest.raises(UsageError, match=name):
        SamplingParams(**fields)  # type: ignore[arg-type]
