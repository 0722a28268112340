# ruff: noqa: E501  (one row a case)
"""As `disagreement_cases`: XCCL point to point, the torch backend and the mpi4py face."""

from __future__ import annotations

from disagreement_cases import COLL, Case

from collectives.ep import SCHEMES

XCCL = """
import numpy as np, emulator
from collectives.xccl import Xccl
device = emulator.init()
n, me = device.num_ranks, device.rank
odd = me == 2
d = lambda k: np.arange(k).astype(np.uint8)
def both(e, size=64, mine=1, cores=2, takes=None, **k):
    if me == 2: return e.send(d(size), mine, 3, cores, **k)
    if me == 3: return e.receive(d(takes or size), 1, 2, 2)
"""
_PAIR, _ALL = (2, 3), (0, 1, 2, 3)
_XCCL: dict[str, tuple[str, tuple[str, ...], tuple[int, ...]]] = {
    "size": ("both(Xccl(device), takes=65)", ("rank 2", "64", "65"), _PAIR),
    "large size": ("both(Xccl(device), 1 << 20, takes=(1 << 20) - 1)", ("rank 2", "1048575"), _PAIR),
    "cores": ("both(Xccl(device), cores=3)", ("rank 2", "3"), _PAIR),
    "event": ("both(Xccl(device), mine=7)", ("event 7 to rank 3", "event 1 from rank 2"), _PAIR),
    "no receiver": ("e = Xccl(device)\n    if me != 3: both(e)", ("ranks 0-1, 3 ended",), (2,)),
    "no sender": ("e = Xccl(device)\n    if me != 2: both(e)", ("ranks 0-2 ended",), (3,)),
    "peer": ("e = Xccl(device); e.send(d(3), 1, 9) if odd else both(e)", ("rank 9 is none",), _PAIR),
    "buffer": ("e = Xccl(device); e.send(d(8)[::2], 1, 3) if odd else both(e)", ("not contiguous",), _PAIR),
    "made: slots": ("Xccl(device, slots=13 + odd)", ("rank 2 asks", "14 slots"), _ALL),
    "made: control": ("Xccl(device, control='transfer' if odd else 'chunk')", ("rank 2 asks", "transfer"), _ALL),
    "made: pairs": ("Xccl(device, pairs=[(2, 3), (0, 3)] if odd else [(2, 3), (1, 3)])", ("rank 2 asks", "0>3 2>3"), _ALL),
    "made: none": ("Xccl(device, slots=0 if odd else 13)", ("slots and chunk_bytes must be at least 1",), _ALL),
}  # fmt: skip
CASES = {f"xccl-{name}": Case(XCCL, body, who, words) for name, (body, words, who) in _XCCL.items()}
CASES |= {
    f"xccl-dead {who}": Case(
        XCCL,
        f"e = Xccl(device); both(e)\n    if me == {who}: die()\n    both(e)",
        (5 - who,),
        (f"{who}",),
        dead=True,
    )
    for who in _PAIR
}
CASES |= {
    "message-dtype": Case(
        COLL, "coll.send(world, f(4).astype(np.int32), 3) if odd else coll.recv(world, z(4), 2) if me == 3 else None",
        (3,), ("int32 came from rank 2", "float32"),
    ),
    "message-size": Case(
        COLL, "coll.send(world, f(5), 3) if odd else coll.recv(world, z(4), 2) if me == 3 else None",
        (3,), ("source=2", "20 bytes came, there is room for 16"),
    ),
}  # fmt: skip

TORCH = """
import numpy as np, torch, emulator
import torch.distributed as dist
dist.init_process_group("superpod")
device = emulator.device()
n, me = dist.get_world_size(), dist.get_rank()
odd = me == 2
f = lambda k: torch.arange(k, dtype=torch.float32)
"""
_TORCH = {
    "broadcast": ("dist.broadcast(f(4 + odd), 0)", "rank 2: 5"),
    "broadcast, dtype": ("dist.broadcast(f(4).int() if odd else f(4), 0)", "rank 2: int32"),
    "broadcast, root": ("dist.broadcast(f(4), 1 if odd else 0)", "rank 2: 1"),
    "all_reduce, op": ("dist.all_reduce(f(4), dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM)", "rank 2: max"),
    "all_gather": ("dist.all_gather([f(4 + odd) for _ in range(n)], f(4 + odd))", "rank 2: 5"),
    "all_gather_into_tensor": ("dist.all_gather_into_tensor(f(n * (4 + odd)), f(4 + odd))", "rank 2: 5"),
    "reduce_scatter": ("dist.reduce_scatter(f(4 + odd), [f(4 + odd) for _ in range(n)])", "rank 2: 5"),
    "reduce_scatter_tensor": ("dist.reduce_scatter_tensor(f(4 + odd), f(n * (4 + odd)))", "rank 2: 5"),
    "all_to_all_single": ("dist.all_to_all_single(f(n * (4 + odd)), f(n * (4 + odd)))", "rank 2: 5"),
    "all_to_all": ("dist.all_to_all([f(2 + odd) for _ in range(n)], [f(2) for _ in range(n)])", "to rank 2, which expects 3"),
    "gather": ("dist.gather(f(4 + odd), [f(4) for _ in range(n)] if me == 0 else None, 0)", "rank 2: 5"),
    "scatter": ("dist.scatter(f(4 + odd), [f(4) for _ in range(n)] if me == 0 else None, 0)", "rank 2: 5"),
    "reduce": ("dist.reduce(f(4 + odd), 0)", "rank 2: 5"),
    "order": ("dist.all_reduce(f(4)) if odd else dist.barrier()", "rank 2: all_reduce"),
    "objects": ("dist.broadcast_object_list([1], 0) if odd else dist.all_gather_object([None] * n, 1)", "rank 2: broadcast"),
    "works": ("[w.wait() for w in [dist.all_reduce(f(4 + odd), async_op=True), dist.all_reduce(f(5 - odd), async_op=True)]]", "rank 2: 5"),
}  # fmt: skip
CASES |= {f"torch-{name}": Case(TORCH, body, words=(text,)) for name, (body, text) in _TORCH.items()}
CASES["torch-absent"] = Case(
    TORCH, "None if odd else dist.all_reduce(f(4))", (0, 1, 3), ("rank 2 never entered",)
)
CASES["torch-dead"] = Case(
    TORCH, "dist.barrier()\n    if odd: die()\n    dist.all_reduce(f(4))", (0, 1, 3), ("[2]",), dead=True
)

MPI = """
import numpy as np, emulator
from collectives import mpi as MPI
comm = MPI.COMM_WORLD
device = emulator.device()
n, me = comm.size, comm.rank
odd = me == 2
f = lambda k, t='d': np.arange(k).astype(t)
z = lambda k, t='d': np.zeros(k, t)
"""
_MPI = {
    "Bcast": ("comm.Bcast(f(4 + odd), 0)", "rank 2: 5"),
    "Bcast, type": ("comm.Bcast(f(4, 'i8' if odd else 'd'), 0)", "rank 2: int64"),
    "Bcast, derived type": (
        "t = (MPI.LONG if odd else MPI.DOUBLE).Create_vector(2, 1, 2).Commit(); comm.Bcast([f(4, 'i8' if odd else 'd'), 1, t], 0)", "rank 2: int64"),
    "Bcast, root": ("comm.Bcast(f(4), 1 if odd else 0)", "rank 2: 1"),
    "Bcast, no root": ("comm.Bcast(f(4), 9 if odd else 0)", "rank 9"),
    "Allreduce": ("comm.Allreduce(f(4 + odd), z(4 + odd))", "rank 2: 5"),
    "Allreduce, type": ("t = 'f4' if odd else 'i4'; comm.Allreduce(f(4, t), z(4, t))", "rank 2: float32"),
    "Allreduce, op": ("comm.Allreduce(f(4), z(4), MPI.MAX if odd else MPI.SUM)", "rank 2: max"),
    "Allreduce, buffer": ("comm.Allreduce(f(4), z(3 if odd else 4))", "recv has 3 elements"),
    "Allgather": ("comm.Allgather(f(4 + odd), z(n * (4 + odd)))", "rank 2: 5"),
    "Allgather, type": ("t = 'i8' if odd else 'd'; comm.Allgather(f(4, t), z(n * 4, t))", "rank 2: int64"),
    "Allgatherv": ("comm.Allgatherv(f(4 + odd), [z(17), [4, 4, 4 + odd, 4]])", "list of counts"),
    "Alltoall": ("comm.Alltoall(f(n * (4 + odd)), z(n * (4 + odd)))", "rank 2: 5"),
    "Alltoallv": ("comm.Alltoallv([f(9), [2 + odd, 2, 2, 2]], [z(8), [2] * 4])", "rank 2 sends 3 elements to rank 0"),
    "Alltoallv, type": ("t = 'i8' if odd else 'd'; comm.Alltoallv([f(8, t), [2] * 4], [z(8, t), [2] * 4])", "rank 2: int64"),
    "Gather": ("comm.Gather(f(4 + odd), z(16) if me == 0 else None, 0)", "rank 2: 5"),
    "Gatherv": ("comm.Gatherv(f(4 + odd), [z(16), [4] * 4] if me == 0 else None, 0)", "rank 2 sends 5, the root has 4"),
    "Scatter": ("comm.Scatter(f(16) if me == 0 else None, z(4 + odd), 0)", "rank 2: 5"),
    "Scatterv": ("comm.Scatterv([f(16), [4] * 4] if me == 0 else None, z(4 + odd), 0)", "rank 2 expects 5, the root has 4"),
    "Reduce": ("comm.Reduce(f(4 + odd), z(4) if me == 0 else None)", "rank 2: 5"),
    "Reduce_scatter_block": ("comm.Reduce_scatter_block(f(n * (4 + odd)), z(4 + odd))", "rank 2: 5"),
    "Reduce_scatter": ("comm.Reduce_scatter(f(16 + odd), z(4 + odd), [4, 4, 4 + odd, 4])", "list of counts"),
    "Scan": ("comm.Scan(f(4 + odd), z(4 + odd))", "rank 2: 5"),
    "order": ("comm.Barrier() if odd else comm.Bcast(f(4), 0)", "rank 2: barrier"),
    "requests": ("MPI.Request.Waitall([comm.Ibarrier(), comm.Ibcast(f(4), 0)] if odd else [comm.Ibcast(f(4), 0), comm.Ibarrier()])", "rank 2: barrier"),
    "objects": ("comm.bcast('x', 0) if odd else comm.allgather('x')", "rank 2: broadcast"),
    "communicators": ("comm.Dup() if odd else comm.Split(0, 0)", "rank 2: Dup"),
}  # fmt: skip
CASES |= {f"mpi-{name}": Case(MPI, body, words=(text,)) for name, (body, text) in _MPI.items()}
CASES["mpi-absent"] = Case(
    MPI, "None if odd else comm.Allreduce(f(4), z(4))", (0, 1, 3), ("rank 2 never entered",)
)
CASES["mpi-communicator absent"] = Case(MPI, "None if odd else comm.Dup()", (0, 1, 3), ("rank 2 ended",))

EP = """
import numpy as np, emulator
from collectives.ep import Buffer, ExpertParallel
device = emulator.init()
n, me = device.num_ranks, device.rank
odd = me == 2
x, ids, w = np.ones((4, 128), np.float32), np.arange(8).reshape(4, 2) % (2 * n), np.ones((4, 2), np.float32)
def scheme(name):
    ep = ExpertParallel(device, 2 * n, 128, 4, 2, name)
    def both():
        h = ep.dispatch(x, ids)
        ep.combine(h, h.rows, w)
    return both
def normal():
    buffer = Buffer(device)
    def both():
        rows, *_, h, _ = buffer.dispatch(x, topk_idx=ids, topk_weights=w, num_experts=2 * n)
        buffer.combine(rows, h)
    return both
def low_latency():
    buffer = Buffer(device, low_latency_mode=True)
    def both():
        rows, _, h, *_ = buffer.low_latency_dispatch(x, ids, 4, 2 * n, use_fp8=False)
        buffer.low_latency_combine(rows, ids, w, h)
    return both
"""
_EP = [f"scheme({name!r})" for name in SCHEMES] + ["normal()", "low_latency()"]
CASES |= {
    f"{made}-{way}": Case(
        EP, f"both = {made}; both()\n    if odd: {call}\n    both()", (0, 1, 3), (word,), dead=way == "dead"
    )
    for made in _EP
    for way, call, word in (("dead", "die()", "[2]"), ("absent", "return", "rank 2: in no expert exchange"))
}
