"""Fully sharded training (FSDP2): a rank holds its part of every parameter and gathers a layer to run it.

superpod run -n 8 examples/torch_fsdp2.py
superpod run -n 8 examples/torch_fsdp2.py --backend gloo
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="superpod")
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

dist.init_process_group(args.backend)
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))
torch.manual_seed(0)  # noqa: TID251 (an ordinary torch program: the same model everywhere)
layers = [torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()) for _ in range(3)]
model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 1)).double()
for layer in layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.Generator().manual_seed(1 + rank)
x = torch.randn(8, 32, generator=data, dtype=torch.float64)
y = x[:, :4].sum(dim=1, keepdim=True)
for step in range(args.steps):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        print(f"step {step}: loss {mean.item() / size:.10f}", flush=True)
dist.destroy_process_group()
