"""`superpod run -n N -- -m serving JOB_DIR`: run one rank of the replay, or of the series of replays, in
JOB_DIR."""

import sys

import emulator
from serving.rank_main import serve
from serving.series import is_series, serve_series

if is_series(sys.argv[1]):
    serve_series(emulator.init(), sys.argv[1])
else:
    serve(sys.argv[1])
