"""Write my process id to DIR/<rank>, meet the others, then hold until DIR/go appears (`bad` rank: act
instead)."""

import os
import sys
import time

from mpi4py import MPI

directory = sys.argv[1]
comm = MPI.COMM_WORLD
window = MPI.Win.Allocate_shared(1 << 16, 1, comm=comm)
with open(os.path.join(directory, f"{comm.rank}.new"), "w") as f:
    f.write(str(os.getpid()))
comm.Barrier()
os.rename(os.path.join(directory, f"{comm.rank}.new"), os.path.join(directory, str(comm.rank)))
deadline = time.monotonic() + 60
while not os.path.exists(os.path.join(directory, "go")):
    if time.monotonic() > deadline:
        os._exit(77)
    time.sleep(0.05)
print(f"rank {comm.rank} goes on", flush=True)
if "nofinalize" in sys.argv:
    os._exit(0)
