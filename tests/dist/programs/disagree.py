"""What goes wrong shows on every rank, by name, and by its time-out in virtual time."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import emulator
from collectives.agreement import CollectiveMismatchError, CollectiveTimeoutError
from emulator.errors import DtypeError, SizeError, UsageError

dist.init_process_group("superpod")
me, n = dist.get_rank(), dist.get_world_size()


def refused(kind, words, call, *args, **more):
    try:
        call(*args, **more)
    except kind as error:
        assert all(word in str(error) for word in words), str(error)
    else:
        raise AssertionError(f"rank {me}: {words} not raised")


# found at the call, by the rank that makes it
refused(UsageError, ["sparse"], dist.all_reduce, torch.eye(2).to_sparse())
refused(UsageError, ["sparse"], dist.all_reduce, torch.eye(2).to_sparse_csr())
refused(SizeError, ["7 rows", "3 ranks"], dist.all_to_all_single, torch.zeros(7), torch.zeros(7))
refused(
    SizeError, ["[1, 1, 1]"], dist.all_to_all_single, torch.zeros(4), torch.zeros(4), [1, 1, 2], [1, 1, 1]
)
refused(UsageError, ["float8"], dist.all_reduce, torch.zeros(2).to(torch.float8_e4m3fn))
refused(UsageError, ["avg", "bool"], dist.all_reduce, torch.tensor([True]), dist.ReduceOp.AVG)

# a message of another length
if me == 0:
    dist.send(torch.zeros(3), 1)
if me == 1:
    refused(SizeError, ["12 bytes came from group rank 0"], dist.recv, torch.zeros(2), 0)

# a message of as many bytes and another dtype, eager and rendezvous; equal ones come through after it
for sent, got in ((torch.zeros(3), torch.int32), (torch.zeros(1 << 20).bfloat16(), torch.float16)):
    names = [str(got).removeprefix("torch."), f"{sent.dtype} came from group rank 0"]
    if me == 0:
        dist.send(sent, 1)
        dist.isend(sent.view(got), 1).wait()
    if me == 1:
        refused(DtypeError, names, dist.recv, torch.zeros(len(sent), dtype=got), 0)
        dist.irecv(torch.zeros(len(sent), dtype=got), 0).wait()

# a rank that does not come: the others end at their time-out, to the instant in virtual time
fresh, met = dist.new_group([0, 1, 2]), dist.new_group([0, 1, 2])
dist.barrier(met)
for group in (fresh, met):
    group.set_timeout(timedelta(milliseconds=5))
    start_ps = emulator.now_ps()
    if me == 2:
        emulator.sleep_ps(20_000_000_000)
    else:
        refused(
            CollectiveTimeoutError,
            ["took longer than 5000000000 ps", "2"],
            dist.all_reduce,
            torch.zeros(3),
            group=group,
        )
        took_ps = emulator.now_ps() - start_ps
        assert took_ps == 5_000_000_000 or (group is fresh and 0 <= took_ps - 5_000_000_000 < 1_000_000)
if me == 0:
    start_ps, work = emulator.now_ps(), dist.irecv(torch.zeros(2), 1, tag=9)
    refused(CollectiveTimeoutError, ["tag 9"], work.wait, timedelta(milliseconds=1))
    assert not work.is_success() and isinstance(work.exception(), CollectiveTimeoutError)
    assert 0 <= emulator.now_ps() - start_ps - 1_000_000_000 < 10_000_000

# ranks that disagree, after barriers in less code
for _ in range(3):
    dist.barrier()
if sys.argv[1] == "size":
    refused(CollectiveMismatchError, ["count"], dist.all_reduce, torch.zeros(3 + (me == 1)))
if sys.argv[1] == "dtype":
    x = torch.zeros(3, dtype=torch.bfloat16 if me == 1 else torch.float16)
    refused(CollectiveMismatchError, ["dtype", "bfloat16"], dist.all_reduce, x)
if sys.argv[1] == "order":
    call = dist.barrier if me == 1 else lambda: dist.all_reduce(torch.zeros(3))
    refused(CollectiveMismatchError, ["operation", "barrier"], call)
print(f"rank {me}: all as expected", flush=True)
