"""The two 64-bit fields that travel with every operation, and what they mean here. Pure.

`user_b` belongs to the poster and comes back in its own records:

    56..63 owner (verbs)   55 it was a receive   27..54 number of the request   0..24 queue
    queue = queue pair number, or 1 << 24 | slot of a shared receive queue

`user_a` of a send is read by the receiver: who sent it, to whom, and what kind of message it is:

    0..23 sender's queue pair   24..47 receiver's   48 immediate   49 write   50 solicited
"""

from __future__ import annotations

from typing import NamedTuple

from emulator.posting import OWNER_VERBS

SRQ_QUEUE = 1 << 24
_RECV = 1 << 55
_NUMBER = 27
_QUEUE_MASK = (1 << 25) - 1
_NUMBER_MASK = (1 << 28) - 1


def match_context(queue: int, owner: int = OWNER_VERBS) -> int:
    """Return the match context of a queue's receives."""
    return owner << 32 | queue


class Mine(NamedTuple):
    """`user_b` taken apart."""

    queue: int
    number: int
    is_recv: bool

    def encode(self, owner: int = OWNER_VERBS) -> int:
        return owner << 56 | (_RECV if self.is_recv else 0) | self.number << _NUMBER | self.queue


def decode_mine(user_b: int) -> Mine:
    return Mine(user_b & _QUEUE_MASK, user_b >> _NUMBER & _NUMBER_MASK, bool(user_b & _RECV))


class Message(NamedTuple):
    """`user_a` of a send taken apart."""

    src_qp: int
    dest_qp: int
    has_imm: bool = False
    is_write: bool = False
    solicited: bool = False

    def encode(self) -> int:
        flags = self.has_imm | self.is_write << 1 | self.solicited << 2
        return self.src_qp | self.dest_qp << 24 | flags << 48


def decode_message(user_a: int) -> Message:
    flags = user_a >> 48
    return Message(
        user_a & 0xFFFFFF, user_a >> 24 & 0xFFFFFF, bool(flags & 1), bool(flags & 2), bool(flags & 4)
    )


def message_tag(imm: int, qkey: int) -> int:
    """Return the tag of a message, as a signed 64-bit number: immediate below, Q_Key above."""
    value = (qkey & 0xFFFFFFFF) << 32 | imm & 0xFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


QKEY_MASK = -(1 << 32)
"""Which bits of a tag a receive of a UD queue pair compares."""


def tag_imm(tag: int) -> int:
    """Return the immediate in a tag."""
    return tag & 0xFFFFFFFF
