"""See `job`."""

import sys

from serving.published.job import main

main(*sys.argv[1:])
