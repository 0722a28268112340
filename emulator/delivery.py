"""In what order and how late posted operations take effect, within what their order flags permit. Pure.

Natural delivery changes nothing: the fabric's own queues decide. Adversarial delivery draws, for each
operation from (seed, rank, number of the operation), delays and cuts that no flag of it forbids; the engine
then keeps every order that was asked for, so a correct program gives the same result and a missing fence is
caught:

    put          delivered late (tail); cut into up to four rails, each with a delay of its own, if nobody is
                 told of its completion; its signal travels apart and waits for its own rails alone, which are
                 a stream
    get, atomic  leaves late (start) and returns late (tail, done)
    send         delivered late (tail)
    all          completion reported late (done)

A delay is 0 half of the time, else up to `REACH` times the link's latency. Fences, streams, guards and what
happens at the poster itself (receives, local words) are left alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from emulator.engine.api import NO_OP
from emulator.engine.posts import DONE_NEVER, K_GET, K_PUT, K_SEND, K_WORD, ORD_STREAM, Posts
from emulator.engine.schedules import Sends

REACH = 20
RAILS = 4
_STREAMS_PER_PEER = 16
_LATE_START = (K_GET, K_WORD)
_LATE_TAIL = (K_PUT, K_GET, K_SEND)
Int64 = npt.NDArray[np.int64]


class Delivery:
    """How the operations of one rank are delivered. Made by `natural` or `adversarial`."""

    def __init__(self, seed: int | None, rank: int, latency_ps: Int64, new_stream: Callable[[], int]) -> None:
        self._seed, self._rank, self._latency_ps = seed, rank, latency_ps
        self._new_stream = new_stream
        self._streams: dict[int, list[int]] = {}
        self._number = 0

    @classmethod
    def natural(cls) -> Delivery:
        """Return the fabric's own delivery."""
        return cls(None, 0, np.zeros((0, 0), np.int64), lambda: 0)

    @classmethod
    def adversarial(cls, seed: int, rank: int, latency_ps: Int64, new_stream: Callable[[], int]) -> Delivery:
        """Return a delivery drawn from a seed.

        Args:
            latency_ps: int64 [planes, ranks], least time from this rank to each.
            new_stream: gives stream numbers nobody else of this rank uses.
        """
        return cls(seed, rank, latency_ps, new_stream)

    @property
    def reorders(self) -> bool:
        """Whether operations may take effect in another order than the fabric would give."""
        return self._seed is not None

    def reseed(self, seed: int) -> None:
        """Begin anew with another seed; adversarial delivery only."""
        assert self._seed is not None
        self._seed, self._number = seed, 0

    def disturb(self, posts: Posts) -> tuple[Posts, Int64 | None]:
        """Return the posts to make instead.

        Args:
            posts: [count]; real payloads, if any, lie one after another in their order, so a put that is cut
                keeps its bytes in place.

        Returns:
            posts in program order, and int64 [count + 1], the first post of each given one and the end; None
            where each stands for itself.
        """
        if self._seed is None:
            return posts, None
        draws = [self._draws() for _ in range(posts.size)]
        counts = [self._rails(posts[i], draws[i]) for i in range(posts.size)]
        first = np.cumsum([0, *(rails + signal for rails, signal in counts)])
        out: Posts = np.repeat(posts, np.diff(first))
        for i, (rails, signal) in enumerate(counts):
            part = out[first[i] : first[i + 1]]
            if part.size > 1:
                self._cut(part, rails, signal)
            for k in range(part.size):
                self._delay(part, k, draws[i])
        return out, first

    def disturb_sends(self, sends: Sends) -> Sends:
        """Return the puts of a schedule to make instead: each leaves late; none is cut."""
        if self._seed is None:
            return sends
        out = sends.copy()
        for i in range(len(out)):
            most = REACH * int(self._latency_ps[out["plane"][i], out["peer"][i]])
            out["start_ps"][i] += _delay_ps(int(self._draws()[2]), most)
        return out

    def _draws(self) -> Int64:
        """Sixteen numbers below 2**32 for the next operation."""
        text = f"{self._seed},{self._rank},{self._number}".encode()
        self._number += 1
        return np.frombuffer(hashlib.blake2b(text, digest_size=64).digest(), "<u4").astype(np.int64)

    def _rails(self, post: Posts, draws: Int64) -> tuple[int, int]:
        """Into how many rails a post is cut, and whether its signal travels apart; (1, 0) leaves it whole."""
        if not is_breakable(post):
            return 1, 0
        real = int(post["real_bytes"])
        rails = min(real, 2 + int(draws[1]) % (RAILS - 1)) if draws[0] % 2 else 1
        return rails, int(post["op"] != NO_OP)

    def _cut(self, part: Posts, rails: int, signal: int) -> None:
        """Make rails, and a post of its own for the signal, of equal copies of one put."""
        real, charged, offset = (int(part[name][0]) for name in ("real_bytes", "nbytes", "offset"))
        part["stream"] = self._stream(int(part["peer"][0]))
        for k in range(rails):
            low, high = real * k // rails, real * (k + 1) // rails
            part["offset"][k], part["real_bytes"][k] = offset + low, high - low
            part["nbytes"][k] = charged * high // real - charged * low // real
        if signal:
            part["op"][:rails] = NO_OP
            part["order"][rails] |= ORD_STREAM
            part["nbytes"][rails] = part["real_bytes"][rails] = part["log_kind"][rails] = 0

    def _stream(self, peer: int) -> int:
        """A stream towards `peer`, used again after some others; an old operation of it can only be waited
        for."""
        known = self._streams.setdefault(peer, [])
        known.append(self._new_stream() if len(known) < _STREAMS_PER_PEER else known.pop(0))
        return known[-1]

    def _delay(self, part: Posts, k: int, draws: Int64) -> None:
        kind = int(part["kind"][k])
        if kind not in (*_LATE_START, *_LATE_TAIL):
            return
        most = REACH * int(self._latency_ps[part["plane"][k], part["peer"][k]])
        if kind in _LATE_START:
            part["start_ps"][k] += _delay_ps(int(draws[2]), most)
        if kind in _LATE_TAIL:
            part["tail_ps"][k] += _delay_ps(int(draws[3 + k]), most)
        part["done_ps"][k] += _delay_ps(int(draws[9 + k]), most)


def is_breakable(post: Posts) -> bool:
    """Whether a post may be cut into rails: a put of no queue that nobody hears of but by its signal, that no
    guard can refuse, and that waits for no answers (with a stream of its own it would wait for that
    stream's alone)."""
    return bool(
        post["kind"] == K_PUT
        and post["stream"] == 0
        and post["rd_below"] == 0
        and post["done"] == DONE_NEVER
        and post["note"] == 0
        and post["region_word"] < 0
        and post["state_word"] < 0
        and post["real_bytes"] > 0
    )


def _delay_ps(draw: int, most: int) -> int:
    """0 for an even draw, else 1 to `most`."""
    return 1 + (draw >> 1) * most // (1 << 31) if draw % 2 and most else 0
