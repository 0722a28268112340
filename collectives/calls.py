"""What all collectives have in common: reading keywords, choosing an algorithm, making plans and work."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from collectives.agreement import DTYPES, KINDS, NAMES, OPS, TIMED, Descriptor
from collectives.algorithms import ALGORITHMS, Exchange, Flow, Shape, applicable
from collectives.at_once import allowed, at_once
from collectives.buffers import Array, dtype_of
from collectives.groups import Group
from collectives.movement import as_schedule
from collectives.plan import Phase, Plan
from collectives.select import ENVIRONMENT_KEY, Choice, Link, checked, choose, choose_async, overrides
from collectives.work import Work
from emulator.engine.api import NODE, POD
from emulator.errors import SizeError, UsageError
from memsem.whole import is_whole

Int64 = npt.NDArray[np.int64]
Counts = Sequence[int] | npt.NDArray[np.integer[Any]]
_LOGGER = logging.getLogger("collectives")
_KEYWORDS = {"algorithm", "async_op", "charge_bytes", "dtype"}
_MOST_PLANS = 512
_MOST = 1 << 56


class How(TypedDict, total=False):
    """Keywords of every collective; see `collectives.coll`."""

    algorithm: str | None
    async_op: bool
    charge_bytes: int | None
    dtype: str | None


def begin(group: Group, plan: Plan, how: How, send: Any = None, recv: Any = None) -> Work:
    """Call a collective; complete it unless it is asynchronous. Raises: RankLostError, the group is over."""
    if plan.single and allowed(group) and not how.get("async_op"):
        return at_once(group, plan, send, recv)
    if group.space.watching:
        group.check()
    group.log.append(plan.note)
    work = Work(group, plan, send, recv)
    if how.get("async_op"):
        work.start()
    else:
        work.run()
    return work


def planned(group: Group, key: Any, make: Callable[[], Plan]) -> Plan:
    """The plan for what `key` says, made once. Raises: what `make` does."""
    key = key, group.timed, group.apart
    plan = group.plans.get(key)
    if plan is None:
        if len(group.plans) >= _MOST_PLANS:
            group.plans.clear()
        plan = group.plans[key] = make()
    return plan


def key_of(kind: str, how: How, *facts: Any) -> Any:
    """What a plan depends on: the operation, its keywords and `facts`."""
    if not how:
        return kind, facts
    charge, known = how.get("charge_bytes"), how.keys() <= _KEYWORDS
    apart = bool(how.get("async_op"))
    return kind, how.get("algorithm"), type(charge), charge, how.get("dtype"), known, apart, facts


def whole_numbers(group: Group, kind: str, name: str, values: Counts) -> Int64:
    """Values as int64. Raises: SizeError, one is no whole number."""
    try:
        numbers = np.asarray(values)
    except ValueError:
        numbers = np.empty(0, object)
    if numbers.dtype.kind not in "iu":
        text = f"{kind}: {name} must be {group.size} whole numbers, got {values!r}"
        raise group.error(SizeError, text[:300], values)
    return numbers.astype(np.int64)


class Call:
    """What one call of a collective says, while its plan is made.

    Args:
        kind: operation. array: of the elements it carries, None for none.

    Raises:
        UsageError: an unknown keyword, a charge below 0. DtypeError: elements that cannot be carried.
    """

    def __init__(self, group: Group, kind: str, how: How, array: Array | None = None) -> None:
        self.group, self.kind, self.how = group, kind, how
        unknown = [name for name in how if name not in _KEYWORDS]
        if unknown:
            raise UsageError(f"{kind}: no keyword {unknown[0]!r}; there are {', '.join(sorted(_KEYWORDS))}")
        self.charge = how.get("charge_bytes")
        if self.charge is not None and not (is_whole(self.charge) and 0 <= self.charge < _MOST):
            text = f"{kind}: charge_bytes is {self.charge!r}, a whole number from 0 to {_MOST - 1} is needed"
            raise group.error(SizeError, text, self.charge)
        self.dtype = "" if array is None else dtype_of(array, how.get("dtype"), kind)
        self._note = (kind, 0, "", "")

    def priced(self, nbytes: int) -> int:
        """Bytes of a block as they are charged."""
        return nbytes if self.charge is None else int(self.charge)

    def priced_counts(self, counts: Int64, itemsize: int) -> Int64:
        """Bytes of blocks of unequal counts as they are charged."""
        return counts * self.priced(itemsize)

    def choose(self, nbytes: int) -> str:
        """Name of the algorithm: the caller's, the environment's or the selector's.

        Args:
            nbytes: priced, of what `select.choose` says.

        Raises:
            UsageError: an algorithm that this operation, or a group of these ranks, does not have.
        """
        group, kind = self.group, self.kind
        wanted, why = self.how.get("algorithm"), "asked for by the call"
        if wanted is None:
            wanted, why = environment(os.environ.get(ENVIRONMENT_KEY, "")).get(kind), ENVIRONMENT_KEY
        if wanted is None:
            apart = group.apart or bool(self.how.get("async_op"))
            wanted, why = _chosen(kind, nbytes, nodes_of(group), link_of(group), apart)
        name = checked(kind, wanted)
        if not applicable(kind, name, nodes_of(group)):
            raise UsageError(
                f"{kind}: two-level needs several nodes with equally many ranks of the group {group.name}, "
                f"more than one; nearest: {next(iter(ALGORITHMS[kind]))}"
            )
        self._note = (kind, nbytes, name, why)
        return name

    def flows(self, name: str, sizes: int | Int64 = 0, root: int = 0) -> list[Flow]:
        """The algorithm's flows for this rank."""
        group = self.group
        shape = Shape(group.size, group.rank, sizes, root, nodes_of(group), hop_of(group))
        flows = ALGORITHMS[self.kind][name](shape)
        if not group.timed:
            return flows
        return [
            as_schedule(group, flow, at) if isinstance(flow, Exchange) else flow
            for at, flow in enumerate(flows)
        ]

    def plan(
        self,
        name: str,
        phases: list[Phase],
        disagreement: Callable[[Work], str] | None = None,
        length: int = -1,
        counts: Int64 | None = None,
        op: str = "",
        root: int = -1,
        balance: int = 0,
    ) -> Plan:
        """The plan of this call."""
        descriptor = Descriptor(
            0, KINDS.index(self.kind), DTYPES.index(self.dtype) if self.dtype else -1, length,
            -1 if counts is None else zlib.crc32(counts.tobytes()), OPS.index(op) if op else -1, root,
            -1 if self.charge is None else self.charge, NAMES.index(name) + TIMED * self.group.timed, balance,
        )  # fmt: skip
        if _LOGGER.isEnabledFor(logging.INFO):
            _LOGGER.info("group %s: %s of %d bytes by %s (%s)", self.group.name, *self._note)
        return Plan.of(descriptor, name, phases, self._note, disagreement)

    def counts(self, name: str, values: Counts) -> Int64:
        """Counts of all ranks of the group, int64 [g], at least 0. Raises: SizeError."""
        counts = whole_numbers(self.group, self.kind, name, values)
        if counts.shape != (self.group.size,) or (counts.size and counts.min() < 0):
            text = f"{self.kind}: {name} must be {self.group.size} numbers of at least 0, got {values!r}"
            raise self.group.error(SizeError, text[:300], values)
        return counts

    def displacements(self, name: str, values: Counts | None, counts: Int64, room: int) -> Int64:
        """Where each rank's elements begin, dense by default, int64 [g]. Raises: SizeError, not within
        room."""
        if values is None:
            ends = np.cumsum(counts)
            starts = ends - counts
        else:
            starts = self.counts(name, values)
        past = np.flatnonzero((starts + counts > room) & (counts > 0))
        if past.size:
            first = int(past[0])
            text = (
                f"{self.kind}: elements {int(starts[first])} to {int(starts[first] + counts[first])} of rank "
                f"{first} are not within the {room} of the buffer ({name})"
            )
            raise self.group.error(SizeError, text, int(starts[first]))
        return starts

    def root(self, root: int) -> int:
        """The root. Raises: SizeError, no such rank."""
        if not is_whole(root) or not 0 <= root < self.group.size:
            last, name = self.group.size - 1, self.group.name
            text = f"{self.kind}: no root {root!r}; ranks of group {name} are 0 to {last}"
            raise self.group.error(SizeError, text, root)
        return int(root)


def nodes_of(group: Group) -> tuple[int, ...]:
    """Node of each member."""
    if group.nodes is None:
        topology = group.device.topology
        group.nodes = tuple(topology.node_of(member) for member in group.members)
    return group.nodes


def link_of(group: Group) -> Link:
    """The way between nodes, as estimates take it."""
    config = group.device.engine.config
    return Link(config.put_latency_ps[POD], config.write_bytes_per_s[POD])


def hop_of(group: Group) -> int:
    """Latency to another rank, the farthest, ps."""
    config, apart = group.device.engine.config, len(set(nodes_of(group))) > 1
    return int(config.put_latency_ps[POD if apart else NODE])


@lru_cache(maxsize=4096)
def _chosen(kind: str, nbytes: int, nodes: tuple[int, ...], link: Link, apart: bool) -> Choice:
    return (choose_async if apart else choose)(kind, nbytes, nodes, link)


@lru_cache(maxsize=64)
def environment(text: str) -> Any:
    """Overrides by the environment, read once."""
    return overrides(text)
