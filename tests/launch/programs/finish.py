"""End in the way named by the argument on rank 1, normally (or by waiting to be killed) elsewhere."""

import atexit
import os
import signal
import sys
import time

from mpi4py import MPI

how = sys.argv[1]
rank = MPI.COMM_WORLD.rank
atexit.register(lambda: print(f"atexit {rank}", flush=True))
print(f"begin {rank}", end="\n" if rank else " unflushed\n")
if rank == 1:
    if how == "code":
        sys.exit(3)
    if how == "text":
        sys.exit("a text as exit code")
    if how == "exception":
        raise ValueError("out of range")
    if how == "segv":
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "kill":
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "abort":
        MPI.COMM_WORLD.Abort(5)
    if how == "_exit":
        os._exit(4)
if how in ("exception", "segv", "kill", "abort", "_exit"):
    time.sleep(8)
