"""Load balancing as pure functions: the oracle's argmin, limits kept, and each policy in the dispatcher.

Mutations seen to fail here: the most loaded group instead of the least; the batch limit off by one; the KV of
the request itself left out; loads not updated between two requests.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import UsageError
from serving.balance import (
    DecodeKV,
    LeastTokens,
    PrefillCost,
    PromptView,
    RandomGroup,
    RoundRobin,
    check_policy,
    decode_target,
    prefill_assign,
)
from serving.dispatch import TICK_PS, Dispatcher, OpenDispatcher
from serving.request import RequestSpec


def spec(request_id: int, prompt: int, output: int = 1, arrival_ps: int = 0, first: int = 0) -> RequestSpec:
    ids = np.arange(first, first + prompt)
    return RequestSpec(request_id, arrival_ps, ids, prompt, 1, output, False, 0)


def cost(cached: int, new: int) -> int:
    return 50 + 10 * new + new * (cached + new) // 8


groups = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), min_size=1, max_size=8)


@given(groups, st.integers(1, 9), st.integers(1, 40), st.integers(1, 12))
def test_decode_goes_to_the_oracles_argmin(
    state: list[tuple[int, int]], limit: int, capacity: int, need: int
) -> None:
    best = None
    for number, (batch, kv) in enumerate(state):
        if batch >= limit or kv + need > capacity:
            continue
        if best is None or kv < state[best][1]:
            best = number
    batch, kv = (np.array(column, np.int64) for column in zip(*state, strict=True))
    assert decode_target(batch, kv, limit, capacity, need) == best


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_prefill_gives_each_prompt_to_the_oracles_argmin(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(2, 60), min_size=1, max_size=6))
    num = data.draw(st.integers(1, 4))
    row = [st.lists(st.integers(0, n - 1), min_size=num, max_size=num) for n in lengths]
    cached = np.array([data.draw(one) for one in row])
    loads = np.array(data.draw(st.lists(st.integers(0, 900), min_size=num, max_size=num)))
    chosen = prefill_assign(lengths, cached, loads, cost)
    price = {
        (i, d): cost(int(cached[i, d]), n - int(cached[i, d]))
        for i, n in enumerate(lengths)
        for d in range(num)
    }
    ends = loads.tolist()
    for i in sorted(range(len(lengths)), key=lambda i: (-min(price[i, d] for d in range(num)), i)):
        best = min(range(num), key=lambda d: (ends[d] + price[i, d], d))
        assert chosen[i] == best
        ends[best] += price[i, best]
    if not loads.any() and (cached == cached[:, :1]).all():
        every = itertools.product(range(num), repeat=len(lengths))
        optimum = min(
            max(sum(price[i, d] for i in range(len(lengths)) if plan[i] == d) for d in range(num))
            for plan in every
        )
        assert max(ends) * 3 * num <= optimum * (4 * num - 1)  # Graham's bound for longest-first


def test_a_prefix_draws_its_prompt_to_the_group_that_has_it() -> None:
    view = PromptView(3, block=8, most_blocks=100)
    policy = PrefillCost(cost, budget=64, view=view)
    loads = np.zeros(3, np.int64)
    assert policy.choose([spec(0, 64), spec(1, 64, first=500)], loads, ()) == [0, 1]
    loads[:] = 0
    assert policy.choose([spec(2, 64, first=500)], loads, ()) == [1]
    loads[:] = [0, 640, 0]
    assert policy.choose([spec(3, 64, first=500)], loads, ()) == [0]
    assert policy.choose([spec(4, 64)], np.zeros(3, np.int64), dead=[0]) == [1]


def test_the_view_forgets_what_was_not_used_longest() -> None:
    view = PromptView(2, block=4, most_blocks=3)
    old, new = spec(0, 8), spec(1, 8, first=100)
    view.note(view.hashes(old), 0)
    view.note(view.hashes(new), 1)
    assert view.cached(old, view.hashes(old)).tolist() == [0, 0]
    assert view.cached(new, view.hashes(new)).tolist() == [0, 7]


class FakeGroup:
    def __init__(self, requests: int, kv: int) -> None:
        self.num_requests, self.kv_reserved, self.outstanding = requests, kv, 5


def test_decode_words_carry_requests_and_kv_and_full_groups_make_requests_wait() -> None:
    policy = DecodeKV(limit=2, capacity=100)
    words = np.array([policy.status(FakeGroup(*state)) for state in [(1, 50), (2, 0), (0, 0), (1, 30)]])
    loads = policy.learn(words)
    assert loads.tolist() == [1, 2, 0, 1]
    arrivals = [spec(i, 40, 1) for i in range(5)]
    assert policy.choose(arrivals, loads, ()) == [2, 3, 2, 0, None]
    assert loads.tolist() == [2, 2, 2, 2]
    dispatcher = Dispatcher(arrivals, lambda s: False, balancer=DecodeKV(1, 100))
    loads, now_ps = dispatcher.unpack(np.array([dispatcher.pack(FakeGroup(0, 0), 3 * TICK_PS)] * 2))
    assert now_ps == 3 * TICK_PS
    assert [(r, s.request_id) for r, s in dispatcher.assign(loads, 0)] == [(0, 0), (1, 1)]
    assert dispatcher.next_arrival_ps == 0
    loads, _ = dispatcher.unpack(np.array([dispatcher.pack(FakeGroup(0, 0), 0)] * 2))
    assert [(r, s.request_id) for r, s in dispatcher.assign(loads, 0)] == [(0, 2), (1, 3)]


def test_round_robin_random_and_least_skip_the_dead() -> None:
    some = [spec(i, 10) for i in range(6)]
    assert RoundRobin().choose(some, np.zeros(3, np.int64), dead=[1]) == [0, 2, 0, 2, 0, 2]
    random = RandomGroup(4).choose(some, np.zeros(3, np.int64), dead=[1])
    assert random == RandomGroup(4).choose(some, np.zeros(3, np.int64), dead=[1]) and 1 not in random
    assert LeastTokens().choose(some[:3], np.array([0, 0, 5]), dead=[0]) == [1, 2, 1]
    with pytest.raises(UsageError, match="choose least-tokens, prefill-cost"):
        check_policy("best")


def test_open_requests_are_handed_out_in_order_of_arrival_and_can_be_taken_back() -> None:
    dispatcher = OpenDispatcher(lambda s: False)
    for i, arrival in enumerate([5, 0, 2, 2]):
        dispatcher.add(spec(i, 10, arrival_ps=arrival * TICK_PS))
    assert dispatcher.cancel(2) is not None and dispatcher.cancel(2) is None
    loads = np.zeros(2, np.int64)
    assert [s.request_id for _, s in dispatcher.assign(loads, 2 * TICK_PS)] == [1, 3]
    assert dispatcher.next_arrival_ps == 5 * TICK_PS
    assert dispatcher.cancel(1) is None
    assert [s.request_id for _, s in dispatcher.assign(loads, 9 * TICK_PS)] == [0]
    assert dispatcher.next_arrival_ps is None
