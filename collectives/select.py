"""Which algorithm a collective uses: the least estimate from latencies and bytes, unless told otherwise.
Pure.

    L  latency of a put between nodes    G  seconds a byte at a die's port    n  ranks    b  bytes of a block
    m  bytes of the buffer               R  ceil(log2 n)                      p, q  ranks of a node, nodes

| full-mesh          | L + n b G                 | all_reduce: 2 L + 2 n b G, one-shot L + n m G            |
| ring               | (n - 1)(L + b G)          | all_reduce: twice                                        |
| bruck              | R L + (n - 1) b G         | all_to_all: R (L + n b G / 2)                            |
| recursive-doubling | R L + (n - 1) b G         | all_reduce: R (L + m G)                                  |
| recursive-halving  | R L + (n - 1) b G         | all_reduce: twice                                        |
| two-level          | 2 L + (p - 1) q b G + (q - 1) b G | all_reduce: twice; all_to_all: + (p q + p q) b G |
| direct             | 2 L + (n - 1) s G         | rooted; s: bytes to one child                            |
| binomial           | 2 R L + R s G             | scatter, gather: 2 R L + (n - 1) b G                     |
| one-exchange       | 2 L + 2 m G               | scatter, gather: L + (n - 1) b G; for asynchronous calls |

Full mesh has no hot spot on this fabric and is nearly always least; ties go to the first. The estimates leave
out what ranks wait for each other. `SUPERPOD_COLL_ALGORITHM="all_reduce:ring,barrier:dissemination"`
overrides the estimate, the keyword `algorithm` both.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from collectives.algorithms import ALGORITHMS, ONE_EXCHANGE, applicable
from emulator.errors import UsageError

ENVIRONMENT_KEY = "SUPERPOD_COLL_ALGORITHM"


class Link(NamedTuple):
    """A die's way to the others: latency in ps, bytes a second at its port."""

    latency_ps: int
    bytes_per_s: int


class Choice(NamedTuple):
    """A name and why."""

    name: str
    reason: str


def choose(kind: str, nbytes: int, nodes: tuple[int, ...], link: Link) -> Choice:
    """Return the algorithm with the least estimate.

    Args:
        kind: operation. nbytes: of a block (all_gather, reduce_scatter, all_to_all, scatter, gather), of the
            buffer (the rest).
        nodes: node of each rank of the group.
    """
    if kind.endswith("_v"):
        name = next(iter(ALGORITHMS[kind]))
        return Choice(name, "sizes differ by rank, which no rank knows of all")
    if len(nodes) == 1:
        return Choice(next(iter(ALGORITHMS[kind])), "one rank")
    times = {
        name: estimate_ps(kind, name, nbytes, nodes, link)
        for name in ALGORITHMS[kind]
        if applicable(kind, name, nodes) and name != ONE_EXCHANGE
    }
    best = min(times, key=lambda name: times[name])
    rest = ", ".join(f"{name} {ps / 1e6:.2f}" for name, ps in sorted(times.items(), key=lambda pair: pair[1]))
    return Choice(best, f"estimates in us: {rest}")


def choose_async(kind: str, nbytes: int, nodes: tuple[int, ...], link: Link) -> Choice:
    """The same for an asynchronous call: all that others need of a rank leaves at its start, so ranks may
    wait for such calls in any order."""
    why = "asynchronous: all that others need leaves at the call"
    if ONE_EXCHANGE not in ALGORITHMS[kind]:
        return Choice("full-mesh", why)
    if kind == "all_reduce" and choose(kind, nbytes, nodes, link).name == "one-shot":
        return Choice("one-shot", why)
    return Choice(ONE_EXCHANGE, why)


def estimate_ps(kind: str, name: str, nbytes: int, nodes: tuple[int, ...], link: Link) -> float:
    """Time of one operation on an idle machine, ps; see the module."""
    n = len(nodes)
    latency, rounds, q = float(link.latency_ps), math.ceil(math.log2(n)) if n > 1 else 0, len(set(nodes))
    p = -(-n // q)
    byte = 1e12 / link.bytes_per_s

    def time(turns: float, moved: float) -> float:
        return turns * latency + moved * byte

    if kind == "barrier":
        turns = {"full-mesh": 1, "dissemination": rounds, "direct": 2, "binomial": 2 * rounds, "two-level": 4}
        return time(turns[name], 8 * n if name in ("full-mesh", "direct") else 8 * rounds)
    if kind in ("broadcast", "reduce"):
        return {
            "direct": time(2, (n - 1) * nbytes),
            "binomial": time(2 * rounds, rounds * nbytes),
            "two-level": time(4, (p + q - 2) * nbytes),
            ONE_EXCHANGE: time(2, 2 * nbytes),
        }[name]
    if kind in ("scatter", "gather"):
        turns = {"direct": 2, "binomial": 2 * rounds, "two-level": 4, ONE_EXCHANGE: 1}
        flat = name in ("direct", ONE_EXCHANGE)
        return time(turns[name], (n - 1) * nbytes * (1 if flat else 1.5))
    if kind == "all_reduce":
        block = nbytes / n
        whole = {"one-shot": time(1, n * nbytes), "recursive-doubling": time(rounds, rounds * nbytes)}
        return whole[name] if name in whole else 2 * _share(name, n, rounds, p, q, block, time)
    if kind == "all_to_all" and name != "full-mesh":
        return {
            "pairwise": time(n, n * nbytes),
            "bruck": time(rounds, rounds * n * nbytes / 2),
            "two-level": time(2, 2 * n * nbytes),
        }[name]
    return _share(name, n, rounds, p, q, nbytes, time)


def _share(
    name: str, n: int, rounds: int, p: int, q: int, block: float, time: Callable[[float, float], float]
) -> float:
    """One pass in which each rank gives a block to all, or takes one of all."""
    return {
        "full-mesh": time(1, n * block),
        ONE_EXCHANGE: time(1, n * block),
        "ring": time(n - 1, (n - 1) * block),
        "bruck": time(rounds, (n - 1) * block),
        "recursive-doubling": time(rounds, (n - 1) * block),
        "recursive-halving": time(rounds, (n - 1) * block),
        "two-level": time(2, ((p - 1) * q + q - 1) * block),
    }[name]


def overrides(text: str) -> Mapping[str, str]:
    """Read `SUPERPOD_COLL_ALGORITHM`. Raises: UsageError, an operation or algorithm that is none."""
    chosen = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        kind, colon, name = part.partition(":")
        if not colon or kind not in ALGORITHMS:
            near = difflib.get_close_matches(kind, ALGORITHMS, n=1, cutoff=0.0)[0]
            raise UsageError(f"{ENVIRONMENT_KEY}: {part!r}: operation:algorithm is needed; nearest: {near}")
        chosen[kind] = checked(kind, name)
    return chosen


def checked(kind: str, name: str) -> str:
    """The name, if the operation has such an algorithm. Raises: UsageError."""
    if name not in ALGORITHMS[kind]:
        near = difflib.get_close_matches(str(name), ALGORITHMS[kind], n=1, cutoff=0.0)[0]
        raise UsageError(
            f"{kind}: algorithm {name!r} is not one of {', '.join(ALGORITHMS[kind])}; nearest: {near}"
        )
    return name
