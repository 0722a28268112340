"""A rank that dies in a collective: all others are told, and a new group of them goes on."""

import os
import signal

import torch
import torch.distributed as dist

import emulator
from emulator.errors import RankLostError

dist.init_process_group("superpod")
me, n = dist.get_rank(), dist.get_world_size()
living = [r for r in range(n) if r != 1]
x = torch.ones(3)
dist.all_reduce(x)
if me == 1:
    emulator.device().engine.flush()
    os.kill(os.getpid(), signal.SIGKILL)
for _ in range(2):  # the first waits for the dead rank; the group is over then
    try:
        dist.all_reduce(torch.ones(3), async_op=True).wait()
    except RankLostError as error:
        assert "[1]" in str(error), error
    else:
        raise AssertionError("nothing was raised")
group = dist.new_group(living, use_local_synchronization=True)
x = torch.full((3,), float(me))
dist.all_reduce(x, group=group)
assert x.tolist() == [float(sum(living))] * 3
found = [None] * len(living)
dist.all_gather_object(found, {"rank": me}, group=group)
assert [f["rank"] for f in found] == living
pair = dist.new_group([0, n - 1], use_local_synchronization=True) if me in (0, n - 1) else None
if pair is not None:
    dist.broadcast(x, n - 1, group=pair)
print(f"rank {me}: all as expected", flush=True)
