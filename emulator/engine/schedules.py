"""Schedules: steps a rank hands over in one call, which the engine carries out while the rank sleeps.

A schedule is exactly the loop

    for step in steps:
        if step.compute_ps > 0: compute(step.compute_ps)
        if step.count: post(puts of sends[step.first : step.first + step.count], step_ps)
        if step.word >= 0: wait([(step.word, step.cmp, step.value)])

with its times, sequence numbers, port reservations and digests, but with one engine entry and one wake-up.
Words of counters that only grow (ADD 1, wait for GE what came so far + what is expected) need no reset
between schedules.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from emulator.engine.posts import K_PUT, Posts, new_posts

__all__ = ["SEND_DTYPE", "STEP_DTYPE", "Send", "Sends", "Step", "Steps", "new_sends", "new_steps", "posts_of"]

Steps = np.ndarray[Any, np.dtype[Any]]
"""[count] of STEP_DTYPE, C-contiguous."""
Sends = np.ndarray[Any, np.dtype[Any]]
"""[count] of SEND_DTYPE, C-contiguous."""

STEP_DTYPE = np.dtype(
    [
        ("compute_ps", "i8"),  # priced work before the puts, 0 for none
        ("value", "i8"),  # what the word is compared with
        ("first", "i4"),  # first of its puts in `sends`
        ("count", "i4"),  # how many
        ("word", "i4"),  # my word to wait for (the inbox word too), -1 for no wait
        ("cmp", "i4"),  # EQ NE GT GE LT LE
    ]
)
SEND_DTYPE = np.dtype(
    [
        ("nbytes", "i8"),  # charged bytes; no payload goes with it
        ("value", "i8"),  # what the peer's word is set to, or what is added
        ("start_ps", "i8"),  # from the post to the egress port
        ("peer", "i4"),
        ("word", "i4"),  # the peer's word
        ("op", "i4"),  # NO_OP, SET or ADD
        ("plane", "i4"),
    ]
)
"""One put of a step: a K_PUT of the same fields."""


class Step(NamedTuple):
    """A row of STEP_DTYPE as plain integers."""

    compute_ps: int
    value: int
    first: int
    count: int  # type: ignore[assignment]
    word: int
    cmp: int


class Send(NamedTuple):
    """A row of SEND_DTYPE as plain integers."""

    nbytes: int
    value: int
    start_ps: int
    peer: int
    word: int
    op: int
    plane: int


def new_steps(size: int, /, **fields: npt.ArrayLike) -> Steps:
    """Return [size] steps with `fields` (scalars or arrays [size]) filled in; a blank step does nothing."""
    steps: Steps = np.zeros(size, STEP_DTYPE)
    steps["word"] = -1
    for name, values in fields.items():
        steps[name] = values
    return steps


def new_sends(size: int, /, **fields: npt.ArrayLike) -> Sends:
    """Return [size] puts with `fields` (scalars or arrays [size]) filled in and the rest 0."""
    sends: Sends = np.zeros(size, SEND_DTYPE)
    for name, values in fields.items():
        sends[name] = values
    return sends


def posts_of(sends: Sends) -> Posts:
    """Return the rows of POST_DTYPE that the puts stand for."""
    return new_posts(len(sends), kind=K_PUT, **{name: sends[name] for name in SEND_DTYPE.names or ()})
