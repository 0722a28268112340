"""Tensor parallelism on a DeviceMesh: a layer pair cut by columns and by rows, beside data parallelism.

superpod run -n 8 examples/torch_tp.py            # 4 groups of 2 that cut the layer
superpod run -n 8 examples/torch_tp.py --tp 4
"""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="superpod")
parser.add_argument("--tp", type=int, default=2)
args = parser.parse_args()

dist.init_process_group(args.backend)
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)  # noqa: TID251 (an ordinary torch program: the same model everywhere)
whole = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)).double()
x = torch.randn(
    4, 16, generator=torch.Generator().manual_seed(mesh["dp"].get_local_rank()), dtype=torch.float64
)
expected = whole(x).detach()
expected_loss = (whole(x) ** 2).mean()
expected_loss.backward()
expected_grad = whole[0].weight.grad.clone()
whole.zero_grad()

cut = parallelize_module(whole, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
out = cut(x)
(out**2).mean().backward()
assert torch.allclose(out, expected, rtol=1e-12, atol=1e-12)
assert torch.allclose(cut[0].weight.grad.full_tensor(), expected_grad, rtol=1e-12, atol=1e-14)
grad = cut[0].weight.grad.to_local()
dist.all_reduce(grad, group=mesh.get_group("dp"))  # data parallel, by hand
mean = (out.detach() ** 2).mean()
dist.all_reduce(mean)
if rank == 0:
    print(
        f"{dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))}: loss {mean.item() / size:.10f}",
        flush=True,
    )
dist.destroy_process_group()
