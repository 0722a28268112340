"""A sample is a pure function of (logits, parameters, seed, choice, position), distributed as asked."""

from typing import Any

import numpy as np
import pytest
import torch

from emulator.errors import UsageError
from serving.model import (
    GREEDY,
    LogitHash,
    Model,
    ReferenceRequest,
    SamplingParams,
    generate,
    greedy,
    sample,
)
from serving.model.sampling import uniform

LOGITS = torch.tensor([0.0, 3.0, 1.0, 3.0, 2.0])


def draws(params: SamplingParams, count: int = 4000) -> np.ndarray:
    counts = np.zeros(len(LOGITS))
    for position in range(count):
        counts[sample(LOGITS, params, request_seed=7, choice=0, position=position)] += 1
    return counts / count


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert greedy(torch.stack([LOGITS, -LOGITS])) == [1, 0]
    assert sample(LOGITS, GREEDY, 0, 0, 0) == 1


def test_distribution_of_plain_sampling() -> None:
    wanted = torch.softmax(LOGITS / 1.5, 0).numpy()
    assert np.abs(draws(SamplingParams(temperature=1.5)) - wanted).max() < 0.025


@pytest.mark.parametrize(
    ("cut", "kept"),
    [({"top_k": 1}, {1}), ({"top_k": 3}, {1, 3, 4}), ({"top_p": 0.75}, {1, 3}), ({"top_p": 0.9}, {1, 3, 4})],
)
def test_top_k_and_top_p_cut_the_tail(cut: dict[str, Any], kept: set[int]) -> None:
    """The two best hold 0.78 of the probability, the best three 0.93."""
    assert set(np.flatnonzero(draws(SamplingParams(temperature=1.0, **cut), 500)).tolist()) == kept


def test_pure_function_of_its_arguments() -> None:
    params = SamplingParams(temperature=1.0)
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.standard_normal((50, 64)).astype(np.float32))
    order = rng.permutation(50)
    forwards = [sample(logits[i], params, 3, 1, i) for i in range(50)]
    shuffled = {int(i): sample(logits[i], params, 3, 1, int(i)) for i in order}
    assert [shuffled[i] for i in range(50)] == forwards


def test_every_argument_matters() -> None:
    numbers = {uniform(s, c, p) for s in range(4) for c in range(4) for p in range(4)}
    assert len(numbers) == 64
    assert all(0 <= number < 1 for number in numbers)
    assert uniform(-1, 0, 0) == uniform(2**64 - 1, 0, 0)


def test_the_generator_is_pinned() -> None:
    """Tokens of a seeded request must not change between versions."""
    assert [uniform(7, 0, position) for position in range(3)] == [
        0.8720734548204873,
        0.0828426870273763,
        0.014107696329258346,
    ]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
    ],
)
def test_bad_parameters(fields: dict[str, float], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        SamplingParams(**fields)  # type: ignore[arg-type]


class TestReference:
    def test_choices_of_one_request_differ_and_repeat(self, tiny: Model) -> None:
        params = SamplingParams(temperature=1.0)
        requests = [ReferenceRequest((1, 2, 3), 12, params, seed=5, choice=choice) for choice in (0, 1, 0)]
        first, second, again = generate(tiny, requests)
        assert first == again
        assert first.tokens != second.tokens

    def test_hash_covers_every_logit(self, tiny: Model) -> None:
        (result,) = generate(tiny, [ReferenceRequest((1, 2, 3), 1)])
        digest = LogitHash()
        digest.update(torch.zeros(64))
        assert len(result.logits_sha256) == 64 == len(digest.hexdigest())
        one, other = LogitHash(), LogitHash()
        one.update(torch.tensor([0.0]))
        other.update(torch.tensor([-0.0]))
        assert one.hexdigest() != other.hexdigest()

    def test_stop_token_ends_the_answer(self, tiny: Model) -> None:
        (free,) = generate(tiny, [ReferenceRequest((1, 2, 3), 8)])
        stop = free.tokens[3]
        (stopped,) = generate(tiny, [ReferenceRequest((1, 2, 3), 8, stop_token=stop)])
        assert stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]

    def test_bad_requests(self, tiny: Model) -> None:
        for request, word in (
            (ReferenceRequest((), 1), "at least one prompt token"),
            (ReferenceRequest((1,), 0), "at least one"),
            (ReferenceRequest((64,), 1), "outside the vocabulary of 64"),
            (ReferenceRequest((1,) * 16385, 1), "the context is 16384"),
        ):
            with pytest.raises(UsageError, match=word):
                list(generate(tiny, [request]))
