"""From what ranks measured to one table: times, transactions, bytes, what bound it, and who wins where. Pure.

Also what the transactions of a dispatch must be (`predicted_dispatch`): the memory path stores one flag per
message and nothing else; verbs take a work request, a doorbell's share, a receive and two completions; a
message is matched and copied, or matched and shaken hands over. Source: the contracts of docs/design.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from emulator.clock import time_said

PATHS = ("mem", "verbs", "mpi")
NAMES = {"mem": "memory windows", "verbs": "verbs queues", "mpi": "MPI messages"}
BOUND_SHARE = 0.5
TURNS_SHARE = 0.8
"""A port that is busy for at least the first share of the time binds the run; or both ports of a die that are
busy in turn, as in a ping-pong, for the second. Else latency does."""


@dataclass(frozen=True)
class Measured:
    """One path at one size, all ranks together.

    Attributes:
        path, size: of `PATHS`; bytes of a message (dispatch: of a row).
        virtual_ps: from the first rank's begin to the last rank's end.
        payload_bytes, control_bytes: charged to links: what the program sent, and all the rest.
        control_each: control bytes that the path's contract puts on links for each message.
        transactions: by kind, all ranks.
        host_calls: calls of the program into the path, all ranks.
        bound_by: a port or unit with its busy share, or "latency".
        digests: sha256 of each rank's result.
        messages: messages of all ranks; message_bytes: the largest of them.
    """

    path: str
    size: int
    virtual_ps: int
    payload_bytes: int
    control_bytes: int
    transactions: Mapping[str, int]
    host_calls: int
    bound_by: str
    digests: tuple[str, ...]
    messages: int = 0
    message_bytes: int = 0
    control_each: int = 0

    @property
    def gb_per_s(self) -> float:
        """Payload of all ranks over virtual time, GB/s (10^9)."""
        return self.payload_bytes * 1e3 / self.virtual_ps if self.virtual_ps else 0.0


@dataclass(frozen=True)
class Comparison:
    """All measurements of one `superpod compare`.

    Attributes:
        labels: by path, where its numbers come from.
        clock: `virtual_duration_s` of the run, and `wall` if it had the wall clock.
    """

    op: str
    num_ranks: int
    rows: tuple[Measured, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    clock: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes measured, ascending."""
        return tuple(sorted({row.size for row in self.rows}))

    def at(self, size: int) -> list[Measured]:
        """The paths at one size, in the order of `PATHS`."""
        return sorted((r for r in self.rows if r.size == size), key=lambda r: PATHS.index(r.path))

    def of(self, path: str) -> list[Measured]:
        """One path at all sizes."""
        return sorted((r for r in self.rows if r.path == path), key=lambda r: r.size)

    def winner(self, size: int) -> str:
        """The path with the least virtual time at a size."""
        return min(self.at(size), key=lambda row: row.virtual_ps).path

    def unequal(self) -> list[str]:
        """What differs between paths and must not: results by rank, payload bytes. Empty if all is well."""
        found = []
        for size in self.sizes:
            first, *others = self.at(size)
            for row in others:
                pairs = enumerate(zip(first.digests, row.digests, strict=True))
                wrong = [rank for rank, (one, other) in pairs if one != other]
                if wrong:
                    found.append(
                        f"size {size}: results of {row.path} differ from {first.path} on ranks {wrong}"
                    )
            for row in (first, *others):
                meant = row.messages * row.control_each
                if row.payload_bytes != first.payload_bytes or row.control_bytes != meant:
                    links = f"{row.payload_bytes} payload and {row.control_bytes} control bytes on links"
                    found.append(
                        f"size {size}: {row.path} put {links}, not {first.payload_bytes} and {meant}"
                    )
        return found

    def winning_sizes(self) -> dict[str, str]:
        """For each path the sizes at which it wins, as text: `8 to 64 B, 1 MiB`; "none" without any."""
        return {path: _spans([(s, self.winner(s) == path) for s in self.sizes]) for path in PATHS}

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        rows = [
            {**asdict(r), "bandwidth_GBps": r.gb_per_s, "latency_us": r.virtual_ps / 1e6} for r in self.rows
        ]
        return {
            "op": self.op,
            "ranks": self.num_ranks,
            "byte_equal": not self.unequal(),
            "labels": dict(self.labels),
            "wins": self.winning_sizes(),
            "rows": rows,
            **self.clock,
        }


def bytes_text(size: int) -> str:
    """A size with its unit: 512 B, 64 KiB, 16 MiB."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def _spans(flags: Sequence[tuple[int, bool]]) -> str:
    spans: list[list[int]] = []
    before = False
    for size, wins in flags:
        if wins:
            if before:
                spans[-1].append(size)
            else:
                spans.append([size])
        before = wins
    ends = [(bytes_text(span[0]), bytes_text(span[-1])) for span in spans]
    return ", ".join(a if a == b else f"{a} to {b}" for a, b in ends) or "none"


def table(comparison: Comparison) -> Table:
    """The table that `superpod compare` prints."""
    wins = ", ".join(f"{NAMES[path]}: {sizes}" for path, sizes in comparison.winning_sizes().items())
    labels = "; ".join(f"{path} {label}" for path, label in comparison.labels.items())
    wall = comparison.clock.get("wall")
    emulated = "virtual µs" if wall is None else "emulated µs"
    result = Table(
        title=f"compare {comparison.op}, {comparison.num_ranks} ranks ({time_said(wall)})",
        caption=f"Fastest (*): {wins}" + (f". Numbers: {labels}" if labels else ""),
    )
    for name in (
        "size",
        "path",
        emulated,
        "GB/s",
        "transactions",
        "payload B",
        "control B",
        "calls",
        "bound by",
    ):
        numeric = name in ("size", emulated, "GB/s", "payload B", "control B", "calls")
        result.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for size in comparison.sizes:
        best = comparison.winner(size)
        for row in comparison.at(size):
            result.add_row(*_cells(row, row.path == best), style="bold" if row.path == best else None)
        result.add_section()
    return result


def _cells(row: Measured, wins: bool) -> list[str]:
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(row.transactions.items())) or "none"
    numbers = f"{row.virtual_ps / 1e6:.3f}", f"{row.gb_per_s:.3f}", kinds
    bytes_ = f"{row.payload_bytes}", f"{row.control_bytes}", f"{row.host_calls}"
    return [bytes_text(row.size), row.path + (" *" if wins else ""), *numbers, *bytes_, row.bound_by]


def bound_by(busy_ps: Sequence[Sequence[int]], names: Sequence[str], elapsed_ps: int) -> str:
    """Name what binds a run: the port or unit that is busy longest, if for `BOUND_SHARE` of the time; else a
    die's two ports of one plane, if in turn they are busy for `TURNS_SHARE`; else "latency".

    Args:
        busy_ps: [ranks][ports] busy time within the span.
        names: of the ports; "<plane> egress" is followed by "<plane> ingress".
        elapsed_ps: length of the span.
    """
    single = max(((ps, r, p) for r, row in enumerate(busy_ps) for p, ps in enumerate(row)), default=(0, 0, 0))
    egress = [p for p, name in enumerate(names) if name.endswith("egress")]
    double = max(
        ((row[p] + row[p + 1], r, p) for r, row in enumerate(busy_ps) for p in egress), default=(0, 0, 0)
    )
    if elapsed_ps and single[0] / elapsed_ps >= BOUND_SHARE:
        return f"{names[single[2]]} of rank {single[1]} ({single[0] / elapsed_ps:.0%})"
    if elapsed_ps and double[0] / elapsed_ps >= TURNS_SHARE:
        ports = f"{names[double[2]]} and ingress"
        return f"{ports} of rank {double[1]} ({double[0] / elapsed_ps:.0%})"
    return "latency"


def predicted_dispatch(num_ranks: int, sizes: Sequence[int], eager_bytes: int) -> dict[str, dict[str, int]]:
    """Transactions of a dispatch by path, from its message sizes alone.

    Args:
        num_ranks: n; every rank sends one message to every rank, itself included.
        sizes: bytes of all n * n messages.
        eager_bytes: largest message that travels with its envelope.
    """
    messages = num_ranks * num_ranks
    eager = sum(size <= eager_bytes for size in sizes)
    mpi = {"match": messages, "copy": eager, "handshake": 3 * (messages - eager)}
    return {
        "mem": {"flag": messages},
        "verbs": {"descriptor": 2 * messages, "completion": 2 * messages},
        "mpi": {kind: count for kind, count in mpi.items() if count},
    }
