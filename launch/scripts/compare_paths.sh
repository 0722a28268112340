#!/bin/bash
# Run one program over both transports of memory windows (plain stores, and MPI's one-sided calls) and compare what it
# prints, virtual times included; then one workload over the three contracts: windows, verbs queues, MPI messages.
#   compare_paths.sh [program.py arguments…]      RANKS=16
set -euo pipefail
source "$(dirname "$0")/mpirun_options.sh"
ranks=${RANKS:-16}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
if [ $# = 0 ]; then
  cat >"$out/program.py" <<'PYTHON'
import numpy as np
import emulator
from memsem import Window

emulator.init()
me, n = emulator.rank(), emulator.num_ranks()
window = Window.create(1024, np.float64)
emulator.barrier()
window.put_signal((me + 1) % n, np.full(1024, me, np.float64), 0, signal=0, value=1)
window.signal_wait_until(0, "eq", 1)
print(f"rank {me} has the bytes of rank {int(window.local[0])} at {emulator.now_ps()} ps")
PYTHON
  set -- "$out/program.py"
fi
for transport in shared rma; do
  export SUPERPOD_CONFIG="{\"transport\": \"$transport\"}"
  mpirun "${options[@]}" -n "$ranks" superpod-rank "$@" | sort >"$out/$transport"
  echo "$transport: $(wc -l <"$out/$transport") lines, sha256 $(sha256sum <"$out/$transport" | cut -c1-16)"
done
diff "$out/shared" "$out/rma" && echo "both transports print the same"
superpod compare --op halo -n "$ranks" --sizes 4K,64K --repeat 2
