"""Data-parallel training with several buckets, whose layers are charged for computing: losses, and how much
of the all-reduces the backward pass hides in emulated time. `overlap.py gloo`: the losses alone."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import emulator

backend = sys.argv[1]
dist.init_process_group(backend)
me, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
LAYERS, WIDTH, LAYER_PS = 6, 256, 30_000_000
ours = backend == "superpod"


class Charged(torch.autograd.Function):
    """Nothing but its time, in the backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if ours:
            emulator.compute(LAYER_PS)
        return grad


class Layer(torch.nn.Linear):
    def forward(self, x):
        return torch.tanh(super().forward(Charged.apply(x)))


plain = torch.nn.Sequential(*(Layer(WIDTH, WIDTH) for _ in range(LAYERS))).double()
model = DistributedDataParallel(plain, bucket_cap_mb=0.1, gradient_as_bucket_view=True)
hooked = []


def halved(state, bucket):
    """A hook of Python, with two futures behind each other."""
    hooked.append(bucket.index())
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0] / n).then(lambda future: future.value())


optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.Generator().manual_seed(1 + me)
x = torch.randn(4, WIDTH, generator=data, dtype=torch.float64, requires_grad=True)
took = []
for step in range(5):
    if step == 3:
        model.register_comm_hook(None, halved)
    loss = torch.nn.functional.mse_loss(model(x), x)
    optimizer.zero_grad()
    if ours:
        dist.barrier()
    start = emulator.now_ps() if ours else 0
    loss.backward()
    took.append(emulator.now_ps() - start if ours else 0)
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if me == 0:
        print(f"step {step}: loss {mean.item() / n:.10f}", flush=True)
assert hooked
if ours:
    flat = torch.cat([p.detach().reshape(-1) for p in plain.parameters()])
    every = [torch.zeros_like(flat) for _ in range(n)]
    dist.all_gather(every, flat)
    assert all(torch.equal(flat, other) for other in every)
    computing = LAYERS * LAYER_PS
    start = emulator.now_ps()
    for _ in plain:  # the same all-reduces, one after another
        dist.all_reduce(torch.zeros(WIDTH * WIDTH + WIDTH, dtype=torch.float64))
    talking = emulator.now_ps() - start
    # all but the last bucket's hides behind the layers that are computed meanwhile
    for step in (2, 4):
        assert computing < took[step] < computing + talking / LAYERS * 1.5, (took, computing, talking)
    assert talking > computing / 5, (computing, talking)
    if me == 0:
        print(
            f"computing {computing} ps, talking {talking} ps, backward {took} ps", file=sys.stderr, flush=True
        )
    # a future outside a backward pass: computing between call and wait hides it too
    y = torch.ones(WIDTH * WIDTH)
    start = emulator.now_ps()
    future = dist.all_reduce(y, async_op=True).get_future()
    emulator.compute(LAYER_PS)
    after = future.then(lambda done: done.value()[0].sum().item())
    both = torch.futures.collect_all([future, after])
    assert both.wait()[1].value() == n * WIDTH * WIDTH == after.wait() and future.done()
    assert LAYER_PS <= emulator.now_ps() - start < LAYER_PS + talking / LAYERS, emulator.now_ps() - start
    assert torch.futures.wait_all([dist.all_reduce(y, async_op=True).get_future()])[0][0] is y
dist.destroy_process_group()
