"""Every call of torch.distributed on four ranks, against values written down. The payload says whose it is
and where it lay."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._C._distributed_c10d import _make_nccl_premul_sum
from torch.distributed import ReduceOp

backend = "superpod"
dist.init_process_group(backend)
me, n = dist.get_rank(), dist.get_world_size()
assert dist.get_backend() == backend and n == 4


def value(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """What a rank sends: a different number at every place of every rank."""
    size = int(torch.tensor(shape).prod()) if shape else 1
    return (torch.arange(size) + 10 * (rank + 1)).to(dtype).reshape(shape)


def equal(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape and torch.equal(got, want), (me, got, want)


everyone = range(n)
exact = [torch.float32, torch.float64, torch.int32, torch.int64, torch.int8, torch.uint8, torch.float16]
dtypes = [*exact, torch.bfloat16]

# --- reductions -----------------------------------------------------------------------------------------
for dtype in dtypes:
    for shape in ((), (5,), (2, 3), (0,)):
        x = value(me, *shape, dtype=dtype)
        dist.all_reduce(x)
        equal(x, sum(value(r, *shape, dtype=dtype) for r in everyone))
for op, reduce in (
    (ReduceOp.MIN, torch.minimum),
    (ReduceOp.MAX, torch.maximum),
    (ReduceOp.PRODUCT, torch.mul),
):
    x = value(me, 3)
    dist.all_reduce(x, op)
    want = value(0, 3)
    for r in range(1, n):
        want = reduce(want, value(r, 3))
    equal(x, want)
for op, reduce in (
    (ReduceOp.BAND, torch.bitwise_and),
    (ReduceOp.BOR, torch.bitwise_or),
    (ReduceOp.BXOR, torch.bitwise_xor),
):
    x = value(me, 3, dtype=torch.int32)
    dist.all_reduce(x, op)
    want = value(0, 3, dtype=torch.int32)
    for r in range(1, n):
        want = reduce(want, value(r, 3, dtype=torch.int32))
    equal(x, want)
x = value(me, 4, 4).t()  # not contiguous
dist.all_reduce(x)
equal(x, sum(value(r, 4, 4) for r in everyone).t())
x = value(me, 8)
dist.all_reduce(x[::2])
equal(x[1::2], value(me, 8)[1::2])
equal(x[::2], sum(value(r, 8) for r in everyone)[::2])
x = value(me, 3)
dist.reduce(x, 2)
equal(x, sum(value(r, 3) for r in everyone)) if me == 2 else None
equal(x, value(me, 3)) if me != 2 else None
x = torch.tensor([me == 1, False, True])
dist.all_reduce(x)
equal(x, torch.tensor([True, False, True]))
x = value(me, 3)
dist.all_reduce(x, _make_nccl_premul_sum(0.5))
equal(x, sum(value(r, 3) * 0.5 for r in everyone))
x = value(me, 3, dtype=torch.float64)
dist.all_reduce(x, ReduceOp.AVG)
equal(x, sum(value(r, 3, dtype=torch.float64) for r in everyone) / n)
x = torch.complex(value(me, 2), -value(me, 2))
dist.all_reduce(x)
equal(x, sum(torch.complex(value(r, 2), -value(r, 2)) for r in everyone))

# --- one to all, all to one -----------------------------------------------------------------------------
for root in (0, 3):
    for dtype in dtypes:
        x = value(me, 2, 3, dtype=dtype)
        dist.broadcast(x, root)
        equal(x, value(root, 2, 3, dtype=dtype))
    parts = [torch.zeros(2) for _ in everyone] if me == root else None
    dist.gather(value(me, 2), parts, dst=root)
    for r in everyone if me == root else ():
        equal(parts[r], value(r, 2))
    x = torch.zeros(2)
    dist.scatter(x, [value(10 * me + r, 2) for r in everyone] if me == root else None, src=root)
    equal(x, value(10 * root + me, 2))
x = value(me, 4, 2)[:, 1]
dist.broadcast(x, 1)
equal(x, value(1, 4, 2)[:, 1])

# --- all to all -----------------------------------------------------------------------------------------
for dtype in dtypes:
    parts = [torch.zeros(2, 2, dtype=dtype) for _ in everyone]
    dist.all_gather(parts, value(me, 2, 2, dtype=dtype))
    for r in everyone:
        equal(parts[r], value(r, 2, 2, dtype=dtype))
parts = [torch.zeros(r) for r in everyone]
dist.all_gather(parts, value(me, me))
for r in everyone:
    equal(parts[r], value(r, r))
x = torch.zeros(n * 3)
dist.all_gather_single(x, value(me, 3))
equal(x, torch.cat([value(r, 3) for r in everyone]))
x = torch.zeros(3)
dist.reduce_scatter_single(x, value(me, n * 3))
equal(x, sum(value(r, n * 3) for r in everyone)[3 * me : 3 * me + 3])
x = torch.zeros(3)
dist.reduce_scatter(x, [value(me + r, 3) for r in everyone])
equal(x, sum(value(r + me, 3) for r in everyone))
x = torch.zeros(me)
dist.reduce_scatter(x, [value(me, r) for r in everyone])
equal(x, sum(value(r, me) for r in everyone))
for dtype in (torch.float32, torch.bfloat16, torch.int64):
    x = torch.zeros(n, 2, dtype=dtype)
    dist.all_to_all_single(x, value(me, n, 2, dtype=dtype))
    equal(x, torch.stack([value(r, n, 2, dtype=dtype)[me] for r in everyone]))


def rows(source: int, target: int) -> int:
    """Rows one rank sends another: not as many as it gets from it."""
    return (2 * source + target + source * target) % 4


gives, takes = [rows(me, r) for r in everyone], [rows(r, me) for r in everyone]
assert gives != takes
x = torch.zeros(sum(takes), 2)
dist.all_to_all_single(x, value(me, sum(gives), 2), takes, gives)
start = [sum(rows(r, t) for t in range(me)) for r in everyone]
sent = [value(r, sum(rows(r, t) for t in everyone), 2) for r in everyone]
equal(x, torch.cat([sent[r][start[r] : start[r] + takes[r]] for r in everyone]))
outputs = [torch.zeros(takes[r]) for r in everyone]
dist.all_to_all(outputs, [value(10 * me + r, gives[r]) for r in everyone])
for r in everyone:
    equal(outputs[r], value(10 * r + me, takes[r]))

# --- coalesced ------------------------------------------------------------------------------------------
with dist._coalescing_manager():
    x, y = value(me, 3), value(me, 2, 2)
    dist.all_reduce(x)
    dist.all_reduce(y)
equal(x, sum(value(r, 3) for r in everyone))
equal(y, sum(value(r, 2, 2) for r in everyone))
with dist._coalescing_manager(async_ops=True) as pending:
    x, y = torch.zeros(n * 3), torch.zeros(n * 2, dtype=torch.int64)
    dist.all_gather_single(x, value(me, 3))
    dist.all_gather_single(y, value(me, 2, dtype=torch.int64))
pending.wait()
equal(x, torch.cat([value(r, 3) for r in everyone]))
equal(y, torch.cat([value(r, 2, dtype=torch.int64) for r in everyone]))
with dist._coalescing_manager():
    x, y = torch.zeros(3), torch.zeros(2)
    dist.reduce_scatter_single(x, value(me, n * 3))
    dist.reduce_scatter_single(y, value(me, n * 2))
equal(x, sum(value(r, n * 3) for r in everyone)[3 * me : 3 * me + 3])
equal(y, sum(value(r, n * 2) for r in everyone)[2 * me : 2 * me + 2])

# --- work handles ---------------------------------------------------------------------------------------
xs = [value(me + k, 3) for k in range(4)]
works = [dist.all_reduce(x, async_op=True) for x in xs]
for k in (2, 0, 3, 1):  # waited in another order
    assert works[k].wait()
    equal(xs[k], sum(value(r + k, 3) for r in everyone))
    assert works[k].is_completed()
x = value(me, 3)
work = dist.all_reduce(x, async_op=True)
while not work.is_completed():
    pass
doubled = work.get_future().then(lambda future: future.value()[0] * 2)
equal(doubled.wait(), 2 * sum(value(r, 3) for r in everyone))
x = torch.zeros(4, 2)[:, 0] + 0
work = dist.broadcast(x, 1, async_op=True)
del work  # nobody waits
dist.barrier()

# --- messages -------------------------------------------------------------------------------------------
left, right = (me - 1) % n, (me + 1) % n
for dtype in dtypes:
    x = torch.zeros(5, dtype=dtype)
    got, sent = dist.irecv(x, left, tag=7), dist.isend(value(me, 5, dtype=dtype), right, tag=7)
    sent.wait()
    got.wait()
    equal(x, value(left, 5, dtype=dtype))
if me == 0:
    dist.send(value(1, 4), 1, tag=1)
    dist.send(value(2, 4), 1, tag=2)
if me == 1:  # taken in the other order
    x = torch.zeros(8)[::2]
    dist.recv(x, 0, tag=2)
    equal(x, value(2, 4))
    dist.recv(x, 0, tag=1)
    equal(x, value(1, 4))
if me == 2:
    dist.send(torch.ones(1 << 18), 3)  # a long one: by rendezvous
if me == 3:
    x = torch.zeros(1 << 18)
    assert dist.recv(x) == 2 and x.min() == 1
x = torch.zeros(3)
pair = [dist.P2POp(dist.isend, value(me, 3), right), dist.P2POp(dist.irecv, x, left)]
for work in dist.batch_isend_irecv(pair):
    work.wait()
equal(x, value(left, 3))

# --- groups ---------------------------------------------------------------------------------------------
low, high = dist.new_group([0, 1, 2]), dist.new_group([1, 2, 3])  # overlapping, at once
odd = dist.new_group([3, 1])
pending = []
for group, members in ((low, (0, 1, 2)), (high, (1, 2, 3)), (odd, (1, 3))):
    if me in members:
        x = value(me, 2)
        pending.append((dist.all_reduce(x, group=group, async_op=True), x, members))
for work, x, members in pending:
    work.wait()
    equal(x, sum(value(r, 2) for r in members))
if me in (1, 3):
    assert dist.get_group_rank(odd, 3) == 1 and dist.get_process_group_ranks(odd) == [1, 3]
    x = value(me, 2)
    dist.broadcast(x, 3, group=odd)
    equal(x, value(3, 2))
    if me == 3:
        dist.send(x, 1, group=odd)
    else:
        assert dist.recv(x, group=odd) == 3
pairs = [[0, 1], [1, 2], [2, 3], [0, 3]]
made = {}
for k in range(4):
    ranks = pairs[(k + me) % 4]
    if me in ranks:
        made[tuple(ranks)] = dist.new_group(ranks, use_local_synchronization=True)
for ranks in pairs:
    if me in ranks:
        x = value(me, 2)
        dist.all_reduce(x, group=made[tuple(ranks)])
        equal(x, sum(value(r, 2) for r in ranks))
again = dist.new_group([0, 1, 2])  # the same ranks, another group
if me < 3:
    x, y = value(me, 2), value(me, 2)
    one, two = (
        dist.all_reduce(x, group=again, async_op=True),
        dist.all_reduce(y, group=low, async_op=True),
    )
    two.wait()
    one.wait()
    equal(x, y)
    dist.destroy_process_group(again)

# --- objects --------------------------------------------------------------------------------------------
thing = {"rank": me, "text": "x" * (100 * me)}
found = [None] * n
dist.all_gather_object(found, thing)
assert [f["rank"] for f in found] == list(everyone) and len(found[3]["text"]) == 300
things = [thing, me, [me]] if me == 1 else [None] * 3
dist.broadcast_object_list(things, 1)
assert things[1:] == [1, [1]] and things[0]["rank"] == 1
found = [None] * n if me == 2 else None
dist.gather_object(thing, found, 2)
assert me != 2 or [f["rank"] for f in found] == list(everyone)
found = [None]
dist.scatter_object_list(found, [{"to": r} for r in everyone] if me == 0 else None, 0)
assert found == [{"to": me}]

# --- functional collectives, from C++ -------------------------------------------------------------------
world = dist.group.WORLD
equal(funcol.all_reduce(value(me, 3), "sum", world) + 0, sum(value(r, 3) for r in everyone))
equal(funcol.all_gather_single(value(me, 2), 0, world) + 0, torch.cat([value(r, 2) for r in everyone]))
want = sum(value(r, n * 2) for r in everyone)[2 * me : 2 * me + 2]
equal(funcol.reduce_scatter_single(value(me, n * 2), "sum", 0, world) + 0, want)
want = torch.cat([value(r, n)[me : me + 1] for r in everyone])
equal(funcol.all_to_all_single(value(me, n), None, None, world) + 0, want)
equal(funcol.broadcast(value(me, 2), 2, world) + 0, value(2, 2))

dist.barrier()
dist.destroy_process_group()
dist.init_process_group(backend, timeout=timedelta(minutes=1))  # once more
x = value(me, 2)
dist.all_reduce(x)
equal(x, sum(value(r, 2) for r in everyone))
dist.destroy_process_group()
print(f"rank {me}: all as expected", flush=True)
