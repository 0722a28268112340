"""What a dispatch or a combine costs besides the bytes: library work around the emulated fabric.

One exchange, as every rank sees it (arXiv 2508.02520v6 3.2):

    start_ps          launch, layout, own rows quantised or copied               charged before posting
    metadata          one record to every rank, then all records awaited         the emulated fabric
    pull_start_ps     scalar work on one record a rank, in-situ overhead         before the first pull
    pull              rows of each source, issues record_ps apart                the emulated fabric

Prices are those of `collectives.libraries`, the numbers `superpod calibrate` measures with.
`estimate_ps` is the same in closed form for uniform routing; it checks the emulation, and nothing is
charged by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from collectives.libraries import Library, charges, keys_of, load_library
from emulator.errors import UsageError
from emulator.npu import ceil_ps
from emulator.profile import Profile, nearest
from emulator.topology import Topology, put_latency_ps, read_bytes_per_s, write_bytes_per_s

LIBRARY: Final = "xccl"
"""Whose exchanges a step is charged; `xccl.KEY` overrides a number of its file."""
_KEYS: Final = {f"{LIBRARY}.{key.partition('.')[2]}": key for key in keys_of(LIBRARY)}


@dataclass(frozen=True)
class ExchangeCosts:
    """One operation's costs for one rank; times in ps, sizes in bytes."""

    start_ps: int
    pull_start_ps: int
    record_ps: int
    row_bytes: int
    meta_bytes: int
    round_ps: int
    """Latency of the metadata round and the pull, which a layer standing for k layers must pay k times."""

    def repeated(self, layers: int) -> "ExchangeCosts":
        """Return the costs of one executed exchange that stands for `layers` priced ones: everything times
        `layers`, the fabric's latencies included, which the fabric itself adds only once."""
        return replace(
            self,
            start_ps=self.start_ps * layers,
            pull_start_ps=self.pull_start_ps * layers + self.round_ps * (layers - 1),
            record_ps=self.record_ps * layers,
            row_bytes=self.row_bytes * layers,
            meta_bytes=self.meta_bytes * layers,
        )


def is_library_key(key: str) -> bool:
    """Whether an override is of the library's numbers, not of machine or model."""
    return key.startswith(f"{LIBRARY}.")


def priced_library(overrides: Mapping[str, str | float]) -> Library:
    """The library, with those overrides that are its. Raises: UsageError, it has no such number."""
    found = {}
    for key, value in overrides.items():
        if is_library_key(key):
            if key not in _KEYS:
                raise UsageError(f"no number {key!r} of {LIBRARY}{nearest(key, _KEYS)}")
            found[_KEYS[key]] = value
    return load_library(LIBRARY, found)


def exchange_costs(
    library: Library, profile: Profile, operation: str, num_ranks: int, hidden: int, rows: int
) -> ExchangeCosts:
    """Return the costs of one exchange inside a model's step.

    Args:
        library: whose exchange it is, see `collectives.libraries`.
        profile: the machine.
        operation: "dispatch" or "combine".
        num_ranks: ranks that exchange records.
        hidden: values of a row.
        rows: rows this rank makes ready before it announces them: quantised (dispatch), copied (combine).
    """
    found = charges(
        library, profile, operation, ranks=num_ranks, hidden=hidden, topk=1, tokens=rows, in_situ=True
    )
    farthest = Topology.from_profile(profile, num_ranks).link_class(0, num_ranks - 1)
    round_ps = 2 * put_latency_ps(profile)[farthest]
    return ExchangeCosts(
        found.start_ps, found.pull_start_ps, found.record_ps, found.row_bytes, found.meta_bytes, round_ps
    )


def estimate_ps(profile: Profile, costs: ExchangeCosts, num_ranks: int, rows: int) -> int:
    """Return the time of one exchange under uniform routing, in closed form.

    Every rank starts at once, sends `rows` and receives `rows`, spread evenly over all ranks, itself
    included. The pull ends when the ingress port has taken all bytes, or when the last pull has been issued
    and answered. Left out: queueing where sources are unevenly loaded, which only the emulation shows.

    Args:
        costs: of one executed exchange.
        num_ranks: ranks that exchange.
        rows: rows each rank receives.
    """
    classes = np.bincount(Topology.from_profile(profile, num_ranks).classes(0), minlength=4)
    ports = [int(count) for count in classes]
    meta_ps = _port_ps(ports, write_bytes_per_s(profile), costs.meta_bytes)
    per_source = -(-rows * costs.row_bytes // num_ranks)
    pull_ps = _port_ps(ports, read_bytes_per_s(profile), per_source)
    sources = min(rows, num_ranks)
    issue_ps = costs.record_ps * max(0, sources - 1)
    return costs.start_ps + meta_ps + costs.pull_start_ps + max(pull_ps, issue_ps) + costs.round_ps


def _port_ps(ports: list[int], bytes_per_s: tuple[int, ...], num_bytes: int) -> int:
    """Return how long one UB port is busy with `num_bytes` from each peer; the die's own copy uses none."""
    busy = sum(
        count * ceil_ps(num_bytes, rate) for count, rate in zip(ports[1:], bytes_per_s[1:], strict=True)
    )
    return max(busy, ceil_ps(num_bytes, bytes_per_s[0]))
