"""Calls as users make them, at odd world sizes: what comes of each, as one line a rank, on either backend.

beside.py superpod | gloo. A line is the case, the rank, and a checksum of what came (dtype, shape, values).
Values are small whole numbers: sums are exact in any order. A call the backend has not ends in "none". The
test compares the lines of both backends.
"""

import sys
import zlib
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import init_device_mesh

backend = sys.argv[1]
dist.init_process_group(backend, timeout=timedelta(seconds=40))
me, n = dist.get_rank(), dist.get_world_size()
everyone = range(n)


def value(rank, *shape, dtype=torch.float32):
    size = int(torch.tensor(shape).prod()) if shape else 1
    return (torch.arange(size) % 11 + rank + 1).to(dtype).reshape(shape)


def digest(thing):
    if isinstance(thing, torch.Tensor):
        data = thing.detach().contiguous()
        if data.dtype == torch.bool:
            data = data.view(torch.uint8) != 0  # gloo adds the bytes up
        raw = data.reshape(-1).view(torch.uint8).numpy().tobytes() if data.numel() else b""
        return zlib.crc32(repr((data.dtype, tuple(data.shape))).encode() + raw)
    if isinstance(thing, (list, tuple)):
        return zlib.crc32(repr([digest(one) for one in thing]).encode())
    return zlib.crc32(repr(thing).encode())


def whole(call, x):
    """gloo writes strided tensors as if they had no gaps (pytorch/pytorch #192920)."""
    if backend != "gloo":
        return call(x)
    copy = x.contiguous()
    call(copy)
    return x.copy_(copy)


def case(name):
    def run(call):
        print(name, file=sys.stderr, flush=True)
        try:
            text = f"{digest(call()):08x}"
        except Exception as error:
            text = "none"
            if me == 0:
                print(f"{name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr, flush=True)
        print(f"{name} | {me} | {text}", flush=True)

    return run


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8, torch.float64)
SHAPES = ((), (1,), (0,), (7,), (3, 5), (2, 0, 3), (1 << 14,))
for dtype in DTYPES:
    for shape in SHAPES:
        for op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PRODUCT):
            if op == ReduceOp.PRODUCT and shape == (1 << 14,):
                continue

            @case(f"all_reduce {dtype} {shape} {op}")
            def _(dtype=dtype, shape=shape, op=op):
                x = value(me % 2, *shape, dtype=dtype)
                dist.all_reduce(x, op)
                return x


@case("all_reduce avg")
def _():
    x = value(me, 6, dtype=torch.float64) * n
    dist.all_reduce(x, ReduceOp.AVG)
    return x


for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):

    @case(f"all_reduce {op}")
    def _(op=op):
        x = value(me, 6, dtype=torch.int32)
        dist.all_reduce(x, op)
        return x


VIEWS = {
    "transposed": lambda x: x.t(),
    "column": lambda x: x[:, 1],
    "every other": lambda x: x[::2],
    "inner": lambda x: x[1:3, 1:3],
    "flipped rows": lambda x: x.unflatten(0, (2, 2)).transpose(0, 1),
    "channels last": lambda x: x.reshape(1, 2, 4, 3).contiguous(memory_format=torch.channels_last),
}
for name, view in VIEWS.items():

    @case(f"views {name}")
    def _(view=view):
        out = []
        for call in (
            dist.all_reduce,
            lambda x: dist.broadcast(x, n - 1),
            lambda x: dist.reduce(x, n // 2) if me == n // 2 else dist.reduce(x.clone(), n // 2),
        ):
            base = value(me, 4, 6)
            whole(call, view(base))
            out.append(base)
            strided = view(value(me, 4, 6))
            whole(call, strided)
            out.append(strided)
        return out

    @case(f"gathered views {name}")
    def _(view=view):
        x = view(value(me, 4, 6))
        parts = [torch.zeros(x.shape).transpose(0, -1).contiguous().transpose(0, -1) for _ in everyone]
        dist.all_gather(parts, x)
        rooted = [torch.zeros(x.shape) for _ in everyone] if me == 1 else None
        dist.gather(x.contiguous() if backend == "gloo" else x, rooted, dst=1)
        mine = torch.zeros(x.shape)
        given = [view(value(10 * me + r, 4, 6)) for r in everyone] if me == 1 else None
        if given and backend == "gloo":
            given = [x.contiguous() for x in given]
        dist.scatter(mine, given, src=1)
        return [parts, rooted, mine]


@case("message of a view")
def _():
    x, y = value(me, 5, 4)[:, 2], torch.zeros(5, 3)[:, 1]
    if backend == "gloo":
        y = y.contiguous()
    sent = dist.isend(x.contiguous(), (me + 1) % n, tag=3)
    dist.recv(y, (me - 1) % n, tag=3)
    sent.wait()
    return y


@case("uneven all_gather")
def _():
    parts = [torch.zeros(2, r) for r in everyone]
    dist.all_gather(parts, value(me, 2, me))
    return parts


for dtype in (torch.float32, torch.bfloat16, torch.int64):

    @case(f"into one tensor {dtype}")
    def _(dtype=dtype):
        out = torch.zeros(n * 3, 2, dtype=dtype)
        dist.all_gather_into_tensor(out, value(me, 3, 2, dtype=dtype))
        stacked = torch.zeros(n, 3, 2, dtype=dtype)
        dist.all_gather_into_tensor(stacked, value(me, 3, 2, dtype=dtype))
        return [out, stacked]

    @case(f"scattered sums {dtype}")
    def _(dtype=dtype):
        out = []
        for op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN):
            x = torch.zeros(3, 2, dtype=dtype)
            dist.reduce_scatter_tensor(x, value(me, n * 3, 2, dtype=dtype), op)
            out.append(x)
        return out

    @case(f"exchanged rows {dtype}")
    def _(dtype=dtype):
        def rows(source, target):
            return (source * 3 + target * target) % 4 if (source + target) % 3 else 0

        gives, takes = [rows(me, r) for r in everyone], [rows(r, me) for r in everyone]
        out = torch.zeros(sum(takes), 2, dtype=dtype)
        dist.all_to_all_single(out, value(me, sum(gives), 2, dtype=dtype), takes, gives)
        even = torch.zeros(2 * n, dtype=dtype)
        dist.all_to_all_single(even, value(me, 2 * n, dtype=dtype))
        empty = torch.zeros(0, 2, dtype=dtype)
        dist.all_to_all_single(empty, torch.zeros(0, 2, dtype=dtype), [0] * n, [0] * n)
        one = [n * (r == 0) for r in everyone]  # all to one
        kept = torch.zeros(n * n if me == 0 else 0, dtype=dtype)
        dist.all_to_all_single(kept, value(me, n, dtype=dtype), [n] * n if me == 0 else [0] * n, one)
        return [out, even, empty, kept]


@case("lists exchanged")
def _():
    outs = [torch.zeros(1 + (me + r) % 3) for r in everyone]
    dist.all_to_all(outs, [value(10 * me + r, 1 + (me + r) % 3) for r in everyone])
    return outs


@case("objects")
def _():
    thing = {"rank": me, "text": "ä" * (50 * me), "tensor": value(me, me)}
    every, lists, some = [None] * n, [thing, me] if me == n - 1 else [None, None], [None]
    dist.all_gather_object(every, thing)
    dist.broadcast_object_list(lists, n - 1)
    dist.scatter_object_list(some, [{"to": r} for r in everyone] if me == 1 else None, 1)
    rooted = [None] * n if me == 0 else None
    dist.gather_object(thing, rooted, 0)
    if me < 2:
        box = [thing, 5] if me == 0 else [None, None]
        (dist.send_object_list if me == 0 else dist.recv_object_list)(box, 1 - me)
        some += [box[0]["rank"], box[1]]
    flat = [[sorted(t), t["rank"], t["text"], t["tensor"]] for t in every]
    return [flat, lists[1:], some, rooted and [t["rank"] for t in rooted]]


@case("groups in another order")
def _():
    if backend == "gloo":
        raise NotImplementedError("not implemented: gloo waits for ever")
    lists = [list(range(k, n)) for k in range(n)] + [[0, n - 1], [n - 1, 1, 0]]
    made, out = {}, []
    for k in range(len(lists)):
        at = (k + me) % len(lists)
        if me in lists[at]:
            made[at] = dist.new_group(lists[at], use_local_synchronization=True)
    for at in sorted(made):
        x = value(me, 3)
        dist.all_reduce(x, group=made[at])
        y = [torch.zeros(3) for _ in lists[at]]
        dist.all_gather(y, value(me, 3), group=made[at])
        z = value(me, 3)
        dist.broadcast(z, group_src=0, group=made[at])
        out += [x, y, z, dist.get_rank(made[at]), dist.get_process_group_ranks(made[at])]
        dist.barrier(made[at])
    return out


@case("subgroups")
def _():
    mine, groups = dist.new_subgroups_by_enumeration([[0], list(range(1, n))])
    x = value(me, 2)
    dist.all_reduce(x, group=mine)
    single, _ = dist.new_subgroups(1)
    y = value(me, 2)
    dist.all_reduce(y, ReduceOp.MAX, group=single)
    whole, _ = dist.new_subgroups(n)
    z = value(me, 2)
    dist.reduce(z, group_dst=1, group=whole) if me == 1 else dist.reduce(z.clone(), group_dst=1, group=whole)
    return [x, y, z, len(groups)]


@case("messages")
def _():
    left, right = (me - 1) % n, (me + 1) % n
    x, y = torch.zeros(4), torch.zeros(0)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, x, left, tag=5),
            dist.P2POp(dist.isend, value(me, 4), right, tag=5),
            dist.P2POp(dist.isend, torch.zeros(0), left, tag=6),
            dist.P2POp(dist.irecv, y, right, tag=6),
        ]
    ):
        work.wait()
    out = [x, y]
    if me == 0:
        for r in range(1, n):
            z = torch.zeros(2)
            dist.recv(z, r, tag=r)
            out.append(z)
    else:
        dist.send(value(me, 2), 0, tag=me)
    return out


@case("coalesced")
def _():
    with dist._coalescing_manager(async_ops=True) as pending:
        x, y = value(me, 3), value(me, 0)
        dist.all_reduce(x)
        dist.all_reduce(y)
    pending.wait()
    return [x, y]


@case("works and time-outs")
def _():
    xs = [value(me + k, 2 + k) for k in range(5)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for k in (4, 0, 2, 1, 3):
        works[k].wait(timedelta(minutes=1))
    dist.barrier(async_op=True).wait()
    dist.barrier(device_ids=[0]) if backend == "superpod" else dist.barrier()
    return xs


@case("mesh")
def _():
    mesh = init_device_mesh("cpu", (1, n), mesh_dim_names=("a", "b"))
    x = value(me, 3)
    dist.all_reduce(x, group=mesh.get_group("b"))
    y = value(me, 3)
    dist.all_reduce(y, group=mesh["a"].get_group())
    return [x, y, mesh.get_local_rank("b"), mesh["a", "b"]._flatten().size()]


for dtype in (torch.bool, torch.complex64, torch.complex128, torch.int32, torch.uint8):
    for op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.BAND, ReduceOp.BOR):

        @case(f"odd reductions {dtype} {op}")
        def _(dtype=dtype, op=op):
            x = (torch.arange(5) % 2 + (me % 2)).to(dtype)
            dist.all_reduce(x, op)
            y = (torch.arange(5) % 3 - me).to(dtype)
            dist.reduce(y, n - 1, op)
            return [x, y if me == n - 1 else None]


for dtype in (torch.bool, torch.complex64, torch.int16, torch.int8, torch.float16, torch.float64):

    @case(f"moved {dtype}")
    def _(dtype=dtype):
        x = (torch.arange(6).reshape(2, 3) % 2 + me).to(dtype)
        b = x.clone()
        dist.broadcast(b, 1)
        parts = [torch.zeros(2, 3, dtype=dtype) for _ in everyone]
        dist.all_gather(parts, x)
        out = torch.zeros(2 * n, 3, dtype=dtype)
        dist.all_gather_into_tensor(out, x)
        rooted = [torch.zeros(2, 3, dtype=dtype) for _ in everyone] if me == 0 else None
        dist.gather(x, rooted, 0)
        mine = torch.zeros(2, 3, dtype=dtype)
        dist.scatter(
            mine,
            [x + r for r in everyone]
            if me == 0 and dtype != torch.bool
            else [x for _ in everyone]
            if me == 0
            else None,
            0,
        )
        back = torch.zeros(n, 3, dtype=dtype)
        dist.all_to_all_single(back, x[:1].repeat(n, 1))
        got = torch.zeros(2, 3, dtype=dtype)
        sent = dist.isend(x, (me + 1) % n)
        dist.recv(got, (me - 1) % n)
        sent.wait()
        return [b, parts, out, rooted, mine, back, got]


for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):

    @case(f"reduce to each root {op}")
    def _(op=op):
        out = []
        for root in everyone:
            x = value(me % 2, 2, 3)
            dist.reduce(x, root, op)
            out.append(x if me == root else None)
        return out

    @case(f"reduce_scatter lists {op}")
    def _(op=op):
        x, y = torch.zeros(3), torch.zeros(2, 2)
        dist.reduce_scatter(x, [value(me + r, 3) for r in everyone], op)
        dist.reduce_scatter_tensor(y, value(me, 2 * n, 2), op)
        stacked = torch.zeros(2, 2)
        dist.reduce_scatter_tensor(stacked, value(me, n, 2, 2), op)
        return [x, y, stacked]


@case("coalesced lists")
def _():
    xs = [value(me, 3), value(me, 2, 2)]
    dist.all_reduce_coalesced(xs)
    ins = [value(me, 2), value(me, 3)]
    outs = [[torch.zeros(2), torch.zeros(3)] for _ in everyone]
    dist.all_gather_coalesced(outs, ins)
    return [xs, outs]


@case("coalescing manager, several kinds")
def _():
    x, y = torch.zeros(n * 2), torch.zeros(n * 3)
    with dist._coalescing_manager(async_ops=True) as pending:
        dist.all_gather_into_tensor(x, value(me, 2))
        dist.all_gather_into_tensor(y, value(me, 3))
    pending.wait()
    a, b = torch.zeros(2), torch.zeros(1)
    with dist._coalescing_manager(async_ops=True) as pending:
        dist.reduce_scatter_tensor(a, value(me, 2 * n))
        dist.reduce_scatter_tensor(b, value(me, n))
    pending.wait()
    return [x, y, a, b]


@case("rooted in a sub-group")
def _():
    group = dist.new_group(list(range(1, n)))
    if me == 0:
        return None
    size, last = n - 1, n - 2
    parts = [torch.zeros(2) for _ in range(size)] if me == n - 1 else None
    dist.gather(value(me, 2), parts, group=group, group_dst=last)
    mine = torch.zeros(2)
    dist.scatter(mine, [value(r, 2) for r in range(size)] if me == 1 else None, group=group, group_src=0)
    x = value(me, 2)
    dist.broadcast(x, src=1, group=group)
    found = [None] * size
    dist.all_gather_object(found, me, group=group)
    box = [{"from": me}] if me == 1 else [None]
    dist.broadcast_object_list(box, src=1, group=group)
    collected = [None] * size if me == n - 1 else None
    dist.gather_object(me, collected, group=group, dst=n - 1)
    given = [None]
    dist.scatter_object_list(given, list(range(size)) if me == 1 else None, src=1, group=group)
    out = torch.zeros(size)
    dist.all_to_all_single(out, value(me, size), group=group)
    return [parts, mine, x, found, box, collected, given, out, dist.get_rank(group)]


@case("from anyone")
def _():
    if me == 0:
        got, froms = torch.zeros(n - 1), []
        for k in range(n - 1):
            x = torch.zeros(1)
            froms.append(dist.recv(x, tag=4))
            got[k] = x[0]
        return [sorted(froms), got.sort().values]
    dist.send(torch.tensor([me * 1.5]), 0, tag=4)
    return None


@case("not a member")
def _():
    group = dist.new_group([0])
    x = value(me, 2)
    work = dist.all_reduce(x, group=group)
    dist.barrier(group=group)
    return [x, work is None, dist.get_rank(group), dist.get_world_size(group)]


@case("many works of many sizes")
def _():
    xs = [value(me + k, (k * 37) % 700 + 1) for k in range(40)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    outs = [torch.zeros(n * ((k * 13) % 50 + 1)) for k in range(20)]
    works += [dist.all_gather_into_tensor(o, value(me, o.numel() // n), async_op=True) for o in outs]
    for work in reversed(works):
        work.wait()
    return [xs, outs, all(work.is_completed() for work in works)]


@case("batched messages both ways")
def _():
    ops, boxes = [], []
    for k in range(1, n):
        box = torch.zeros(k + 1)
        boxes.append(box)
        ops.append(dist.P2POp(dist.irecv, box, (me - k) % n, tag=k))
        ops.append(dist.P2POp(dist.isend, value(me + k, k + 1), (me + k) % n, tag=k))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return boxes


@case("long messages crosswise")
def _():
    x = torch.full((1 << 16,), float(me))
    got = torch.zeros(1 << 16)
    works = [dist.isend(x, (me + 1) % n), dist.irecv(got, (me - 1) % n)]
    for work in works:
        work.wait()
    return got


@case("uneven by thousands")
def _():
    gives = [(me * 7 + r * 3) % 11 * 500 for r in everyone]
    takes = [(r * 7 + me * 3) % 11 * 500 for r in everyone]
    out = torch.zeros(sum(takes), dtype=torch.bfloat16)
    dist.all_to_all_single(out, value(me, sum(gives), dtype=torch.bfloat16), takes, gives)
    return out


@case("queries")
def _():
    return [
        dist.is_initialized(),
        dist.get_world_size(),
        dist.get_process_group_ranks(dist.group.WORLD),
        dist.get_global_rank(dist.group.WORLD, n - 1),
        dist.get_node_local_rank(me),
        dist.is_torchelastic_launched(),
    ]


@case("new groups with time-outs, freed")
def _():
    out = []
    for k in range(6):
        group = dist.new_group(timeout=timedelta(seconds=20), group_desc=f"g{k}")
        x = value(me + k, 2)
        dist.all_reduce(x, group=group)
        out.append(x)
        dist.destroy_process_group(group)
    return out


@case("once more")
def _():
    if backend == "gloo":
        raise NotImplementedError("gloo waits for ever where a default group is made twice")
    dist.destroy_process_group()
    dist.init_process_group(backend, timeout=timedelta(minutes=2))
    x = value(me, 3)
    dist.all_reduce(x)
    group = dist.new_group([0, n - 1])
    if me in (0, n - 1):
        dist.all_reduce(x, group=group)
    return x


dist.destroy_process_group()
