"""The rank mask of the low-latency calls with ranks that are really dead, and masks that differ."""

import pytest
from ep_programs import SETUP
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]

DEAD = (
    SETUP
    + """
import os, signal
import pytest
from collectives.agreement import CollectiveMismatchError
from collectives.ep import Buffer
from emulator.errors import RankLostError, StateError
H = 128
buffer = Buffer(device, low_latency_mode=True, enable_shrink=True)
gone, turn, changes = set(), 0, []

def packed(x, ids):
    out, counts = np.zeros((S, T * n, H), np.float32), []
    for slot, rows in enumerate(want_rows(x, ids)):
        counts.append(len(rows))
        if rows: out[slot, :len(rows)] = rows
    return out, counts

def go(hook=False, use_fp8=False):
    x, ids, w = make(Mixed(), turn)
    return buffer.low_latency_dispatch(x[me], ids[me], T, E, use_fp8=use_fp8, return_recv_hook=hook)

def right():
    '''A dispatch and a combine among the living: what the dead would have sent or held is not there.'''
    x, ids, w = make(Mixed(), turn)
    left = [np.where(np.isin(i // S, list(gone)) | (r in gone), -1, i) for r, i in enumerate(ids)]
    rx, counts, handle, _, hook = go(hook=turn % 2 == 1)
    hook()
    want, number = packed(x, left)
    assert counts.tolist() == number and np.array_equal(rx, want), (me, turn)
    y = np.stack([expert(me * S + s, rx[s]) for s in range(S)])
    out, _, hook = buffer.low_latency_combine(y, ids[me], w[me], handle, return_recv_hook=turn % 2 == 0)
    hook()
    same(out, want_sum(x, left, w))
    return handle

def die():
    device.engine.flush()
    os.kill(os.getpid(), signal.SIGKILL)

def lost(call, *dead):
    with pytest.raises(RankLostError) as caught:
        call()
    assert tuple(caught.value.ranks) == dead, caught.value

for turn in range(3):
    handle = right()
# one dies with a dispatch under way of which the others have its rows, and another of which they have not
*_, first = go(hook=True)
if me == 3:
    die()
*_, second = go(hook=True)
first()
lost(second, 3)
changes.append(device.now_ps)
for _ in range(2):
    lost(go, 3)                                 # until it is masked
buffer.low_latency_update_mask_buffer(3)
gone.add(3)
with pytest.raises(StateError, match="dispatch again"):
    buffer.low_latency_combine(np.zeros((S, T * n, H), np.float32), *make(Mixed(), 2)[1:2][0][me:me + 1],
                               make(Mixed(), 2)[2][me], handle)
for turn in range(3, 8):
    handle = right()
# masked before anybody waits for it; and one that dies in a combine
if me == 1:
    die()
buffer.low_latency_update_mask_buffer(1)
gone.add(1)
for turn in range(8, 11):
    right()
rx, counts, handle, _, _ = go()
if me == 5:
    die()
x, ids, w = make(Mixed(), turn)
lost(lambda: buffer.low_latency_combine(rx, ids[me], w[me], handle), 1, 3, 5)
changes.append(device.now_ps)
buffer.low_latency_update_mask_buffer(5)
gone.add(5)
for turn in range(11, 15):
    right()
buffer.low_latency_update_mask_buffer(3, False)
lost(go, 3)
buffer.low_latency_update_mask_buffer(3)
right()
report(changes=changes, now=device.now_ps)
# kvcache-ai/Mooncake: masks that differ are an error on all that take part, by name
if me == 0:
    buffer.low_latency_update_mask_buffer(2)
with pytest.raises(CollectiveMismatchError, match="mask other ranks than the rest does") as caught:
    go()
report(changes=changes, now=device.now_ps, text=str(caught.value))
"""
)


def test_dispatch_and_combine_among_the_living():
    """DeepEP's mask; vLLM PR 37357 and RFC #20323: fewer ranks, again and again. Times do not depend on when
    the host saw a death."""
    runs = [run_ranks(6, DEAD, keep_going=True, check=False) for _ in range(2)]
    for ran in runs:
        assert sorted(ran.reports) == [0, 2, 4], ran.stderr
        assert all("text" in r for r in ran.reports.values()), ran.stderr
    assert runs[0].reports == runs[1].reports
