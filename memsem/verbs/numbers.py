"""Numbers of a program's own making: refused at the call, before anything is taken, posted or counted.

A verbs library in C would get them as whole numbers of a known width, and pyverbs raises before it calls it.
Values that a device judges (a key, an address, a count) are judged where the device would, not here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from emulator.errors import UsageError, misuse
from memsem.verbs.ah import AH
from memsem.verbs.verbs_error import PyverbsUserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memsem.verbs.context import Context
    from memsem.verbs.wr import SGE, SendWR

E = TypeVar("E", bound=IntEnum)
_LONGEST = (1 << 32) - 1
_QPNS = (1 << 24) - 1


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number; a truth value is one, as in C (`memsem.whole` is for the others)."""
    return isinstance(value, int | np.integer)


def check_whole(context: Context, what: str, values: Iterable[Any]) -> None:
    """Refuse what is no whole number. Raises: PyverbsUserError."""
    for value in values:
        if not is_whole(value):
            raise wrong(context, f"{what} {value!r} is no whole number", value)


def wrong(context: Context, message: str, value: Any) -> UsageError:
    """Return the error of input that no device was asked about, with rank and time."""
    return misuse(PyverbsUserError, message, rank=context.rank, now_ps=context.now_ps, value=value)


def member(context: Context, what: str, kind: type[E], value: Any) -> E:
    """Return the constant of `kind` with that value. Raises: PyverbsUserError, there is none."""
    try:
        return kind(value)
    except ValueError:
        raise wrong(context, f"{what} {value!r} is none of {', '.join(kind.__members__)}", value) from None


def check_elements(context: Context, call: str, sg: Sequence[SGE]) -> None:
    """Refuse elements that describe no memory at all. Raises: PyverbsUserError."""
    for sge in sg:
        numbers = [getattr(sge, name, None) for name in ("addr", "length", "lkey")]
        if not all(map(is_whole, numbers)) or not 0 <= sge.length <= _LONGEST:
            raise wrong(context, f"{call}: {sge!r} needs whole numbers and a length from 0 on", numbers)


def check_send(context: Context, wr: SendWR) -> None:
    """Refuse a send that no structure could hold. Raises: PyverbsUserError."""
    check_whole(context, "post_send: wr_id, imm_data or send_flags", (wr.wr_id, wr.imm_data, wr.send_flags))
    check_elements(context, "post_send", wr.sg)
    remote = wr.remote
    numbers = (remote.rkey, remote.addr, remote.compare_add, remote.swap, remote.qpn, remote.qkey)
    check_whole(context, "post_send: rkey, address, operand, qpn or qkey", numbers)
    if remote.ah is not None and not isinstance(remote.ah, AH):
        raise wrong(context, f"post_send: {remote.ah!r} is no address handle", remote.ah)
    if not 0 <= remote.qpn <= _QPNS:
        raise wrong(context, f"post_send: qpn {remote.qpn} is not from 0 to {_QPNS}", remote.qpn)
