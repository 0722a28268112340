"""The sandbox fixtures."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from sandbox import Grounds, Sandbox


@pytest.fixture(scope="session")
def grounds() -> Iterator[Grounds]:
    """Fork servers that stay up for the tests of this process, and leave no trace when they go."""
    shared = Grounds()
    yield shared
    with Sandbox(shared) as last:
        last.grounds = None
        last.pids_dir.rmdir()
        last.assert_clean()


@pytest.fixture
def sandbox(grounds: Grounds) -> Iterator[Sandbox]:
    """A sandbox whose launches find a fork server that is up already."""
    with Sandbox(grounds) as s:
        yield s


@pytest.fixture
def alone() -> Iterator[Sandbox]:
    """A sandbox in which every launch starts from nothing."""
    with Sandbox() as s:
        yield s
