"""The rank program; see `collectives.compare.rankmain`."""

import sys

from collectives.compare.rankmain import main

main(sys.argv[1:])
