"""The rank program; see `memsem.faulty.rankmain`."""

import sys

from memsem.faulty.rankmain import main

main(sys.argv[1:])
