# Options of mpirun that start hundreds of ranks on one host; the other scripts read this file.
# They are plain Open MPI: copy what you need.
PATH="$(dirname "$(command -v superpod)"):$PATH"   # the mpirun of the same environment
options=(
  --oversubscribe --bind-to none              # more ranks than cores
  --mca pml ob1 --mca btl self,sm --mca osc '^ucx'   # one host: shared memory, nothing probed
  -x SUPERPOD_CONFIG
)
[ "$(id -u)" = 0 ] && options+=(--allow-run-as-root)
export SUPERPOD_CONFIG=${SUPERPOD_CONFIG:-'{}'}
