"""A token goes round, then everybody swaps halos: plain mpi4py point-to-point code (run it on 2 to 16 ranks).

Under real MPI change the import to `from mpi4py import MPI`: the output is the same.
"""

import numpy as np

from memsem import mpi as MPI

comm = MPI.COMM_WORLD
me, n = comm.Get_rank(), comm.Get_size()
left, right = (me - 1) % n, (me + 1) % n

if me == 0:
    comm.send(["rank 0"], dest=right, tag=1)
    print("token:", comm.recv(source=left, tag=1), flush=True)
else:
    comm.send([*comm.recv(source=left, tag=1), f"rank {me}"], dest=right, tag=1)

halo = np.zeros(2 + 4096)  # 32 KB inside, one element of each neighbour outside
halo[1:-1] = me
requests = [comm.Irecv([halo, (1, 0)], left), comm.Irecv([halo, (1, 4097)], right)]
requests += [comm.Isend([halo, (1, 4096)], right), comm.Isend([halo, (1, 1)], left)]
MPI.Request.Waitall(requests)
status = MPI.Status()
comm.Sendrecv(halo[1:-1], right, 7, halo[1:-1].copy(), left, 7, status)
print(
    f"rank {me}: {halo[0]:.0f} | {me} | {halo[-1]:.0f}, then {status.Get_count(MPI.DOUBLE)} doubles",
    flush=True,
)
