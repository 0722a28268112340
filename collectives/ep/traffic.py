"""Which bytes each scheme puts on which link: closed forms, pure.

Letters as in the systems list: R ranks, S tokens of a rank, K choices, E experts. `pairs[t]`: pairs of mine
for rank t; `ranks[t]`: distinct tokens of mine for rank t (0 to S); `nodes[m]`: for node m. b is the row's
charged bytes, m that of a metadata record.

    scheme       dispatch, rank s to rank t                    combine, rank t to owner s
    xccl         m push, then pull of pairs[t] * b             m push, then pull of pairs * b
    cann         one push of m + pairs[t] * b                  one push of m + pairs * b
    deepep-ll    one push of m * E/R + pairs[t] * b            one push of m * E/R + pairs * b
    all-to-all   m push (counts), then push of pairs[t] * b    one push of pairs * b
    agrs         one push of m + S_s * b                       one push of S_s * b
    deepep       m push (counts; 4 where cached), then         4 push (barrier), then
                 nodes[m'] * b to the forwarder on node m'     rows by (token, rank) to the forwarder on
                 and from there ranks[t] * b                   my node, then nodes[m'] * b to the owner

All pushes go to every rank, the own one included (its local port, link class SELF), zero rows included.
Source: facts A2, D1, D2, D4; CANN fused operators 6.8 of the numbers list.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.ep.layout import Layout, Nodes
from collectives.moe import OperationCosts
from emulator.errors import UsageError

SCHEMES = ("xccl", "cann", "deepep", "deepep-ll", "all-to-all", "agrs")
FLAG_BYTES = 4
"""A record that only says "I am here": the barrier of DeepEP's normal kernels when counts are known."""
LEVELS = {"deepep": "rank", "agrs": "token"}
"""Level of a scheme's dispatch records; "pair" where not named."""
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


class Spread(NamedTuple):
    """How one rank's rows spread; int64 [R], int64 [R], int64 [N], number of tokens."""

    pairs: Int64
    ranks: Int64
    nodes: Int64
    tokens: int


class Opening(NamedTuple):
    """The first exchange of an operation. `sizes`: int64 [R] bytes of my record to each rank, or None: all
    `meta_bytes`. `pulls`: int32 [R] rows each rank pulls from me, or None. start_ps: computing before it."""

    start_ps: int
    meta_bytes: int
    sizes: Int64 | None
    pulls: Int32 | None
    row_bytes: int
    pull_start_ps: int
    record_ps: int


def check_scheme(scheme: str) -> None:
    """Raises: UsageError, no such scheme."""
    if scheme not in SCHEMES:
        raise UsageError(f"scheme {scheme!r} is not one of {', '.join(SCHEMES)}")


def check_planes(planes: tuple[int, ...]) -> None:
    """Raises: UsageError, not a plane (0 to 2: UB, RDMA, VPC) for each of the four link classes."""
    if len(planes) != 4 or any(plane not in (0, 1, 2) for plane in planes):
        raise UsageError(f"planes: 0, 1 or 2 for each of self, chip, node and pod, got {tuple(planes)}")


def whole(what: str, value: object, least: int = 1) -> int:
    """Return a whole number. Raises: UsageError, it is none, or less than `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise UsageError(f"{what} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def spread_of(layout: Layout, nodes: Nodes, slots: int) -> Spread:
    """Return how a layout's rows spread."""
    pairs = layout.tokens_per_expert.reshape(-1, slots).sum(axis=1, dtype=np.int64)
    ranks = layout.tokens_per_rank.astype(np.int64)
    tokens = layout.is_token_in_rank.shape[0]
    if layout.tokens_per_node is None:
        whole = np.array([np.count_nonzero(layout.is_token_in_rank.any(axis=1))], np.int64)
        return Spread(pairs, ranks, whole, tokens)
    return Spread(pairs, ranks, layout.tokens_per_node.astype(np.int64), tokens)


def open_dispatch(
    scheme: str, mine: Spread, costs: OperationCosts, slots: int, cached: bool = False
) -> Opening:
    """Return the first exchange of a dispatch."""
    b, m = costs.row_bytes, costs.meta_bytes
    if scheme == "xccl":
        return _pull(mine.pairs, costs)
    if scheme == "cann":
        return _push(m + mine.pairs * b, costs)
    if scheme == "deepep-ll":
        return _push(m * slots + mine.pairs * b, costs)
    if scheme == "agrs":
        return _push(np.full(mine.pairs.size, m + mine.tokens * b, np.int64), costs)
    return _records(FLAG_BYTES if cached else m, costs)


def open_combine(scheme: str, received: Int64, tokens: Int64, costs: OperationCosts, slots: int) -> Opening:
    """Return the first exchange of a combine.

    Args:
        received: int64 [R], pairs I hold of each owner. tokens: int64 [R], tokens each owner dispatched.
    """
    b, m = costs.row_bytes, costs.meta_bytes
    if scheme == "xccl":
        return _pull(received, costs)
    if scheme == "cann":
        return _push(m + received * b, costs)
    if scheme == "deepep-ll":
        return _push(m * slots + received * b, costs)
    if scheme == "all-to-all":
        return _push(received * b, costs)
    if scheme == "agrs":
        return _push(tokens * b, costs)
    return _records(FLAG_BYTES, costs)


def _pull(rows: Int64, costs: OperationCosts) -> Opening:
    return Opening(
        costs.start_ps, costs.meta_bytes, None, rows.astype(np.int32), costs.row_bytes, costs.pull_start_ps,
        costs.record_ps,
    )  # fmt: skip


def _push(sizes: Int64, costs: OperationCosts) -> Opening:
    """What is done after the last row is in (flags, sums) is `pull_start_ps`; `record_ps` is of pulls."""
    return Opening(costs.start_ps, 0, sizes.astype(np.int64), None, 0, costs.pull_start_ps, 0)


def _records(nbytes: int, costs: OperationCosts) -> Opening:
    return Opening(costs.start_ps, nbytes, None, None, 0, costs.pull_start_ps, 0)


class Stage(NamedTuple):
    """Puts of one stage: targets int64 [P] (group ranks), bytes int64 [P]; how many signals I get of each
    piece; whether they go to other nodes."""

    targets: Int64
    nbytes: Int64
    expected: int
    far: bool


def dispatch_stages(me: int, nodes: Nodes, ranks: Int64, mine: Int64, b: int) -> tuple[Stage, Stage]:
    """Two hops of DeepEP's normal dispatch.

    Args:
        me: my rank in the group. ranks: int64 [R, R], distinct tokens of rank s for rank t.
        mine: int64 [N], distinct tokens of mine for each node. b: bytes of a row.

    Returns:
        mine to the forwarders on other nodes; then what I forward, mine included, to the ranks of my node.
    """
    here = int(nodes.node[me])
    other = np.flatnonzero(np.arange(nodes.count) != here)
    through_me = nodes.forwarder[:, here] == me
    mates = np.flatnonzero(nodes.node == here)
    forwarded = ranks[through_me][:, mates].sum(axis=0)
    far = int(np.count_nonzero(through_me & (nodes.node != here)))
    first = Stage(nodes.forwarder[me, other], mine[other] * b, far, True)
    return first, Stage(mates, forwarded * b, mates.size, False)


def combine_stages(me: int, nodes: Nodes, held: Int64, on_node: Int64, b: int) -> tuple[Stage, Stage]:
    """Two hops of DeepEP's normal combine, the other way round.

    Args:
        held: int64 [R], distinct tokens of each owner that I hold. on_node: int64 [R], distinct tokens of
            each owner on my node.

    Returns:
        my rows to the forwarders of my node; then the sums of my node to the owners I forward for.
    """
    here = int(nodes.node[me])
    mates = np.flatnonzero(nodes.node == here)
    forwarder = nodes.forwarder[:, here]
    near = np.bincount(forwarder, weights=held, minlength=nodes.node.size).astype(np.int64)[mates]
    owners = np.flatnonzero((forwarder == me) & (nodes.node != here))
    second = Stage(owners, on_node[owners] * b, nodes.count - 1, True)
    return Stage(mates, near * b, mates.size, False), second


def cut(nbytes: Int64, chunks: int) -> Int64:
    """Return int64 [chunks, P], bytes cut into chunks as evenly as whole bytes allow."""
    edges = nbytes[None, :] * np.arange(chunks + 1)[:, None] // chunks
    return np.diff(edges, axis=0)


def low_latency_row(hidden: int, fp8: bool = True) -> int:
    """Bytes of a row of DeepEP's low-latency dispatch: 16 of header, the values, their scales."""
    return 16 + hidden + 4 * (-(-hidden // 128)) if fp8 else 16 + 2 * hidden


def low_latency_buffer(max_tokens: int, hidden: int, ranks: int, experts: int) -> int:
    """Bytes a rank's low-latency buffers take: for dispatch E * max_tokens messages, sent and received, for
    combine the same, all doubled. (DeepEP `LowLatencyLayout`; the larger of fp8 and bf16 messages.)

    Raises:
        UsageError: the experts do not divide among the ranks.
    """
    row = 16 + 2 * hidden
    if experts % ranks:
        raise UsageError(f"{experts} experts do not divide among {ranks} ranks")
    return -(-2 * 2 * experts * max_tokens * row // 128) * 128
