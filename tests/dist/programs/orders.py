"""Two groups of the same ranks, first used in one order by some and in the other by the rest."""

import sys

import torch
import torch.distributed as dist

from collectives.agreement import CollectiveTimeoutError

dist.init_process_group("superpod")
me, n = dist.get_rank(), dist.get_world_size()
local = sys.argv[1] == "local"
groups = [dist.new_group(list(range(n)), use_local_synchronization=local) for _ in range(2)]
sums = [torch.full((4,), scale * (1 + me)) for scale in (1.0, 10.0)]
calls = [
    lambda x=x, group=group: dist.all_reduce(x, group=group, async_op=True)
    for x, group in zip(sums, groups, strict=True)
]
try:
    for work in [call() for call in (calls if me % 2 else calls[::-1])]:
        work.wait()
    print(f"rank {me}: {[x.unique().tolist() for x in sums]}")
except CollectiveTimeoutError as error:
    assert "in the making of group" in str(error), error
    print(f"rank {me}: told")
