"""The rank program: `python -m collectives.bench coll|ep SPECIFICATION OUT`."""

import sys

from collectives.bench import coll, ep

{"coll": coll.main, "ep": ep.main}[sys.argv[1]](*sys.argv[2:])
