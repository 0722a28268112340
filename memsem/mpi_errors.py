"""What goes wrong in message passing, by the names and numbers MPI gives it.

`Exception` is caught as mpi4py's is (`except MPI.Exception as error: error.Get_error_class()`) and is a
`UsageError` of this project at the same time, so an uncaught one ends a rank with one line. Numbers are
those of Open MPI 5; the standard leaves them to the implementation.

Left out: error handlers. Every communicator raises, as mpi4py's do by default.
"""

from __future__ import annotations

import builtins
from typing import Any

from emulator.errors import UsageError

SUCCESS = 0
ERR_BUFFER = 1
ERR_COUNT = 2
ERR_TYPE = 3
ERR_TAG = 4
ERR_COMM = 5
ERR_RANK = 6
ERR_REQUEST = 7
ERR_GROUP = 9
ERR_DIMS = 12
ERR_ARG = 13
ERR_TRUNCATE = 15
ERR_OTHER = 16
ERR_IN_STATUS = 18
ERR_PENDING = 19

_TEXTS = {
    SUCCESS: "MPI_SUCCESS: no errors",
    ERR_BUFFER: "MPI_ERR_BUFFER: invalid buffer pointer",
    ERR_COUNT: "MPI_ERR_COUNT: invalid count argument",
    ERR_TYPE: "MPI_ERR_TYPE: invalid datatype",
    ERR_TAG: "MPI_ERR_TAG: invalid tag",
    ERR_COMM: "MPI_ERR_COMM: invalid communicator",
    ERR_RANK: "MPI_ERR_RANK: invalid rank",
    ERR_REQUEST: "MPI_ERR_REQUEST: invalid request",
    ERR_GROUP: "MPI_ERR_GROUP: invalid group",
    ERR_DIMS: "MPI_ERR_DIMS: invalid topology dimension",
    ERR_ARG: "MPI_ERR_ARG: invalid argument of some other kind",
    ERR_TRUNCATE: "MPI_ERR_TRUNCATE: message truncated",
    ERR_OTHER: "MPI_ERR_OTHER: known error not in list",
    ERR_IN_STATUS: "MPI_ERR_IN_STATUS: error code in status",
    ERR_PENDING: "MPI_ERR_PENDING: pending request",
}


class Exception(UsageError, RuntimeError):
    """An MPI error. Fields: `code`, and where they are known `rank`, `now_ps` and the offending `value`."""

    def __init__(self, error: int | str = SUCCESS, **fields: Any) -> None:
        if isinstance(error, int):
            fields = {"code": error, **fields}
        super().__init__(Get_error_string(error) if isinstance(error, int) else error, **fields)

    def Get_error_code(self) -> int:
        """Return the number of the error."""
        return int(self.fields.get("code", ERR_OTHER))

    def Get_error_class(self) -> int:
        """Return the class of the error: here every code is its own class."""
        return self.Get_error_code()

    def Get_error_string(self) -> str:
        """Return what MPI says about the error, without the details of this one."""
        return Get_error_string(self.Get_error_code())

    error_code = property(Get_error_code)
    error_class = property(Get_error_class)
    error_string = property(Get_error_string)

    def __int__(self) -> int:
        return self.Get_error_code()

    def __bool__(self) -> bool:
        return self.Get_error_code() != SUCCESS

    def __eq__(self, other: object) -> bool:
        return self.Get_error_code() == (int(other) if isinstance(other, int | Exception) else other)

    def __hash__(self) -> int:
        return hash(self.Get_error_code())


def Get_error_string(code: int) -> str:
    """Return the text of an error number. Raises Exception (ERR_ARG) for a number that is none."""
    if code not in _TEXTS:
        raise Exception(ERR_ARG, value=code)
    return _TEXTS[code]


def Get_error_class(code: int) -> int:
    """Return the class of an error number: itself. Raises Exception (ERR_ARG) for a number that is none."""
    Get_error_string(code)
    return code


def failure(code: int, detail: str, **fields: Any) -> builtins.Exception:
    """Return the error `code` with the facts of this case behind its text.

    Args:
        detail: what was asked for and what is right, naming the offending value.
        fields: `rank`, `now_ps`, `value` where they are known; the message ends with rank and time.
    """
    where = f" (rank {fields['rank']}, {fields['now_ps']} ps)" if {"rank", "now_ps"} <= fields.keys() else ""
    return Exception(f"{Get_error_string(code)}: {detail}{where}", code=code, **fields)
