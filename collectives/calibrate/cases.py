"""The published exchanges of expert parallelism: what was run, and which bytes its GB/s count. Pure.

All are DeepSeek-V3's: hidden 7,168, 256 experts, 8 a token; 128 tokens a rank ("low-latency") or 4,096
("normal"). Counted bytes, as the sources' own benchmarks count them, the rank's own share included:

    expert   one row for each (token, expert); low-latency kernels, and DeepEP-Ascend's normal ones
    rank     one row for each (token, distinct rank); DeepEP's normal kernel in one node
    node     one row for each (token, distinct node); DeepEP's normal kernel across nodes

Routing is each benchmark's own: scores |normal| + 1, the best 8 of 256; across nodes normal kernels of DeepEP
choose within the 4 nodes of the best single scores (`deepseek-ai/DeepEP tests/test_internode.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from collectives.libraries import LIBRARIES
from emulator.errors import UsageError
from emulator.profile import nearest

HIDDEN, EXPERTS, TOPK = 7168, 256, 8
LOW_LATENCY_TOKENS, NORMAL_TOKENS = 128, 4096
OPERATIONS: Final = ("dispatch", "combine")
MODES: Final = ("low-latency", "normal")
ASCEND: Final = "deepep-ascend"
_EXAMPLE, _MOST_TOKENS = "cann:dispatch:low-latency:64", 65_536
NODE_RANKS: Final = 8  # ranks of a node of h800-ib, the only machine with two hops
_BEST_NODES: Final = 4
_COUNTED_ROW: Final = {
    ("low-latency", "dispatch"): HIDDEN + 4 * HIDDEN // 128 + 16,
    ("normal", "dispatch"): HIDDEN + 4 * HIDDEN // 128,
    ("low-latency", "combine"): 2 * HIDDEN,
    ("normal", "combine"): 2 * HIDDEN,
}


@dataclass(frozen=True)
class Case:
    """One published exchange.

    Attributes:
        row: name of its row in us (low-latency) or GB/s (normal).
        twin: name of the row that gives the same measurement in GB/s, or "".
        library, operation, mode, ranks, tokens: what is run.
        counted: "expert", "rank" or "node".
    """

    row: str
    twin: str
    library: str
    operation: str
    mode: str
    ranks: int
    tokens: int
    counted: str

    @property
    def machine(self) -> str:
        """Profile it runs on."""
        return LIBRARIES[self.library][0]

    @property
    def row_bytes(self) -> int:
        """Bytes the source counts for one row."""
        return _COUNTED_ROW[self.mode, self.operation]

    @property
    def nodes(self) -> int:
        """Nodes of h800-ib it spans."""
        return -(-self.ranks // NODE_RANKS)

    @property
    def best_nodes(self) -> int:
        """How many nodes a token may choose from; 0 for all."""
        limited = self.counted == "node" and self.nodes > _BEST_NODES
        return _BEST_NODES if limited else 0


def _low_latency(prefix: str, library: str, ranks: tuple[int, ...]) -> list[Case]:
    return [
        Case(
            f"{prefix}{op}_lat.ep{n}", f"{prefix}{op}_bw.ep{n}", library, op, "low-latency", n, 128, "expert"
        )
        for n in ranks
        for op in OPERATIONS
    ]


def _normal(prefix: str, library: str, counted: dict[int, str]) -> list[Case]:
    return [
        Case(f"{prefix}{op}.ep{n}", "", library, op, "normal", n, NORMAL_TOKENS, what)
        for n, what in counted.items()
        for op in OPERATIONS
    ]


def parse_case(text: str) -> Case:
    """Read "LIBRARY:OPERATION:MODE:RANKS[:TOKENS]", an exchange as the published ones.

    Raises: UsageError, an unknown word, or ranks that the 256 experts do not fill evenly.
    """
    parts = text.split(":")
    if len(parts) not in (4, 5):
        raise UsageError(
            f"--case {text}: write library:operation:mode:ranks or with :tokens, e.g. {_EXAMPLE}"
        )
    library, operation, mode = parts[:3]
    for word, known in ((library, LIBRARIES), (operation, OPERATIONS), (mode, MODES)):
        if word not in known:
            raise UsageError(
                f"--case {text}: no {word!r}; choose of {', '.join(known)}{nearest(word, known)}"
            )
    ranks, tokens = _count(text, parts[3]), LOW_LATENCY_TOKENS if mode == MODES[0] else NORMAL_TOKENS
    tokens = _count(text, parts[4]) if len(parts) == 5 else tokens
    if ranks < 2 or EXPERTS % ranks or (ranks > NODE_RANKS and ranks % NODE_RANKS):
        raise UsageError(f"--case {text}: ranks must be 2, 4, 8, ... {EXPERTS}, got {ranks}")
    hops = "rank" if ranks <= NODE_RANKS else "node"
    counted = hops if mode == "normal" and library.startswith("deepep") and library != ASCEND else "expert"
    return Case(text, "", library, operation, mode, ranks, tokens, counted)


def _count(text: str, part: str) -> int:
    if not part.isdecimal() or not 0 < int(part) <= _MOST_TOKENS:
        raise UsageError(f"--case {text}: {part!r} is no whole number from 1 to {_MOST_TOKENS}")
    return int(part)


CASES: Final = (
    *_low_latency("cm.cann_ep.", "cann", (8, 256)),
    *_low_latency("sglnpu.ll.", "deepep-ascend", (8, 32)),
    *_normal("sglnpu.normal.", "deepep-ascend", dict.fromkeys((8, 16, 32, 128), "expert")),
    *_low_latency("deepep.v1.ll.", "deepep", (8, 16, 64, 256)),
    *_low_latency("deepep.legacy.ll.", "deepep-legacy", (8, 16, 64, 256)),
    *_normal("deepep.legacy.normal.", "deepep-legacy", {8: "rank", 16: "node", 64: "node"}),
)
