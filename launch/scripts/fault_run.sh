#!/bin/bash
# Kill one rank in the middle of a run. By default that ends the job, as under any mpirun; with mpirun's --continuous (or
# superpod run --keep-going) the survivors go on.   RANKS=8 VICTIM=3
set -euo pipefail
source "$(dirname "$0")/mpirun_options.sh"
ranks=${RANKS:-8} victim=${VICTIM:-3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cat >"$place/program.py" <<'PYTHON'
import os, signal, sys, time
from mpi4py import MPI

comm, place, victim = MPI.COMM_WORLD, sys.argv[1], int(sys.argv[2])
comm.Barrier()
if comm.rank == victim:
    open(f"{place}/dead", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
while not os.path.exists(f"{place}/dead"):
    time.sleep(0.05)
time.sleep(1)
print(f"rank {comm.rank} goes on", flush=True)
PYTHON
for mode in "" --continuous; do
  rm -f "$place/dead"
  code=0
  mpirun "${options[@]}" $mode -n "$ranks" superpod-rank "$place/program.py" "$place" "$victim" \
    >"$place/out" 2>"$place/err" || code=$?
  echo "mpirun ${mode:-without --continuous}: exit code $code, $(grep -c 'goes on' "$place/out" || true) survivors of $ranks"
done
