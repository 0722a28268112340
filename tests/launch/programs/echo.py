"""Rank 0 upper-cases its standard input; every rank says what Python sees of its surroundings."""

import os
import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Barrier()
if comm.rank == 0:
    for _ in range(2):  # not to the end of file, which plain mpirun does not pass on
        print(sys.stdin.readline().upper(), end="")
    sys.stderr.write("err\x00or\n")
facts = {
    "argv": sys.argv,
    "name": __name__,
    "file": __file__,
    "path0": sys.path[0],
    "cwd": os.getcwd(),
    "umask": os.umask(0o22),
    "env": os.environ.get("PROBE"),
    "preload": os.environ.get("LD_PRELOAD"),
    "main": sys.modules["__main__"].__dict__ is globals(),
    "affinity": sorted(os.sched_getaffinity(0)),
    "encoding": (sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.name),
    "tty": [os.isatty(fd) for fd in range(3)],
    "threads": MPI.Query_thread(),
    "world": (comm.rank, comm.size),
}
for rank, lines in enumerate(comm.gather(facts) or []):
    for key, value in lines.items():
        print(rank, key, value)
