"""Half a round trip between the first rank and the last against size: eager up to 8 KB, then a rendezvous.

`superpod run --mpi-over ub|rdma|vpc` chooses the plane. Times are virtual, so every run prints the same.
"""

import numpy as np

from memsem import mpi as MPI

comm = MPI.COMM_WORLD
me, last = comm.Get_rank(), comm.Get_size() - 1
ROUNDS = 4

for size in [0, 8, 1024, 8192, 8193, 65536, 1 << 20]:
    data = np.full(size, me, np.uint8)
    comm.Barrier()
    start_s = MPI.Wtime()
    for _ in range(ROUNDS):
        if me == 0:
            comm.Send(data, last)
            comm.Recv(data, last)
        elif me == last:
            comm.Recv(data, 0)
            comm.Send(data, 0)
    if me == 0:
        half_us = (MPI.Wtime() - start_s) / (2 * ROUNDS) * 1e6
        print(f"{size:8} B {half_us:9.3f} us", flush=True)
