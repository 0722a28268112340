"""`superpod run -n N -- -m serving JOB_DIR`: run one rank of the replay whose files are in JOB_DIR."""

import sys

from serving.rank_main import serve

serve(sys.argv[1])
