"""What a decode measurement may be asked for, and what it makes of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulator.errors import UsageError
from serving.decode.settings import (
    WARM_STEPS,
    DecodePlan,
    decode_job,
    decode_requests,
    parse_context,
    plan_decode,
    spare_experts,
    split_overrides,
)
from serving.job import DecodeOptions
from serving.model.config import preset_config


@pytest.mark.parametrize("text", ["", "x", "2048-4096", "4096:2048", "0:5", "1:2:3"])
def test_a_bad_context_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"--context .*: (write LOW:HIGH|1 <= LOW)"):
        parse_context(text)
    assert parse_context("2048:4096") == (2048, 4096)
    assert parse_context("3072") == (3072, 3072)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "--batch 0"),
        ({"options": DecodeOptions(steps=0)}, "--steps 0"),
        ({"token_scale": 0}, "--token-scale 0"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], message: str) -> None:
    usual = {"batch": 60, "options": DecodeOptions(), "token_scale": 1024}
    given = usual | changes
    with pytest.raises(UsageError, match=message):
        decode_job("m", 4, given["batch"], (1, 2), given["options"], {}, token_scale=given["token_scale"])


def r1_plan(directory: Path, ranks: int, batch: int, context: tuple[int, int]) -> DecodePlan:
    spare = spare_experts(ranks, 256)
    job = decode_job(str(directory), ranks, batch, context, DecodeOptions(), {}, redundant_experts=spare)
    return plan_decode(job, preset_config("mini"), context)


def test_a_batch_that_does_not_fit_a_die_is_refused(tmp_path: Path) -> None:
    assert len(r1_plan(tmp_path, 288, 60, (2048, 4096)).specs) == 17_280
    with pytest.raises(UsageError, match=r"--batch 600: \d+ tokens of KV exceed the \d+ .* about \d+ such"):
        r1_plan(tmp_path, 288, 600, (2048, 4096))
    with pytest.raises(UsageError, match="start more ranks"):
        r1_plan(tmp_path, 8, 1, (10, 10))


def test_requests_follow_the_seed_and_lie_in_the_range() -> None:
    specs = decode_requests(4, 50, (2048, 4096), 1024, 3, 512, 1)
    lengths = np.array([spec.priced_prompt for spec in specs])
    assert lengths.min() >= 2048 and lengths.max() <= 4096
    assert lengths.mean() == pytest.approx(3072, rel=0.05)
    assert {spec.prompt_tokens for spec in specs} <= {2, 3, 4}
    again = decode_requests(4, 50, (2048, 4096), 1024, 3, 512, 1)
    assert all(np.array_equal(a.prompt, b.prompt) for a, b in zip(specs, again, strict=True))
    assert {spec.max_output for spec in specs} == {WARM_STEPS + 3 + 1}


def test_overrides_go_where_their_key_lives() -> None:
    given = {"jitter.expert_noise": "0", "ub.latency_inter_us": "4"}
    assert split_overrides(given) == ({"ub.latency_inter_us": "4"}, {"jitter.expert_noise": "0"})
