"""What libraries of expert parallelism cost beside the bytes: XCCL, CANN, DeepEP and their kin.

    library = load_library("cann")
    costs = charges(library, profile, "dispatch", ranks=256, hidden=7168, topk=8, dtype="int8", tokens=128)

`costs` is what `collectives.moe.ExpertExchange` and the schemes of expert parallelism are charged; the
fabric moves the bytes. Formulas are in `model`, numbers in the .toml files beside it.
"""

from collectives.libraries.library import LIBRARIES, Library, Shared, load_library, load_shared
from collectives.libraries.model import DTYPES, OPERATIONS, EpCharges, charges, row_bytes

__all__ = [
    "DTYPES",
    "LIBRARIES",
    "OPERATIONS",
    "EpCharges",
    "Library",
    "Shared",
    "charges",
    "load_library",
    "load_shared",
    "row_bytes",
]
