"""Barriers through torch, quick ones and others: equal times, an equal log, time-outs that take effect."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import emulator
from collectives import coll
from collectives.agreement import CollectiveTimeoutError

MS = 10**9
times: list[int] = []
dist.init_process_group("superpod")
me, device, world = dist.get_rank(), emulator.device(), dist.group.WORLD
if sys.argv[1] == "slow":
    coll.meeting = lambda group, plan: lambda: -1


def after(busy_ps: int, **how) -> str:
    """A barrier to which rank 1 comes later; how it ended here."""
    if me == 1:
        device.compute(busy_ps)
    try:
        work = dist.barrier(**how)
        if how.get("async_op"):
            work.wait()
    except CollectiveTimeoutError as error:
        assert error.timeout_ps == how.get("timeout", timedelta(seconds=61)) // timedelta(milliseconds=1) * MS
        return "late"
    return "ended"


def seen(busy_ms: int, limit_ms: int | None = None, **how) -> None:
    if limit_ms is not None:
        how["timeout"] = timedelta(milliseconds=limit_ms)
    print(f"rank {me}: {busy_ms} {limit_ms or '-'} {after(busy_ms * MS, **how)}")
    times.append(device.now_ps)


seen(5, 2)  # the first call: no quick one yet
for _ in range(2):
    seen(0)
    seen(5)
seen(5, 2)
seen(5, 20)
seen(5, 2, async_op=True)
dist.all_reduce(torch.ones(3))
world.set_timeout(timedelta(seconds=61))
seen(61_100)
seen(100)
seen(61_100, 62_000)
world.set_timeout(timedelta(milliseconds=5))  # below a minute: ends at the instant
seen(4)
seen(4, 2)
world.set_timeout(timedelta(minutes=30))
seen(61_100)
chosen = " ".join(name for kind, _, name, _ in world.group.log if kind == "barrier")
chosen = " ".join(name for kind, _, name, _ in world.group.log if kind == "barrier")
print(f"rank {me} at {times}")
print(f"rank {me} is quick: {world.group.quick is not None}; {chosen}")
try:  # the group's own method takes a time-out too
    if me == 0:
        emulator.sleep_ps(5 * MS)
    world.barrier(timeout=timedelta(milliseconds=2)).wait()
    assert me == 0, "a time-out given by name has no effect"
except CollectiveTimeoutError as error:
    assert error.timeout_ps == 2 * MS
dist.destroy_process_group()
