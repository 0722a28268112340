"""Start MPI, meet all other ranks, end."""

from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
