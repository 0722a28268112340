#!/bin/bash
# The same with 384 dies: half a CloudMatrix384 pod, every rank a real process. Needs about 5 GB of memory.
set -euo pipefail
RANKS=${RANKS:-384} REQUESTS=${REQUESTS:-64} exec "$(dirname "$0")/serve_32.sh" "$@"
