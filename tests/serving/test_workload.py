"""Workloads: equal content gives equal tokens, scaling keeps every priced token."""

import numpy as np
import pytest

from emulator.errors import UsageError
from serving.traces import TraceRequest
from serving.workload import WorkloadOptions, builtin_trace, make_requests, prompt_tokens

SCALES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def options(**changes: object) -> WorkloadOptions:
    return WorkloadOptions(**({"vocab": 500, "seed": 3} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("length", [1, 63, 511, 512, 513, 1500])
def test_prompt_length_is_rounded_up_and_shares_sum_to_the_priced_length(scale: int, length: int) -> None:
    hash_ids = tuple(range(-(-length // 512)))
    (spec,) = make_requests([TraceRequest(0, length, 4, hash_ids)], options(token_scale=scale))
    assert spec.prompt_tokens == -(-length // scale)
    edges = [spec.priced_position(i) for i in range(spec.prompt_tokens + 1)]
    shares = np.diff(edges)
    assert edges[0] == 0
    assert shares.sum() == length
    assert (shares[:-1] == scale).all()
    assert 1 <= shares[-1] <= scale
    assert spec.priced_position(spec.prompt_tokens + 3) == length + 3


@pytest.mark.parametrize("scale", [1, 64, 512])
def test_equal_blocks_have_equal_tokens_and_others_do_not(scale: int) -> None:
    per_block = 512 // scale
    a = prompt_tokens(TraceRequest(0, 1536, 1, (5, 6, 7)), 0, options(token_scale=scale))
    b = prompt_tokens(TraceRequest(0, 1100, 1, (5, 6, 9)), 1, options(token_scale=scale))
    assert (a[: 2 * per_block] == b[: 2 * per_block]).all()
    if scale < 512:
        assert (a[2 * per_block :][: len(b) - 2 * per_block] != b[2 * per_block :]).any()
    assert a.dtype == np.int64
    assert a.min() >= 0 and a.max() < 500


def test_content_depends_on_the_seed_and_covers_the_vocabulary() -> None:
    line = TraceRequest(0, 5120, 1, tuple(range(10)))
    a, b = (prompt_tokens(line, 0, options(seed=seed)) for seed in (0, 1))
    assert (a != b).mean() > 0.9
    assert len(np.unique(a)) > 480


def test_requests_without_hash_ids_share_nothing() -> None:
    line = TraceRequest(0, 600, 1, None)
    a, b = (prompt_tokens(line, i, options()) for i in (0, 1))
    assert (a != b).mean() > 0.9
    assert (a == prompt_tokens(line, 0, options())).all()


def test_arrivals_and_outputs_are_scaled_and_cut_as_asked() -> None:
    trace = [TraceRequest(9_000, 1, 3, (0,)), TraceRequest(10_000, 1, 50, (0,))]
    plain = make_requests(trace, options())
    assert [(s.arrival_ps, s.max_output, s.truncated) for s in plain] == [
        (9_000, 3, False),
        (10_000, 50, False),
    ]
    cut = make_requests(trace, options(time_scale=2.0, max_output=16))
    assert [(s.arrival_ps, s.max_output, s.truncated) for s in cut] == [(4_500, 3, False), (5_000, 16, True)]
    assert len({s.seed for s in cut}) == 2
    assert [s.seed for s in cut] == [s.seed for s in plain]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_scale": 3}, "--token-scale 3 must divide 512; the nearest is 2"),
        ({"token_scale": 0}, "nearest is 1"),
        ({"token_scale": 1024}, "nearest is 512"),
        ({"time_scale": 0.0}, "--time-scale"),
        ({"time_scale": float("nan")}, "--time-scale"),
        ({"max_output": 0}, "--max-output"),
    ],
)
def test_bad_options_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options(**changes)


def test_builtin_trace_is_a_function_of_its_seed() -> None:
    assert builtin_trace(20, 1) == builtin_trace(20, 1)
    assert builtin_trace(20, 1) != builtin_trace(20, 2)
    trace = builtin_trace(64, 0)
    assert trace[0].arrival_ps == 0
    assert all(-(-r.input_length // 512) == len(r.hash_ids or ()) for r in trace)
    assert any((r.hash_ids or ())[0] == 0 for r in trace)
    assert sorted(trace, key=lambda r: r.arrival_ps) == trace
