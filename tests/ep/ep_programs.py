"""What rank programs of these tests begin with: routings every rank knows, experts, slow references."""

SETUP = '''
import numpy as np, emulator
from collectives import EpCosts
from collectives.ep import SCHEMES, ExpertParallel, routing, wire
device = emulator.init()
me, n = device.rank, device.num_ranks
T, K, H, S = 6, 3, 20, 2
E = n * S

class Mixed:
    """Random counts of tokens, some choices unselected."""
    def tokens(self, rank, rng): return int(rng.integers(0, T + 1))
    def experts(self, rank, rng, tokens):
        ids = np.sort(np.array([rng.permutation(max(E, K))[:K] for _ in range(tokens)]).reshape(tokens, K))
        ids[ids >= E] = -1
        ids[rng.random((tokens, K)) < 0.2] = -1
        return ids

class Full(Mixed):
    """Every choice selected, experts of a token may be on one rank."""
    def experts(self, rank, rng, tokens): return np.sort(rng.integers(0, E, (tokens, K)))

class OneSource(Full):
    """Only the last rank has tokens, and it keeps them: every other rank gets and sends nothing."""
    def tokens(self, rank, rng): return T if rank == n - 1 else 0
    def experts(self, rank, rng, tokens): return rng.integers((n - 1) * S, E, (tokens, K))

class OneTarget(Full):
    """All tokens of all ranks go to one expert of rank 0."""
    def tokens(self, rank, rng): return T
    def experts(self, rank, rng, tokens): return np.full((tokens, K), S - 1)

class Nobody(Full):
    """No choice of anybody is selected."""
    def experts(self, rank, rng, tokens): return np.full((tokens, K), -1)

ROUTES = (Mixed(), Full(), OneSource(), OneTarget(), Nobody())

def make(route, event):
    """All ranks' tokens, experts and weights of an event."""
    x, ids, w = [], [], []
    for rank in range(n):
        rng = np.random.default_rng([event, rank])
        tokens = route.tokens(rank, rng)
        x.append(rng.standard_normal((tokens, H)).astype(np.float32) * (rank + 1))
        ids.append(route.experts(rank, rng, tokens).astype(np.int64).reshape(tokens, K))
        w.append(rng.random((tokens, K)).astype(np.float32))
    return x, ids, w

def want_rows(x, ids, rank=None):
    """Rows of each of my experts: (source, token, k) ascending."""
    rank = me if rank is None else rank
    out = []
    for slot in range(S):
        out.append([x[r][t] for r in range(n) for t in range(len(x[r])) for k in range(K)
                    if ids[r][t, k] == rank * S + slot])
    return out

def expert(e, row):
    return row * np.float32(1 + e % 3) + np.float32(e)

def apply(rows, per_expert):
    e = np.repeat(np.arange(S) + me * S, per_expert)
    factor, plus = (1 + e % 3).astype(np.float32), e.astype(np.float32)
    return np.ascontiguousarray(rows * factor[:, None] + plus[:, None])

def want_sum(x, ids, w, rank=None):
    """0 for what is unselected, added in the order of k."""
    rank = me if rank is None else rank
    out = np.zeros((len(x[rank]), H), np.float32)
    for t in range(len(x[rank])):
        terms = [w[rank][t, k] * expert(int(ids[rank][t, k]), x[rank][t]) if ids[rank][t, k] >= 0
                 else np.zeros(H, np.float32) for k in range(K)]
        total = terms[0].astype(np.float32)
        for term in terms[1:]:
            total = total + term.astype(np.float32)
        out[t] = total
    return out

def check(handle, x, ids):
    want = want_rows(x, ids)
    assert handle.rows_per_expert.tolist() == [len(rows) for rows in want], handle.rows_per_expert
    flat = np.array([row for rows in want for row in rows], np.float32).reshape(-1, H)
    assert np.array_equal(handle.rows, flat)

def same(out, want):
    assert out.dtype == np.float32 and out.shape == want.shape
    assert np.array_equal(out + np.float32(0), want + np.float32(0)), np.abs(out - want).max()

def my_bytes():
    """Charged bytes of mine so far, one barrier included each time."""
    device.barrier()
    return int(device.engine.statistics().bytes_by_class[me].sum())
'''
