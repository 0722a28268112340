"""What libraries of expert parallelism cost beside the bytes: XCCL, CANN, DeepEP and their kin.

    library = load_library("cann")
    costs = charges(library, profile, "dispatch", ranks=256, hidden=7168, topk=8, dtype="int8", tokens=128)

`costs` is what `collectives.moe.ExpertExchange` and the schemes of expert parallelism are charged; the
fabric moves the bytes. Formulas are in `model`; a library's own numbers in the .toml files beside it, those
that all of a machine share in its profile.
"""

from collectives.libraries.library import LIBRARIES, Library, keys_of, load_library, shared_numbers
from collectives.libraries.model import DTYPES, OPERATIONS, EpCharges, charges, ready_ps, row_bytes

__all__ = [
    "DTYPES",
    "LIBRARIES",
    "OPERATIONS",
    "EpCharges",
    "Library",
    "charges",
    "keys_of",
    "load_library",
    "ready_ps",
    "row_bytes",
    "shared_numbers",
]
