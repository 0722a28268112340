"""Public bug reports on groups of experts: unequal groups, schemes in turns, ranks that end early.

The rows of all of them, and the broken builds that make these fail, are in docs/bug_reports.md.
"""

import pytest
from ep_programs import SETUP
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]

TURNS = (
    SETUP
    + """
from types import SimpleNamespace
def whole(values): return np.ascontiguousarray(values)

def one_call(ep, group, place, seed, left):
    '''A dispatch and its combine among `group`; rank r has min(left[r], T) tokens. Values from loops.'''
    size = len(group)
    rng = np.random.default_rng([size, seed])
    x = (rng.integers(-99, 99, (n, T, H)) + 1000 * np.arange(n)[:, None, None]).astype(np.float32)
    ids = np.sort(rng.integers(0, size * S, (n, T, K)))
    w = rng.random((n, T, K)).astype(np.float32)
    tokens = [min(left[r], T) for r in range(n)]
    handle = ep.dispatch(whole(x[me, :tokens[me]]), whole(ids[me, :tokens[me]]))
    want = [[x[r, t] for r in group for t in range(tokens[r]) for k in range(K)
             if ids[r, t, k] == place * S + slot] for slot in range(S)]
    assert handle.rows_per_expert.tolist() == [len(rows) for rows in want], (ep.scheme, group)
    flat = np.array([row for rows in want for row in rows], np.float32).reshape(-1, H)
    assert np.array_equal(handle.rows, flat), (ep.scheme, group)
    e = np.repeat(np.arange(S) + place * S, handle.rows_per_expert).astype(np.float32)
    return x, ids, w, tokens, ep.combine(handle, handle.rows + e[:, None], whole(w[me, :tokens[me]]))

# groups of 1, 2 and 3 ranks side by side, every scheme; buffers are as large as the largest group needs
for seed, scheme in enumerate(SCHEMES):
    members = [[0], [5, 1], [2, 4, 3]][0 if me == 0 else 1 if me in (1, 5) else 2]
    place = members.index(me)
    ep = ExpertParallel(SimpleNamespace(device=device, members=members), len(members) * S, H, T, K, scheme)
    for event in range(2):
        x, ids, w, tokens, out = one_call(ep, members, place, event, [T - r % 2 for r in range(n)])
        want = np.zeros_like(out)
        for t in range(tokens[me]):
            for k in range(K):
                want[t] += w[me, t, k] * (x[me, t] + np.float32(ids[me, t, k]))
        assert np.array_equal(out, want), (scheme, members)
    ep.release()
# the same channels for all ranks now, and six back ends in turns on one machine: what one has under way is
# nobody else's; ranks have 1 to 21 tokens to serve and go on with none until the last has ended
every = [ExpertParallel(device, E, H, T, K, scheme) for scheme in SCHEMES]
group, turn = list(range(n)), 0
left = [1 + 4 * r for r in range(n)]
while max(left) > 0:
    outs = [one_call(ep, group, me, turn, left)[4] for ep in every]
    assert all(np.array_equal(out, outs[0]) for out in outs)
    left = [max(0, count - T) for count in left]
    turn += 1
x, ids, w = make(Full(), 7)
posted = [ep.post_dispatch(x[me], ids[me]) for ep in every]
for ep, ticket in reversed(list(zip(every, posted))):
    handle = ep.finish_dispatch(ticket)
    check(handle, x, ids)
    same(ep.combine(handle, apply(handle.rows, handle.rows_per_expert), w[me]), want_sum(x, ids, w))
# one rank holds all experts, or all ranks do: the same bits
alone = ExpertParallel(SimpleNamespace(device=device, members=[me]), E, H, T, K, "cann")
handle = alone.dispatch(x[me], ids[me])
e = np.repeat(np.arange(E), handle.rows_per_expert)
y = whole(handle.rows * (1 + e % 3).astype(np.float32)[:, None] + e.astype(np.float32)[:, None])
assert np.array_equal(alone.combine(handle, y, w[me]), want_sum(x, ids, w))
report(turns=turn)
"""
)


def test_unequal_groups_schemes_in_turns_and_ranks_that_end_early():
    ran = run_ranks(6, TURNS, managed_bytes=24 << 20)
    assert {r["turns"] for r in ran.reports.values()} == {4}
