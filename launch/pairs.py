"""Which ranks a benchmark of two dies needs: the nearest pair of the distance asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.errors import UsageError
from emulator.profile import load_profile

PAIRS = ("same-chip", "same-node", "cross-node")


def pair_ranks(pair: str, pod: str, settings: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the peer of rank 0 and the profile overrides that go with it.

    A pair across nodes is made by nodes of one chip (`pod.chips_per_node=1`): the price of a distance does
    not depend on how many dies a node has, and the idle ones between the two need not be started.

    Raises:
        UsageError: the machine has no such pair.
    """
    profile = load_profile(pod, settings)
    dies, chips, nodes = (
        profile.integer(f"pod.{key}") for key in ("dies_per_chip", "chips_per_node", "nodes")
    )
    exists = dict(zip(PAIRS, (dies > 1, chips > 1, nodes > 1), strict=True))
    if not exists[pair]:
        there = ", ".join(name for name, has in exists.items() if has) or "no pair at all"
        raise UsageError(f"--pair {pair}: pod {pod} has {there}")
    if pair == "cross-node":
        return dies, {**settings, "pod.chips_per_node": "1"}
    return (1 if pair == "same-chip" else dies), dict(settings)
