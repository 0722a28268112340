"""DeepSeek's expert balancing: groups to nodes, replicas inside a node, replicas to dies.

Three steps, each of which keeps what the one before decided: whole groups of experts are packed on nodes, so
that group-limited routing stays inside few nodes; each node's free slots go to the experts whose replicas are
heaviest; the replicas of a node are packed on its dies. Packing is greedy: heaviest first, into the lightest
pack that still has room. With groups that do not divide among the nodes, all is one node and one group.

Source: deepseek-ai/EPLB, README (the example there is the golden test).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emulator.errors import UsageError

__all__ = ["pack", "rebalance", "replicate"]

Loads = NDArray[np.float64]
Table = NDArray[np.int64]


def pack(loads: Loads, packs: int) -> Table:
    """Pack items into `packs` packs of equally many.

    Args:
        loads: float64 [items], packs divides their number.

    Returns:
        int64 [packs, items / packs], the items of each pack in the order they were put there.
    """
    room = len(loads) // packs
    held: list[list[int]] = [[] for _ in range(packs)]
    weight = np.zeros(packs)
    for item in np.argsort(-loads, kind="stable"):
        open_packs = [i for i in range(packs) if len(held[i]) < room]
        lightest = min(open_packs, key=lambda i: weight[i])
        held[lightest].append(int(item))
        weight[lightest] += loads[item]
    return np.array(held, np.int64)


def replicate(loads: Loads, slots: int) -> tuple[Table, Table]:
    """Give `slots` physical replicas to the experts: one each, then one more to whose replicas are heaviest.

    Returns:
        (int64 [slots] expert of each replica, int64 [experts] replicas of each expert).
    """
    experts = list(range(len(loads)))
    count = np.ones(len(loads), np.int64)
    while len(experts) < slots:
        heaviest = int((loads / count).argmax())
        experts.append(heaviest)
        count[heaviest] += 1
    return np.array(experts, np.int64), count


def rebalance(loads: Loads, replicas: int, groups: int, nodes: int, dies: int) -> Table:
    """Return int64 [replicas]: the logical expert in each physical slot of one layer, die by die.

    Args:
        loads: float64 [experts].
        replicas: physical slots in all; equally many on each die.
        groups: groups of experts, consecutive and equal; nodes, dies: in all.

    Raises:
        UsageError: numbers that do not divide each other.
    """
    _check(len(loads), replicas, groups, nodes, dies)
    if groups % nodes:
        groups = nodes = 1
    size = len(loads) // groups
    packed = pack(loads.reshape(groups, size).sum(axis=1), nodes)
    slots: list[int] = []
    for node_groups in packed:
        members = (node_groups[:, None] * size + np.arange(size)).ravel()
        experts, count = replicate(loads[members], replicas // nodes)
        on_dies = pack(loads[members][experts] / count[experts], dies // nodes)
        slots.extend(int(members[experts[slot]]) for slot in on_dies.ravel())
    return np.array(slots, np.int64)


def _check(experts: int, replicas: int, groups: int, nodes: int, dies: int) -> None:
    for what, many, among, of in (
        ("experts", experts, "groups", groups),
        ("replicas", replicas, "dies", dies),
        ("dies", dies, "nodes", nodes),
        ("replicas", replicas, "nodes", nodes),
    ):
        if of < 1 or many % of:
            raise UsageError(f"{many} {what} are not shared equally by {of} {among}")
    if replicas < experts:
        raise UsageError(f"{replicas} replicas for {experts} experts: at least one each")
