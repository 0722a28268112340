"""Data-parallel training of a small model: plain torch, nothing of the emulator but the backend's name.

superpod run -n 8 examples/torch_ddp.py
superpod run -n 8 examples/torch_ddp.py --backend gloo      # the same losses, over sockets
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="superpod")
parser.add_argument("--steps", type=int, default=5)
args = parser.parse_args()

dist.init_process_group(args.backend)
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)  # noqa: TID251 (an ordinary torch program: the same model everywhere)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).double()
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = torch.Generator().manual_seed(1 + rank)  # to each rank its own
x = torch.randn(8, 16, generator=data, dtype=torch.float64)
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
