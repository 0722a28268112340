"""What stands on torch.distributed, as people use it: one line a case and rank, the same under every backend.

above.py superpod | gloo. A line is the case, the rank, and numbers rounded to six digits.
"""

import sys
import tempfile
import warnings
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("ignore")
backend = sys.argv[1]
dist.init_process_group(backend, timeout=timedelta(seconds=40))
me, n = dist.get_rank(), dist.get_world_size()


def numbers(thing):
    if isinstance(thing, torch.Tensor):
        return [f"{x:.6g}" for x in thing.detach().double().reshape(-1).tolist()[:12]]
    if isinstance(thing, (list, tuple)):
        return [numbers(one) for one in thing]
    return thing if not isinstance(thing, float) else f"{thing:.6g}"


def case(name):
    def run(call):
        print(name, file=sys.stderr, flush=True)
        try:
            text = str(numbers(call())).replace("'", "").replace(" ", "")
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
        print(f"{name} | {me} | {text}", flush=True)

    return run


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def batch(step=0, rows=4):
    g = torch.Generator().manual_seed(100 * step + me)
    return torch.randn(rows, 6, generator=g), torch.randn(rows, 3, generator=g)


def train(model, steps=2, optimizer=None, each=lambda step: nullcontext()):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad()
        with each(step):
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
        optimizer.step()
    return next(model.parameters())


@case("ddp plain")
def _():
    return train(DistributedDataParallel(net(me)))  # other weights: rank 0's are taken


@case("ddp bucket view, static graph")
def _():
    return train(DistributedDataParallel(net(), gradient_as_bucket_view=True, static_graph=True))


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen += 1
        return self.a(x) if me % 2 else self.a(x) + self.b(x)


@case("ddp unused parameters and buffers")
def _():
    model = DistributedDataParallel(Branch(), find_unused_parameters=True)
    return [train(model), model.module.seen]


@case("ddp no_sync")
def _():
    model = DistributedDataParallel(net())
    return train(model, 4, each=lambda step: model.no_sync() if step % 2 == 0 else nullcontext())


@case("ddp hook bf16")
def _():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    model = DistributedDataParallel(net())
    model.register_comm_hook(None, bf16_compress_hook)
    return train(model)


@case("ddp hook fp16")
def _():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = DistributedDataParallel(net())
    model.register_comm_hook(dist.group.WORLD, fp16_compress_hook)
    return train(model)


@case("ddp hook allreduce")
def _():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    model = DistributedDataParallel(net(), bucket_cap_mb=0.0001)
    model.register_comm_hook(dist.group.WORLD, allreduce_hook)
    return train(model)


@case("ddp hook powersgd")
def _():
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    model = DistributedDataParallel(net())
    model.register_comm_hook(PowerSGDState(dist.group.WORLD, 1, start_powerSGD_iter=2), powerSGD_hook)
    return train(model, 4)


@case("ddp sub-group")
def _():
    group = dist.new_group([0, n - 1])
    if me not in (0, n - 1):
        return None
    return train(DistributedDataParallel(net(), process_group=group))


@case("ddp join uneven")
def _():
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Join([model]):
        for step in range(1 + me % 2):
            x, y = batch(step)
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
    return next(model.parameters())


@case("zero redundancy")
def _():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    first = train(model, 3, optimizer)
    optimizer.consolidate_state_dict(0)
    return [first, len(optimizer.state_dict()["state"]) if me == 0 else 0]


@case("post local sgd")
def _():
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    model = net(me)
    averager = PeriodicModelAverager(period=2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        x, y = batch(step)
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    return next(model.parameters())


@case("fsdp2")
def _():
    from torch.distributed.fsdp import fully_shard

    model = net()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    train(model, 3)
    return model[0].weight.full_tensor()


@case("fsdp2 mixed precision, no reshard")
def _():
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = net()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mp_policy=policy, reshard_after_forward=False)
    train(model, 2)
    return model[0].weight.full_tensor()


@case("fsdp2 hybrid and clip")
def _():
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("replica", "shard"))
    model = net()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(2):
        x, y = batch(step)
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return [model[0].weight.full_tensor(), norm.full_tensor()]


@case("fsdp1")
def _():
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    train(model, 2)
    with FullyShardedDataParallel.summon_full_params(model):
        return [p.clone() for p in model.parameters()][0]


@case("tensor parallel")
def _():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (n,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4 * n), nn.ReLU(), nn.Linear(4 * n, 3))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.manual_seed(1)
    x = torch.randn(5, 6)
    out = model(x)
    out.sum().backward()
    return [out, model[0].weight.grad.full_tensor()]


@case("sequence parallel")
def _():
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (n,))
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 2 * n), nn.Linear(2 * n, 3))
    plan = {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "2": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
    }
    parallelize_module(model, mesh, plan)
    torch.manual_seed(1)
    out = model(torch.randn(2 * n, 6)).full_tensor()
    out.sum().backward()
    return out


@case("dtensor redistribute")
def _():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (n,))
    torch.manual_seed(0)
    whole = torch.randn(3 * n + 1, 2 * n + 1)
    out = []
    for first in (Shard(0), Shard(1), Replicate()):
        for second in (Shard(0), Shard(1), Replicate()):
            out.append(distribute_tensor(whole, mesh, [first]).redistribute(mesh, [second]).to_local().sum())
    part = DTensor.from_local(whole * (me + 1), mesh, [Partial()])
    for second in (Shard(0), Shard(1), Replicate()):
        out.append(part.redistribute(mesh, [second]).to_local().sum())
    for op in ("avg", "max", "min"):
        out.append(DTensor.from_local(whole * (me + 1), mesh, [Partial(op)]).full_tensor().sum())
    return out


@case("dtensor two-dimensional mesh")
def _():
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("a", "b"))
    torch.manual_seed(0)
    x, w = torch.randn(8, 6), torch.randn(6, 4)
    a = distribute_tensor(x, mesh, [Shard(0), Shard(1)])
    b = distribute_tensor(w, mesh, [Replicate(), Shard(0)])
    c = (a @ b).redistribute(mesh, [Replicate(), Replicate()])
    return [c.to_local() - x @ w < 1e-5, mesh["b"].size(), mesh.get_coordinate(), mesh["a"].mesh.tolist()]


@case("mesh slices and flatten")
def _():
    mesh = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("dp", "tp"))
    x = torch.tensor([me + 1.0])
    dist.all_reduce(x, group=mesh["tp"].get_group())
    y = torch.tensor([me + 1.0])
    dist.all_reduce(y, group=mesh["dp", "tp"]._flatten("all").get_group())
    return [x, y, mesh["dp"].get_local_rank()]


@case("nn.functional with gradients")
def _():
    import torch.distributed.nn.functional as F

    x = (torch.arange(n * 2).float() + me).requires_grad_()
    out = F.all_reduce(x * 2)
    gathered = torch.stack(F.all_gather(x))
    moved = F.all_to_all_single(torch.empty(n * 2), x)
    cast = F.broadcast(x * 3, 1)
    scattered = F.reduce_scatter(torch.empty(2), list((x * 5).chunk(n)))
    (out.sum() + (gathered**2).sum() + (moved * 7).sum() + cast.sum() + scattered.sum()).backward()
    return [out, moved, cast, scattered, x.grad]


@case("functional collectives traced by compile-free autograd")
def _():
    import torch.distributed._functional_collectives as funcol

    g = dist.group.WORLD
    x = torch.arange(2 * n).float() + me
    sizes = [(me + r) % 3 for r in range(n)]
    rows = torch.arange(float(sum(sizes))) + 10 * me
    return [
        funcol.all_reduce(x, "max", g) + 0,
        funcol.all_reduce(x, "avg", g) + 0,
        funcol.all_gather_tensor(x.reshape(2, n), 1, g) + 0,
        funcol.reduce_scatter_tensor(x.reshape(2, n), "sum", 1, g) + 0,
        funcol.all_to_all_single(rows, [(me + r) % 3 for r in range(n)], sizes, g) + 0,
        [t + 0 for t in funcol.all_reduce_coalesced([x, x * 2], "sum", g)],
        [t + 0 for t in funcol.all_gather_into_tensor_coalesced([x, x * 2], g)],
        funcol.permute_tensor(x, [(r + 1) % n for r in range(n)], g) + 0,
    ]


@case("checkpoint")
def _():
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor

    box = [tempfile.mkdtemp() if me == 0 else None]
    dist.broadcast_object_list(box, 0)
    mesh = init_device_mesh("cpu", (n,))
    whole = torch.arange(4.0 * n + 2)
    state = {"x": distribute_tensor(whole, mesh, [Shard(0)]), "step": 7}
    dcp.save(state, checkpoint_id=box[0])
    again = {"x": distribute_tensor(torch.zeros(4 * n + 2), mesh, [Shard(0)]), "step": 0}
    dcp.load(again, checkpoint_id=box[0])
    return [again["x"].full_tensor(), again["step"]]


@case("pipeline")
def _():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(me)
    stage = PipelineStage(nn.Linear(6, 6), me, n, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda y, t: ((y - t) ** 2).mean())
    torch.manual_seed(9)
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    losses = []
    if me == 0:
        schedule.step(x)
    elif me == n - 1:
        schedule.step(target=y, losses=losses)
    else:
        schedule.step()
    return [next(stage.submod.parameters()).grad, [one.detach() for one in losses]]


@case("pipeline 1f1b")
def _():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(me)
    stage = PipelineStage(nn.Linear(6, 6), me, n, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 2 * n, loss_fn=lambda y, t: ((y - t) ** 2).mean())
    torch.manual_seed(9)
    x, y = torch.randn(4 * n, 6), torch.randn(4 * n, 6)
    losses = []
    if me == 0:
        schedule.step(x)
    elif me == n - 1:
        schedule.step(target=y, losses=losses)
    else:
        schedule.step()
    return [next(stage.submod.parameters()).grad, [one.detach() for one in losses]]


@case("barrier with everything")
def _():
    work = dist.barrier(async_op=True)
    work.wait(timedelta(seconds=10))
    dist.barrier(group=dist.group.WORLD)
    return work.is_completed()


dist.barrier()
dist.destroy_process_group()
