"""Buffer specifications: what an mpi4py program passes as a message, as bytes and a datatype.

    array | [array, count] | [array, type] | [array, (count, displ)] | [array, count, type] |
    [array, (count, displ), type] | [array, count, displ, type]

Without a type the array's own format says it; without a count the array's length does. Errors are mpi4py's
(TypeError, ValueError, KeyError, BufferError) with its texts; one is added: elements past the end of the
memory are ERR_BUFFER, where MPI would read and write what lies there.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from memsem.basic_types import BYTE, TYPE_CODES
from memsem.datatypes import Bytes, Datatype
from memsem.mpi_errors import ERR_BUFFER, failure

BufSpec = Any
"""Any of the forms above."""


class Buffer(NamedTuple):
    """Elements of a datatype in memory.

    memory: uint8, all of it. count: elements. offset: byte at which the first one starts.
    """

    memory: Bytes
    count: int  # type: ignore[assignment]
    datatype: Datatype
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return self.count * self.datatype.size

    def pack(self) -> Bytes:
        """Return the bytes in travelling order, uint8 [nbytes]; a view where they lie in a row."""
        if self.datatype.is_contiguous:
            return self.memory[self.offset : self.offset + self.nbytes]
        return self.memory[self.offset + self.datatype.places(self.count)]

    def unpack(self, data: Bytes) -> None:
        """Store the bytes that arrived, or as many of them as fit; what lies beside stays."""
        data = data[: self.nbytes]
        if self.datatype.is_contiguous:
            self.memory[self.offset : self.offset + data.size] = data
        else:
            self.memory[self.offset + self.datatype.places(self.count)[: data.size]] = data


NOTHING = Buffer(np.empty(0, np.uint8), 0, BYTE, 0)


def parse(spec: BufSpec, writable: bool) -> Buffer:
    """Read a buffer specification.

    Args:
        spec: see above.
        writable: it will receive.

    Raises:
        TypeError, ValueError, KeyError, BufferError: as mpi4py.
        Exception: ERR_TYPE for a datatype that is not committed, ERR_BUFFER past the end of the memory.
    """
    memory_of, count_arg, displ_arg, type_arg = _items(spec)
    memory, code = _memory(memory_of, writable)
    datatype = _datatype(code if type_arg is None else type_arg)
    datatype.check_usable()
    displ = 0 if displ_arg is None else operator.index(displ_arg)
    offset = _offset(displ, datatype, memory.size)
    if count_arg is None:
        count = _whole(memory.size - offset, datatype)
    else:
        count = operator.index(count_arg)
        if count < 0:
            raise ValueError(f"message: negative count {count}")
    low, high = datatype.span(count)
    if offset + low < 0 or offset + high > memory.size:
        raise failure(
            ERR_BUFFER,
            f"{count} of {datatype!r} from byte {offset} on do not lie in a buffer of {memory.size} bytes",
            value=count,
        )
    return Buffer(memory, count, datatype, offset)


def _items(spec: BufSpec) -> tuple[Any, Any, Any, Any]:
    """Split a specification into memory, count, displacement, type; None where it says nothing."""
    if not isinstance(spec, list | tuple):
        return spec, None, None, None
    if len(spec) == 4:
        return spec[0], spec[1], spec[2], spec[3]
    if len(spec) not in (2, 3):
        raise ValueError("message: expecting 2 to 4 items")
    memory, count, kind = spec[0], spec[1], spec[2] if len(spec) == 3 else None
    if len(spec) == 2 and isinstance(count, Datatype | str):
        return memory, None, None, count
    if isinstance(count, list | tuple):
        count, displ = count
        return memory, count, displ, kind
    return memory, count, None, kind


def _memory(thing: Any, writable: bool) -> tuple[Bytes, str]:
    """View memory as uint8 and say what its elements are."""
    array, code = _as_array(thing)
    if array.dtype.hasobject:
        raise KeyError(f"cannot map {code!r} to MPI datatype")
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise BufferError("message: buffer is not contiguous")
    if writable and not array.flags.writeable:
        raise BufferError("Object is not writable.")
    flat = array.reshape(-1, order="A")
    return flat.view(np.uint8) if flat.size else np.empty(0, np.uint8), code


def _as_array(thing: Any) -> tuple[np.ndarray[Any, Any], str]:
    if isinstance(thing, np.ndarray) and thing.dtype.kind in "mM":
        return thing, thing.dtype.kind
    try:
        view = memoryview(thing)
    except TypeError:
        if not hasattr(thing, "__dlpack__"):
            raise TypeError("message: expecting buffer or list/tuple") from None
        array = np.from_dlpack(thing)
        return array, array.dtype.char
    code = _code(view.format or "B")
    return (thing if isinstance(thing, np.ndarray) else np.asarray(view)), code


def _code(form: str) -> str:
    if form[0] == ">":
        raise BufferError(f"format string {form!r} with non-native byte order")
    return form.lstrip("@<=^") if form not in ("B", "<B", "@B") else ""


def _datatype(key: Datatype | str) -> Datatype:
    if isinstance(key, Datatype):
        return key
    if key == "":
        return BYTE
    if key not in TYPE_CODES:
        raise KeyError(f"cannot map {key!r} to MPI datatype")
    return TYPE_CODES[key]


def _offset(displ: int, datatype: Datatype, nbytes: int) -> int:
    if displ < 0:
        raise ValueError(f"message: negative displacement {displ}")
    if displ and datatype.extent <= 0:
        raise ValueError(f"message: cannot handle displacement, datatype extent {datatype.extent}")
    if displ * datatype.extent > nbytes:
        raise ValueError(
            f"message: displacement {displ} out of bounds, "
            f"number of datatype entries {nbytes // datatype.extent}"
        )
    return displ * datatype.extent


def _whole(nbytes: int, datatype: Datatype) -> int:
    if not nbytes:
        return 0
    if datatype.extent <= 0 or nbytes % datatype.extent:
        raise ValueError(
            f"message: cannot infer count, buffer length {nbytes} is not a multiple of "
            f"datatype extent {datatype.extent} (lb:{datatype.lb}, ub:{datatype.ub})"
        )
    return nbytes // datatype.extent
