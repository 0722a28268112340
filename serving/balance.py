"""Which DP group gets a request: policies as pure functions, and the state every rank keeps alike for them.

    least-tokens   fewest priced tokens still to be computed (the default)
    prefill-cost   the collaborative scheduler: waiting requests are shared out with a cost model that knows
                   their length and the prefix each group has, so that all groups finish together
    decode-kv      groups at their batch limit or without room are out; of the rest the least KV in use, with
                   what is reserved for answers to come
    round-robin, random   for comparison

Source: arXiv 2508.02520v6, section 4.3.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError
from serving.request import RequestSpec

__all__ = [
    "POLICIES",
    "Balancer",
    "DecodeKV",
    "Group",
    "LeastTokens",
    "PrefillCost",
    "PromptView",
    "RandomGroup",
    "RoundRobin",
    "check_policy",
    "decode_target",
    "prefill_assign",
]

POLICIES = ("least-tokens", "prefill-cost", "decode-kv", "round-robin", "random")
Cost = Callable[[int, int], int]
"""(cached tokens, new tokens) -> price of that prefill, ps."""


def check_policy(name: str) -> None:
    """Raise UsageError unless there is such a policy."""
    if name not in POLICIES:
        raise UsageError(f"--load-balancing {name!r} is not known; choose {', '.join(POLICIES)}")


# ---- pure decisions ---------------------------------------------------------------------------------


def decode_target(
    batch: NDArray[np.int64], kv: NDArray[np.int64], limit: int, capacity: int, need: int
) -> int | None:
    """The group for one more decoding request; None where all are full.

    Args:
        batch: int64[groups], requests each has.
        kv: int64[groups], KV each uses and has reserved.
        limit: most requests of a group. capacity: KV of a group. need: KV of the request at its end.
    """
    allowed = (batch < limit) & (kv + need <= capacity)
    if not allowed.any():
        return None
    return int(np.where(allowed, kv, np.iinfo(np.int64).max).argmin())


def prefill_assign(
    lengths: Sequence[int], cached: NDArray[np.int64], loads_ps: NDArray[np.int64], cost: Cost
) -> list[int]:
    """Share waiting prompts out over groups, the dearest first, each to where it ends first.

    Args:
        lengths: tokens of each prompt, in order of arrival.
        cached: int64[prompts, groups], tokens of it each group has already.
        loads_ps: int64[groups], what each has still to compute.

    Returns:
        the group of each prompt, in order of arrival. Ties go to the lower group, and to the earlier prompt.
    """
    loads = loads_ps.copy()
    prices = np.array(
        [[cost(int(c), n - int(c)) for c in row] for n, row in zip(lengths, cached, strict=True)]
    )
    chosen = [0] * len(lengths)
    for prompt in sorted(range(len(lengths)), key=lambda i: (-int(prices[i].min()), i)):
        group = int((loads + prices[prompt]).argmin())
        loads[group] += prices[prompt, group]
        chosen[prompt] = group
    return chosen


# ---- what is known of the groups --------------------------------------------------------------------


class Group(Protocol):
    """What a rank says of itself; its scheduler."""

    outstanding: int

    @property
    def num_requests(self) -> int: ...

    @property
    def kv_reserved(self) -> int: ...


class Balancer(Protocol):
    """A policy with its state. `loads` is 0 where a group has nothing to do."""

    def status(self, group: Group) -> int:
        """What a rank says of itself in each exchange: 30 bits."""

    def learn(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Take in what all ranks said; returns their loads, int64[n]."""

    def choose(
        self, specs: Sequence[RequestSpec], loads: NDArray[np.int64], dead: Sequence[int]
    ) -> list[int | None]:
        """A group for each request, None to let it wait; `loads` is updated."""


STATUS_BITS = 30


class LeastTokens:
    """Fewest outstanding priced tokens, in order of arrival."""

    def status(self, group: Group) -> int:
        """See `Balancer`."""
        return group.outstanding

    def learn(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Balancer`."""
        return words

    def choose(
        self, specs: Sequence[RequestSpec], loads: NDArray[np.int64], dead: Sequence[int]
    ) -> list[int | None]:
        """See `Balancer`."""
        chosen: list[int | None] = []
        for spec in specs:
            rank = int(np.argmin(_without(loads, dead)))
            loads[rank] += spec.priced_total
            chosen.append(rank)
        return chosen


class RoundRobin(LeastTokens):
    """One after the other."""

    def __init__(self) -> None:
        self._next = 0

    def choose(
        self, specs: Sequence[RequestSpec], loads: NDArray[np.int64], dead: Sequence[int]
    ) -> list[int | None]:
        """See `Balancer`."""
        chosen: list[int | None] = []
        for spec in specs:
            while self._next % len(loads) in dead:
                self._next += 1
            rank = self._next % len(loads)
            self._next += 1
            loads[rank] += spec.priced_total
            chosen.append(rank)
        return chosen


class RandomGroup(LeastTokens):
    """By a hash of seed and request."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def choose(
        self, specs: Sequence[RequestSpec], loads: NDArray[np.int64], dead: Sequence[int]
    ) -> list[int | None]:
        """See `Balancer`."""
        living = [rank for rank in range(len(loads)) if rank not in set(dead)]
        chosen: list[int | None] = []
        for spec in specs:
            digest = hashlib.blake2b(f"{self._seed}:{spec.request_id}".encode(), digest_size=8).digest()
            rank = living[int.from_bytes(digest, "little") % len(living)]
            loads[rank] += spec.priced_total
            chosen.append(rank)
        return chosen


class DecodeKV:
    """Batch limit, then least KV with what is reserved. A word: 10 bits of requests, 20 of KV.

    Args:
        limit: most requests of a group. capacity: priced KV tokens of a group.
    """

    _KV_BITS = 20

    def __init__(self, limit: int, capacity: int) -> None:
        if not 0 < limit < 1 << (STATUS_BITS - self._KV_BITS):
            raise UsageError(f"--load-balancing decode-kv: at most 1023 requests a rank, not {limit}")
        self._limit, self._capacity = limit, capacity
        self._unit = max(1, -(-2 * capacity >> self._KV_BITS))
        self._kv: NDArray[np.int64] = np.zeros(0, np.int64)

    def status(self, group: Group) -> int:
        """See `Balancer`. KV counts in units that let twice the capacity fit."""
        kv = min(-(-group.kv_reserved // self._unit), (1 << self._KV_BITS) - 1)
        requests = min(group.num_requests, (1 << (STATUS_BITS - self._KV_BITS)) - 1)
        return (requests << self._KV_BITS) | kv

    def learn(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Balancer`: the loads are numbers of requests."""
        self._kv = (words & np.int64((1 << self._KV_BITS) - 1)) * self._unit
        loads: NDArray[np.int64] = words >> np.int64(self._KV_BITS)
        return loads

    def choose(
        self, specs: Sequence[RequestSpec], loads: NDArray[np.int64], dead: Sequence[int]
    ) -> list[int | None]:
        """See `Balancer`."""
        chosen: list[int | None] = []
        for spec in specs:
            batch = _without(loads, dead)
            need = min(spec.priced_total, self._capacity)
            rank = decode_target(batch, np.where(loads > 0, self._kv, 0), self._limit, self._capacity, need)
            if rank is not None:
                loads[rank] += 1
                self._kv[rank] += need
            chosen.append(rank)
        return chosen


class PromptView:
    """Which prefixes each group has been given, as far as the dispatcher remembers.

    Args:
        block: priced tokens of a block. most_blocks: remembered; the longest unused are forgotten.
    """

    def __init__(self, num_groups: int, block: int, most_blocks: int) -> None:
        self._num_groups, self._block, self._most = num_groups, block, most_blocks
        self._seen: OrderedDict[bytes, set[int]] = OrderedDict()

    def hashes(self, spec: RequestSpec) -> list[bytes]:
        """Hashes of the full blocks of a prompt, 16 bytes each."""
        size = max(1, self._block // spec.scale)
        tokens = np.ascontiguousarray(spec.prompt, dtype="<i8")
        found, parent = [], b""
        for first in range(0, len(tokens) - size + 1, size):
            digest = hashlib.blake2b(parent, digest_size=16)
            digest.update(tokens[first : first + size].tobytes())
            parent = digest.digest()
            found.append(parent)
        return found

    def cached(self, spec: RequestSpec, hashes: Sequence[bytes]) -> NDArray[np.int64]:
        """Priced tokens of the prompt that each group has, all but its last one: int64[groups]."""
        blocks = np.zeros(self._num_groups, np.int64)
        alive = set(range(self._num_groups))
        for key in hashes:
            alive &= self._seen.get(key, set())
            if not alive:
                break
            blocks[list(alive)] += 1
        size = max(1, self._block // spec.scale) * spec.scale
        result: NDArray[np.int64] = np.minimum(blocks * size, spec.priced_prompt - 1)
        return result

    def note(self, hashes: Sequence[bytes], group: int) -> None:
        """A group is given a prompt."""
        for key in hashes:
            self._seen.setdefault(key, set()).add(group)
            self._seen.move_to_end(key)
        while len(self._seen) > self._most:
            self._seen.popitem(last=False)


class PrefillCost(LeastTokens):
    """The collaborative prefill scheduler over all requests that wait at a step's boundary.

    Args:
        cost: of a prefill.
        budget: priced tokens of a step, for which a rank's outstanding tokens are priced.
        view: which prefixes the groups have; None: prefixes are not reused.
    """

    def __init__(self, cost: Cost, budget: int, view: PromptView | None) -> None:
        self._cost, self._view = cost, view
        self._per_token = cost(0, budget) / budget

    def choose(
        self, specs: Sequence[RequestSpec], loads: NDArray[np.int64], dead: Sequence[int]
    ) -> list[int | None]:
        """See `Balancer`."""
        if not specs:
            return []
        living = np.array([rank for rank in range(len(loads)) if rank not in set(dead)])
        hashes = [self._view.hashes(spec) if self._view else [] for spec in specs]
        cached = np.zeros((len(specs), len(loads)), np.int64)
        if self._view is not None:
            cached = np.array([self._view.cached(s, h) for s, h in zip(specs, hashes, strict=True)])
        loads_ps = (loads[living] * self._per_token).astype(np.int64)
        places = prefill_assign([s.priced_prompt for s in specs], cached[:, living], loads_ps, self._cost)
        chosen = [int(living[place]) for place in places]
        for spec, keys, rank in zip(specs, hashes, chosen, strict=True):
            loads[rank] += spec.priced_total
            if self._view is not None:
                self._view.note(keys, rank)
        return list(chosen)


def _without(loads: NDArray[np.int64], dead: Sequence[int]) -> NDArray[np.int64]:
    if not dead:
        return loads
    masked = loads.copy()
    masked[list(dead)] = np.iinfo(np.int64).max
    return masked
