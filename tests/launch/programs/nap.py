"""Start MPI and sleep long enough to be weighed."""

import time

from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
time.sleep(4)
