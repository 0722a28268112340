"""Makes `ranks` importable: pytest puts the folder of this file on the path. Long modules come first."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("SUPERPOD_WARM", "1")  # runs fork their server from one that stays up between tests
os.environ.setdefault("SUPERPOD_IDLE_S", "20")

LONGEST = (
    "launch/test_death.py",
    "test_determinism.py",
    "serving/test_replay.py",
    "launch/test_like_python.py",
    "launch/test_forkserver.py",
    "test_monotone.py",
    "engine/test_against_oracle.py",
    "launch/test_build.py",
    "launch/test_errors.py",
    "collectives/test_moe.py",
)
"""Modules of more than half a minute, the longest first, so that none of them runs alone at the end (needs
`--no-loadscope-reorder`)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stable: within a module, and among the modules that are not long, the order stays."""
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.split("::")[0].removeprefix("tests/"), len(LONGEST)))
