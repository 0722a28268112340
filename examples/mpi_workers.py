"""Rank 0 deals out tasks and takes answers from whoever has one (run it on 2 to 16 ranks).

Probe, wildcards, tags as kinds of messages, requests in flight. Under real MPI change the import to
`from mpi4py import MPI`: the output is the same.
"""

import numpy as np

from memsem import mpi as MPI

TASK, ANSWER, STOP = 1, 2, 3
comm, status = MPI.COMM_WORLD, MPI.Status()
workers = range(1, comm.Get_size())


def deal(tasks):
    """Send each task to a free worker; returns the answers by task."""
    answers, requests, free = {}, [], list(workers)
    waiting = list(tasks)
    while len(answers) < len(tasks):
        while free and waiting:
            numbers = np.arange(waiting.pop(0), dtype=np.float64)
            requests.append(comm.Isend(numbers, free.pop(0), TASK))
        comm.Probe(MPI.ANY_SOURCE, ANSWER, status)
        task, total = comm.recv(source=status.Get_source(), tag=ANSWER)
        answers[task] = total
        free.append(status.Get_source())
    MPI.Request.Waitall(requests)
    return answers


if comm.Get_rank() == 0:
    answers = deal([10, 5000, 3, 70000, 0, 41])
    for worker in workers:
        comm.Send([np.empty(0), 0, MPI.DOUBLE], worker, STOP)
    print(sorted(answers.items()), flush=True)
else:
    while comm.Probe(0, MPI.ANY_TAG, status) and status.Get_tag() == TASK:
        numbers = np.empty(status.Get_count(MPI.DOUBLE))
        comm.Recv(numbers, 0, TASK)
        comm.send((numbers.size, float(numbers.sum())), dest=0, tag=ANSWER)
    comm.Recv(np.empty(0), 0, STOP)
