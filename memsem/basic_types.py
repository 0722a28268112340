"""The basic MPI datatypes by name, and which of them the codes of buffers and of numpy mean.

Left out: the pair types of reductions (`DOUBLE_INT` and its like).
Source: MPI 4.1, section 3.2.2, with the sizes of x86-64; codes as mpi4py maps them.
"""

from __future__ import annotations

import numpy as np

from memsem.datatypes import Datatype


def _basic(name: str, nbytes: int) -> Datatype:
    return Datatype(np.array([[0, nbytes]], np.int64), 0, nbytes, np.array([nbytes], np.int64), name)


_SIZES = {
    1: "BYTE PACKED CHAR SIGNED_CHAR UNSIGNED_CHAR C_BOOL CXX_BOOL INT8_T UINT8_T CHARACTER INTEGER1",
    2: "SHORT UNSIGNED_SHORT INT16_T UINT16_T INTEGER2 FLOAT16_T BFLOAT16_T",
    4: "INT UNSIGNED INT32_T UINT32_T FLOAT WCHAR INTEGER REAL LOGICAL INTEGER4 REAL4",
    8: "LONG UNSIGNED_LONG LONG_LONG UNSIGNED_LONG_LONG INT64_T UINT64_T DOUBLE AINT COUNT OFFSET"
    " C_FLOAT_COMPLEX CXX_FLOAT_COMPLEX DOUBLE_PRECISION COMPLEX INTEGER8 REAL8 COMPLEX8",
    16: "LONG_DOUBLE C_DOUBLE_COMPLEX CXX_DOUBLE_COMPLEX DOUBLE_COMPLEX COMPLEX16",
    32: "C_LONG_DOUBLE_COMPLEX CXX_LONG_DOUBLE_COMPLEX",
}
BASIC: dict[str, Datatype] = {
    name: _basic(f"MPI_{name}", nbytes) for nbytes, names in _SIZES.items() for name in names.split()
}
"""Basic types by their MPI name without the prefix; `memsem.mpi` has each as an attribute."""
_ALIASES = {
    "C_COMPLEX": "C_FLOAT_COMPLEX",
    "SIGNED_SHORT": "SHORT",
    "SIGNED_INT": "INT",
    "SIGNED_LONG": "LONG",
    "SIGNED_LONG_LONG": "LONG_LONG",
    "UNSIGNED_INT": "UNSIGNED",
}
BASIC |= {alias: BASIC[name] for alias, name in _ALIASES.items()}
BYTE, INT, DOUBLE = BASIC["BYTE"], BASIC["INT"], BASIC["DOUBLE"]

TYPE_CODES: dict[str, Datatype] = {
    code: BASIC[name]
    for code, name in {
        "?": "C_BOOL", "b": "SIGNED_CHAR", "h": "SHORT", "i": "INT", "l": "LONG", "q": "LONG_LONG",
        "B": "UNSIGNED_CHAR", "H": "UNSIGNED_SHORT", "I": "UNSIGNED", "L": "UNSIGNED_LONG",
        "Q": "UNSIGNED_LONG_LONG", "e": "FLOAT16_T", "f": "FLOAT", "d": "DOUBLE", "g": "LONG_DOUBLE",
        "Zf": "C_FLOAT_COMPLEX", "F": "C_FLOAT_COMPLEX", "Zd": "C_DOUBLE_COMPLEX", "D": "C_DOUBLE_COMPLEX",
        "Zg": "C_LONG_DOUBLE_COMPLEX", "G": "C_LONG_DOUBLE_COMPLEX", "b1": "C_BOOL",
        "i1": "INT8_T", "i2": "INT16_T", "i4": "INT32_T", "i8": "INT64_T",
        "u1": "UINT8_T", "u2": "UINT16_T", "u4": "UINT32_T", "u8": "UINT64_T",
        "f2": "FLOAT16_T", "f4": "FLOAT", "f8": "DOUBLE", "f16": "LONG_DOUBLE",
        "c8": "C_FLOAT_COMPLEX", "c16": "C_DOUBLE_COMPLEX", "c32": "C_LONG_DOUBLE_COMPLEX",
        "n": "AINT", "p": "AINT", "c": "CHAR", "a": "CHAR", "S": "CHAR", "S1": "CHAR", "s": "CHAR",
        "1s": "CHAR", "U": "WCHAR", "U1": "WCHAR", "u": "WCHAR", "w": "WCHAR", "1w": "WCHAR",
        "M": "INT64_T", "M8": "INT64_T", "m": "INT64_T", "m8": "INT64_T",
    }.items()
}  # fmt: skip
"""Datatypes by the codes of buffers and of numpy, as mpi4py maps them."""
