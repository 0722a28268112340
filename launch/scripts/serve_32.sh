#!/bin/bash
# Serve a small workload on 32 emulated NPU dies under a plain mpirun.
# RANKS, REQUESTS, TRACE (a Mooncake JSONL or Azure CSV file), TOKEN_SCALE and MAX_OUTPUT change it, JSON names a file for the
# result; arguments go to superpod replay. Ranks that cannot hold DeepSeek-R1 (16) need --no-memory-check.
set -euo pipefail
source "$(dirname "$0")/mpirun_options.sh"
ranks=${RANKS:-32}
job=$(mktemp -d)
trap 'rm -rf "$job"' EXIT

# 1. plan the run: which request arrives when, which expert lives where
superpod replay -n "$ranks" --requests "${REQUESTS:-32}" ${TRACE:+--trace "$TRACE"} \
  --token-scale "${TOKEN_SCALE:-64}" --max-output "${MAX_OUTPUT:-16}" --prepare "$job" "$@"

# 2. run it: one process per die
SUPERPOD_CONFIG=$(cat "$job/config.json") mpirun "${options[@]}" -n "$ranks" superpod-rank -m serving "$job"

# 3. what its users would have waited
superpod replay-report "$job" ${JSON:+--json "$JSON"}
