"""How keys, numbers and states are written into 64-bit words: pure functions.

A context owns the same signal words on every rank, so a key or a queue pair number that arrives by any way
tells where the owner keeps what it names:

    word 0 .. 3             a region that is never open: where forged keys lead
    4 .. 4 + Q              state word of queue pair slot 0 .. Q-1
    4 + Q + 4 m .. + 3      memory region slot m: {key or 0, first byte, length, access}

    key      (slot + 1) << 12 | generation               32 bits, the same for lkey and rkey
    QP       generation << 16 | SRQ slot + 1 or 0 << 10 | slot + 2     24 bits; 0 and 1 stay reserved
    state    RNR wait in ps << 6 | code;   code = generation % 7 * 9 + (0 not receiving, 1 + access otherwise)

A sender masks the codes it takes for "ready" and for "not allowed"; the generation in both makes a number
that was given to somebody else lead nowhere.

Source: times of min_rnr_timer and timeout: InfiniBand specification 1.5, tables 45 and 9.7.6.1.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from emulator.posting import OWNER_VERBS
from memsem.verbs.enums import IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE

KEY_GENERATIONS = 1 << 12
QP_GENERATIONS = 1 << 8
MAX_QP = (1 << 10) - 2
MAX_SRQ = (1 << 6) - 1
MAX_MR = 1 << 19
NULL_WORDS = 4
REGION_WORDS = 4
_CODES = 9
_GENERATION_CODES = 7
_REMOTE = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC

RNR_TIMER_PS = tuple(
    hundredths_us * 10_000_000
    for hundredths_us in (
        *(65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536),
        *(2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152),
    )
)
"""Wait after "receiver not ready" by min_rnr_timer, ps: 0.01 ms steps; code 0 is the longest."""
TIMEOUT_UNIT_PS = 4_096_000
LONGEST_TIMEOUT_PS = TIMEOUT_UNIT_PS << 31


def timeout_ps(code: int) -> int:
    """Return the transport time-out of a code 0 to 31, ps. 0 means never: the longest there is, so that a
    wait for such a message still ends."""
    return LONGEST_TIMEOUT_PS if code == 0 else TIMEOUT_UNIT_PS << code


class Region(NamedTuple):
    """Where the owner of a key keeps its region, and what must stand there."""

    word: int
    tag: int


class QPNumber(NamedTuple):
    """A queue pair number taken apart: slot, SRQ slot or -1, generation."""

    slot: int
    srq: int
    generation: int

    def encode(self) -> int:
        return self.generation % QP_GENERATIONS << 16 | (self.srq + 1) << 10 | (self.slot + 2)


def decode_qp(number: int) -> QPNumber:
    """Take a queue pair number apart; the slot of a reserved number is negative."""
    return QPNumber((number & 0x3FF) - 2, (number >> 10 & 0x3F) - 1, number >> 16 & 0xFF)


def encode_key(slot: int, generation: int) -> int:
    """Return the key of a memory region slot."""
    return (slot + 1) << 12 | generation % KEY_GENERATIONS


def key_slot(key: int) -> int:
    """Return the memory region slot a key speaks of; may be none of the owner's."""
    return (key >> 12) - 1


def state_value(generation: int, receiving: bool, access: int, rnr_ps: int) -> int:
    """Return what the state word of a queue pair says to senders.

    Args:
        generation: of its number. receiving: it answers. access: its `qp_access_flags`.
        rnr_ps: how long a sender waits that finds no receive.
    """
    code = generation % _GENERATION_CODES * _CODES + (1 + (access & _REMOTE) // 2 if receiving else 0)
    return rnr_ps << 6 | code


def state_masks(generation: int, need: int) -> tuple[int, int]:
    """Return two sets of codes, bit by bit: those of a queue pair that answers, and of them those that do
    not allow `need` (IBV_ACCESS_REMOTE_*; 0 for a send)."""
    first = generation % _GENERATION_CODES * _CODES + 1
    ready = 0xFF << first
    denied = sum(1 << first + access // 2 for access in range(0, 16, 2) if need & ~access)
    return ready, denied


@dataclass(frozen=True)
class Layout:
    """The words of a context, the same on every rank.

    Args:
        first_word: its first one. max_qp, max_mr: slots.
        owner: who posts (`emulator.posting`), verbs or URMA.
    """

    first_word: int
    max_qp: int
    max_mr: int
    owner: int = OWNER_VERBS

    @staticmethod
    def words(max_qp: int, max_mr: int) -> int:
        """Return how many words a context takes."""
        return NULL_WORDS + max_qp + REGION_WORDS * max_mr

    def qp_word(self, slot: int) -> int:
        """Return the state word of a queue pair slot; of a slot that cannot be, a word that is always 0."""
        return self.first_word + (NULL_WORDS + slot if 0 <= slot < self.max_qp else 1)

    def mr_word(self, slot: int) -> int:
        """Return the first of the four words of a memory region slot."""
        return self.first_word + NULL_WORDS + self.max_qp + REGION_WORDS * slot

    def region(self, key: int) -> Region:
        """Return where a remote key leads; a key that cannot be leads to the region that is never open."""
        slot = key_slot(key)
        return Region(self.mr_word(slot), key) if 0 <= slot < self.max_mr else self.closed

    @property
    def closed(self) -> Region:
        """A region nobody ever opens."""
        return Region(self.first_word, 1)
