"""The rank program; see `memsem.bench.runner`."""

import sys

from memsem.bench.runner import main

main(sys.argv[1:])
