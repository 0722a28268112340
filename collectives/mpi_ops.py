"""Operations of MPI's reductions, and numbers of MPI's datatypes as NumPy has them.

SUM to BXOR are those of `collectives.coll`, added up in the order of ranks. LAND, LOR, LXOR and an operation
of the program's own are applied by each rank that needs the result, to the vectors of all, in the same order.
Left out: MAXLOC and MINLOC (pair types), REPLACE and NO_OP (of windows).

Source: MPI 4.1, section 6.9; names and arguments as mpi4py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from collectives.mpi_specs import DTYPES
from collectives.reduction import checked_op, fold
from memsem.bufspec import Buffer
from memsem.datatypes import Datatype
from memsem.mpi_errors import ERR_TYPE, failure

Array = npt.NDArray[Any]
Function = Callable[[memoryview, memoryview, Datatype], Any]
"""f(invec, inoutvec, datatype): inoutvec = invec op inoutvec."""


class Op:
    """An operation.

    Attributes:
        native: its name in `collectives.coll`, "" for none.
        is_commutative: whether a op b is b op a. is_predefined: one of MPI's.
    """

    def __init__(
        self,
        name: str,
        scalar: Callable[[Any, Any], Any],
        native: str = "",
        ufunc: Any = None,
        function: Function | None = None,
        commute: bool = True,
    ) -> None:
        self.name, self.native, self.is_commutative = name, native, commute
        self._scalar, self._ufunc, self._function = scalar, ufunc, function
        self.is_predefined = function is None

    @classmethod
    def Create(cls, function: Function, commute: bool = False) -> Op:
        """Return the operation of a function of the program's own."""
        return cls("", _no_objects, function=function, commute=commute)

    def Free(self) -> None:
        """Nothing: operations hold nothing."""

    def Is_commutative(self) -> bool:
        """Return whether the order of its two sides does not matter."""
        return self.is_commutative

    def Is_predefined(self) -> bool:
        """Return whether it is one of MPI's."""
        return self.is_predefined

    def __call__(self, a: Any, b: Any) -> Any:
        return self._scalar(a, b)

    def __repr__(self) -> str:
        return f"<Op {self.name or 'of the program'}>"

    def fold(self, rows: Array, datatype: Datatype, dtype: str) -> Array:
        """Reduce [k, m] over the first axis in order; k at least 1. dtype: as `collectives.coll` names it."""
        if self.native:
            checked_op(self.native, dtype, self.name)
            return fold(rows, self.native, dtype)
        if len(rows) == 1:  # a logical operation leaves a single vector as it is
            return np.array(rows[0])
        if self._ufunc is not None:
            truth = self._ufunc.reduce(rows.astype(np.bool_), axis=0)
            return np.asarray(truth, rows.dtype)
        total: Any = rows[-1].copy()
        assert self._function is not None
        for row in rows[-2::-1]:
            given: Any = np.ascontiguousarray(row)
            self._function(memoryview(given).cast("B"), memoryview(total).cast("B"), datatype)
        return np.asarray(total)


def _no_objects(a: Any, b: Any) -> Any:
    raise TypeError("an operation made by Op.Create works on buffers, not on objects")


SUM = Op("SUM", lambda a, b: a + b, "sum")
PROD = Op("PROD", lambda a, b: a * b, "prod")
MAX = Op("MAX", lambda a, b: b if b > a else a, "max")
MIN = Op("MIN", lambda a, b: b if b < a else a, "min")
BAND = Op("BAND", lambda a, b: a & b, "band")
BOR = Op("BOR", lambda a, b: a | b, "bor")
BXOR = Op("BXOR", lambda a, b: a ^ b, "bxor")
LAND = Op("LAND", lambda a, b: bool(a) and bool(b), ufunc=np.logical_and)
LOR = Op("LOR", lambda a, b: bool(a) or bool(b), ufunc=np.logical_or)
LXOR = Op("LXOR", lambda a, b: bool(a) ^ bool(b), ufunc=np.logical_xor)


def elements(buffer: Buffer, call: str) -> tuple[Array, str]:
    """The numbers of a buffer, a view, and the name of their type in `collectives.coll`.

    Raises:
        Exception: ERR_TYPE, a derived datatype or one without numbers.
    """
    kind = DTYPES.get(buffer.datatype.name)
    if kind is None:
        text = f"{call}: {buffer.datatype!r} has no operations; a basic type of numbers is needed"
        raise failure(ERR_TYPE, text, value=buffer.datatype.name)
    raw = buffer.memory[buffer.offset : buffer.offset + buffer.nbytes]
    name = "bfloat16" if buffer.datatype.name == "MPI_BFLOAT16_T" else kind.name
    return raw.view(kind), name


def fold_objects(op: Op, things: Sequence[Any]) -> Any:
    """Reduce objects in order."""
    total = things[0]
    for thing in things[1:]:
        total = op(total, thing)
    return total
