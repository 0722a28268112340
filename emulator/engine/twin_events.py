"""Events of the Python twin: stages of an operation, keys, and what a put, get or atomic carries along."""

from typing import Any, NamedTuple

from emulator.engine.api import LogRef

(S_ROW, S_EGRESS, S_INGRESS, S_DELIVER, S_ACK, S_ATOMIC, S_RESPONSE, S_PULL, S_PULL_IN, S_BULK) = range(1, 11)
S_CHECK, S_TIMEOUT, S_POLL, S_RESUME = range(11, 15)
OP_PUT, OP_GET, OP_ATOMIC = range(3)
Event = tuple[int, int, int, int, Any]


class Op(NamedTuple):
    """A put, get or atomic under way."""

    kind: int
    poster: int
    peer: int
    nbytes: int
    seq: int
    ref: LogRef | None
    op: int = 0
    word: int = 0
    value: int = 0
    compare: int = 0


def key_of(rank: int, seq: int, sub: int, stage: int) -> int:
    return rank << 50 | seq << 18 | sub << 6 | stage


def staged(key: int, stage: int) -> int:
    return key & ~63 | stage


def occupy_ps(nbytes: int, bytes_per_s: int) -> int:
    """How long bytes occupy a port: ceil(bytes * 10**12 / bytes_per_s)."""
    return -(-nbytes * 10**12 // bytes_per_s)


def holds(a: int, cmp: int, b: int) -> bool:
    return (a == b, a != b, a > b, a >= b, a < b, a <= b)[cmp]
