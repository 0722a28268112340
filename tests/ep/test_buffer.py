"""DeepEP's face over real processes: shapes, values, hooks, statistics, mask, what goes wrong."""

import pytest
from ep_programs import SETUP
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]
SMALL_NODES = {"pod.chips_per_node": 1, "pod.nodes": 384}

NORMAL = (
    SETUP
    + """
import torch
from collectives.ep import Buffer
H = 128
buffer = Buffer(None, num_nvl_bytes=1 << 20, explicitly_destroy=True)
def distinct(row): return sorted({e // S for e in row.tolist() if e >= 0})

for event, route in enumerate(ROUTES):
    x, ids, w = make(route, event)
    tx, ti, tw = torch.from_numpy(x[me]).bfloat16(), torch.from_numpy(ids[me]), torch.from_numpy(w[me])
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(ti, E)
    assert per_rank.tolist() == [sum(r in distinct(row) for row in ids[me]) for r in range(n)]
    assert per_node is not None and per_expert.tolist() == [int((ids[me] == e).sum()) for e in range(E)]
    rx, ri, rw, counts, handle, done = buffer.dispatch(
        tx, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert, topk_idx=ti, topk_weights=tw, expert_alignment=4)
    mine = [(r, t) for r in range(n) for t in range(len(ids[r])) if me in distinct(ids[r][t])]
    want = np.array([x[r][t] for r, t in mine], np.float32).reshape(-1, H)
    assert rx.dtype == torch.bfloat16 and torch.equal(rx, torch.from_numpy(want).bfloat16())
    chosen = np.array([ids[r][t] for r, t in mine], np.int64).reshape(-1, K)
    local = np.where((chosen >= 0) & (chosen // S == me), chosen % S, -1)
    assert ri.tolist() == local.tolist()
    assert counts == [-(-int((local == s).sum()) // 4) * 4 for s in range(S)]
    held = np.array([w[r][t] for r, t in mine], np.float32).reshape(-1, K)
    assert np.array_equal(rw.numpy(), np.where(local >= 0, held, 0))
    assert handle.recv_from.tolist() == [sum(r == s for s, _ in mine) for r in range(n)]
    # other rows the same way, as float32 and as fp8
    again, *_ , event_ = buffer.dispatch(torch.from_numpy(2 * x[me]), handle=handle)
    assert torch.equal(again, torch.from_numpy(2 * want))
    scales, codes = wire.quantise_fp8(x[me])
    fp8 = torch.from_numpy(codes).view(torch.float8_e4m3fn), torch.from_numpy(scales)
    (c, s), *_ = buffer.dispatch(fp8, handle=handle)
    assert c.dtype == torch.float8_e4m3fn
    for got, whole in ((c.view(torch.uint8), 1), (s, 0)):
        value = np.array([wire.quantise_fp8(x[r])[whole][t] for r, t in mine]).reshape(got.shape)
        assert np.array_equal(got.numpy(), value)
    # whole numbers add up the same in any order: the owner gets (ranks + 0) * row, and the weights' sums
    whole = torch.from_numpy(np.round(want)).float()
    out, ws, _ = buffer.combine(whole, handle, topk_weights=rw, bias=torch.ones(len(tx), H))
    times = np.array([len(distinct(row)) for row in ids[me]], np.float32).reshape(-1, 1)
    assert np.array_equal(out.numpy(), np.round(x[me]) * times + 1)
    assert np.allclose(ws.numpy(), np.where(ids[me] >= 0, w[me], 0))
padded = buffer.dispatch(tx, topk_idx=ti, topk_weights=tw, num_worst_tokens=100, num_experts=E)
assert padded[0].shape == (100, H) and padded[3] == [] and (padded[1][-1] == -1).all()

# what one rank does wrong is an error on all, and the next call works
def refused(text, **arguments):
    try:
        buffer.dispatch(**arguments)
    except emulator.errors.UsageError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
bad = ti.clone() if me != 2 else torch.full_like(ti, E)
refused("rank 2: dispatch: topk_idx names expert", x=tx, topk_idx=bad, num_experts=E)
refused("rank 1: dispatch: tokens_per_rank is not that of topk_idx", x=tx, topk_idx=ti, num_experts=E,
        num_tokens_per_rank=torch.full((n,), 99) if me == 1 else None)
many = torch.zeros(9000 if me == 3 else 1, H)
refused("rank 3: dispatch: 9000 rows, a block takes", x=many, num_experts=E,
        topk_idx=torch.zeros(len(many), K, dtype=torch.int64))
refused("the ranks disagree on the words of a row: ranks 1-3: 70, rank 0: 134", topk_idx=ti, num_experts=E,
        x=tx if me else torch.from_numpy(x[me]))
half = torch.zeros(len(tx), 4)  # four values are two words as bfloat16 and as fp8
pair = half.view(torch.uint8)[:, :4].view(torch.float8_e4m3fn), torch.ones(len(tx), 1)
refused("on the kind of rows: rank 0: bfloat16, ranks 1-3: fp8", x=pair if me else half.bfloat16(),
        topk_idx=ti, num_experts=E)
refused("rank 1: dispatch: numbers of float32; use int64", x=tx, topk_idx=ti.float() if me == 1 else ti,
        num_experts=E)
refused("rank 2: dispatch: numbers of float64; use float32", x=tx, topk_idx=ti, num_experts=E,
        topk_weights=tw.double() if me == 2 else tw)
refused("rank 2: dispatch: expert_alignment must be a whole number of at least 1, got 0", x=tx, topk_idx=ti,
        expert_alignment=0 if me == 2 else 1, num_experts=E)
lots = torch.zeros(T, H), torch.zeros(T, K, dtype=torch.int64)
refused(f"rank 0: dispatch: {n * T} rows come to it, it takes num_worst_tokens={n * T - 1};", x=lots[0],
        topk_idx=lots[1], num_experts=E, num_worst_tokens=n * T - 1)
*_, handle, _ = buffer.dispatch(lots[0], topk_idx=lots[1], num_experts=E)
back = torch.zeros(int(handle.recv_from.sum()), H)
try:
    buffer.combine(back, handle, bias=torch.zeros(1 if me == 3 else T, H))
except emulator.errors.UsageError as error:
    assert f"rank 3: combine: bias must be [{T}, {H}], got [1, {H}]" in str(error), error
else:
    raise AssertionError("a bias of another shape was taken")
assert buffer.dispatch(tx, topk_idx=ti, num_experts=E)[0].shape[0] == padded[4].recv_from.sum()
buffer.destroy()
report(now=device.now_ps)
"""
)


def test_normal_calls_send_a_token_once_to_a_rank_and_add_up_by_rank():
    """D2 (a, b, e): distinct (token, rank) rows, two hops between nodes of two dies, cached handles; capacity
    and arguments checked on all ranks (DeepEP 165: assert on one rank only; mutation: raise before `begin`
    and the others hang)."""
    run_ranks(4, NORMAL, set=SMALL_NODES)


LOW = (
    SETUP
    + """
import torch
from collectives.ep import Buffer
H = 128
buffer = Buffer(device, low_latency_mode=True, enable_shrink=True)
stats, waits = torch.zeros(S, dtype=torch.int32), torch.zeros(n, dtype=torch.int64)
total = np.zeros(S, np.int64)

def packed(x, ids):
    '''[S, T * n, H] of my experts, rows by (source, token).'''
    out, counts = np.zeros((S, T * n, H), np.float32), []
    for slot, rows in enumerate(want_rows(x, ids)):
        counts.append(len(rows))
        if rows: out[slot, :len(rows)] = rows
    return out, counts

def different(event, ids):
    '''Choices of a token on different experts.'''
    return [np.array([np.random.default_rng([event, r, t]).permutation(E)[:K] for t in range(len(i))])
            .reshape(-1, K).astype(np.int64) for r, i in enumerate(ids)]

def outputs(rx, counts):
    return torch.from_numpy(np.stack([expert(me * S + s, rx[s].float().numpy()) for s in range(S)]))

for event, route in enumerate((Mixed(), Full(), OneSource(), OneTarget(), Nobody(), Mixed())):
    x, ids, w = make(route, event)
    if type(route) in (Full, OneSource):
        ids = different(event, ids)
    if type(route) is OneTarget:
        ids = [np.where(np.arange(K) == 1, i, -1) for i in ids]
    tx, ti, tw = torch.from_numpy(x[me]).bfloat16(), torch.from_numpy(ids[me]), torch.from_numpy(w[me])
    x16 = [torch.from_numpy(rows).bfloat16().float().numpy() for rows in x]
    hooked = event % 2 == 1
    rx, counts, handle, _, hook = buffer.low_latency_dispatch(
        tx, ti, T, E, stats, waits, use_fp8=False, return_recv_hook=hooked)
    assert rx.shape == (S, T * n, H) and rx.dtype == torch.bfloat16
    hook()
    want, number = packed(x16, ids)
    assert counts.tolist() == number and np.array_equal(rx.float().numpy(), want)
    total += number
    tokens = [np.arange(len(i))[:, None] for i in ids]
    info = [int(t[0]) for rows in want_rows(tokens, ids) for t in rows]
    assert handle.src_info[handle.src_info >= 0].tolist() == info
    ranges = handle.layout_range.numpy()
    each = [[int((ids[r] == me * S + s).sum()) for r in range(n)] for s in range(S)]
    assert (ranges & 0xFFFFFFFF).tolist() == each
    y = outputs(rx, counts)
    if event == 3:
        buffer.get_next_low_latency_combine_buffer(handle)[:] = y
    out, _, hook = buffer.low_latency_combine(
        y, ti, tw, handle, zero_copy=event == 3, return_recv_hook=hooked)
    hook()
    same(out.numpy(), want_sum(x16, ids, w))
    # the same as E4M3
    (codes, scales), *_ = buffer.low_latency_dispatch(tx, ti, T, E, use_fp8=True, round_scale=hooked)
    got = wire.dequantise_fp8(codes.view(torch.uint8).numpy().reshape(-1, H), scales.numpy().reshape(-1, 1))
    assert np.abs(got.reshape(want.shape) - want).max() <= np.abs(want).max() * 2.0**-3
    assert not hooked or not (np.log2(scales.numpy()[scales.numpy() > 0]) % 1).any()
assert stats.tolist() == total.tolist() and (waits >= 0).all()

# two layers in flight: dispatch of one beside the combine of the other (DeepEP 513), called back in any order
a, b = make(Full(), 20), make(Full(), 21)
for one in (a, b):
    one[1][:] = different(20, one[1])
def go(one, hooked=True):
    x, ids, w = one
    mine = torch.from_numpy(x[me]), torch.from_numpy(ids[me])
    return buffer.low_latency_dispatch(*mine, T, E, use_fp8=False, return_recv_hook=hooked)
ra, ca, ha, _, hook_a = go(a)
hook_a()
rb, cb, hb, _, hook_b = go(b)
def back(one, rx, counts, handle, hooked=False):
    mine = torch.from_numpy(one[1][me]), torch.from_numpy(one[2][me])
    return buffer.low_latency_combine(outputs(rx, counts), *mine, handle, return_recv_hook=hooked)
oa, _, hook_oa = back(a, ra, ca, ha, True)
try: go(a)
except emulator.errors.StateError as error: assert "two buffers" in str(error)
else: raise AssertionError("a third operation was let in")
hook_oa(); hook_b()
same(oa.numpy(), want_sum(*a))
same(back(b, rb, cb, hb)[0].numpy(), want_sum(*b))

# the hook hides the transfer: with work between, the end is max(comm, compute) + tail
def timed(hooked, work):
    device.barrier()
    start = device.now_ps
    *_, hook = go(a, hooked)
    if work: device.compute(work)
    hook()
    device.barrier()
    return device.now_ps - start
alone, work = timed(False, 0), 50_000_000
hidden, serial = timed(True, work), timed(False, work)
assert serial >= work + alone and serial - hidden > alone // 3, (alone, hidden, serial)

def refused(text, x, i, most=T, experts=E, **more):
    try: buffer.low_latency_dispatch(x, i, most, experts, **{"use_fp8": False, **more})
    except emulator.errors.UsageError as error: assert text in str(error), error
    else: raise AssertionError(text)
length = T + 1 if me == 1 else 1
long = torch.zeros(length, H), torch.full((length, K), -1)
refused(f"rank 1: low_latency_dispatch: {T + 1} tokens, num_max_dispatch_tokens_per_rank is {T}", *long)
refused("rank 2: low_latency_dispatch: token 0 names expert 1 twice", torch.zeros(1, H),
        torch.tensor([[1, 1, 0] if me == 2 else [1, 2, 3]]))
nothing = torch.zeros(1, H), torch.full((1, K), -1)
refused("rank 2: low_latency_dispatch: numbers of float32; use int64", nothing[0],
        nothing[1].float() if me == 2 else nothing[1])
refused("rank 1: low_latency_dispatch: use_ue8m0 needs use_fp8 and round_scale", *nothing, use_fp8=True,
        use_ue8m0=me == 1)
refused("kind of rows: rank 0: fp8, ranks 1-3: fp8 with powers of two as scales", *nothing, use_fp8=True,
        round_scale=me > 0)
rx, counts, h, _, _ = go(a, False)
try: buffer.low_latency_combine(rx, *map(torch.from_numpy, (a[1][me], a[2][me])), h, use_logfmt=me == 1)
except emulator.errors.UsageError as error: assert "rank 1: low_latency_combine: there is" in str(error)
else: raise AssertionError("a log format was taken")
refused(f"on the capacity: rank 0: {T}, rank 1: {T + 1}", *nothing, most=T + me)
rx, counts, h, _, _ = buffer.low_latency_dispatch(*nothing, T + 2, E, use_fp8=False)
assert rx.shape == (S, (T + 2) * n, H) and not counts.any()

go(a, False)
# a masked rank: nobody sends to it or waits for it
last = n - 1
x, ids, w = a
if me == last:
    device.compute(1_000_000_000)
else:
    buffer.low_latency_update_mask_buffer(last)
    status = torch.zeros(n, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0] * last + [1]
rows = None
device.barrier()
if me != last:
    rx, counts, h, _, _ = go(a, False)
    left = [np.where(i // S == last, -1, i) for i in ids]
    left[last] = np.full_like(left[last], -1)
    want, number = packed(x, left)
    assert counts.tolist() == number and np.array_equal(rx.numpy(), want)
    out, _, _ = back(a, rx, counts, h)
    same(out.numpy(), want_sum(x, left, w))
    buffer.low_latency_clean_mask_buffer()
device.barrier()
rx, counts, h, _, _ = go(a, False)
assert counts.tolist() == packed(x, ids)[1]
report(now=device.now_ps)
"""
)


def test_low_latency_calls_keep_their_shape_and_hide_behind_hooks():
    """D2 (c, d): shapes that do not depend on the routing, hooks, statistics, the rank mask; DeepEP 513:
    a dispatch beside a combine (mutation: one buffer instead of two)."""
    run_ranks(4, LOW)
