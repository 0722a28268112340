"""The sandbox fixtures."""

import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from sandbox import Grounds, Sandbox

_FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def grounds() -> Iterator[Grounds]:
    """Fork servers that stay up for the tests of this process, and leave no trace when they go."""
    shared = Grounds()
    yield shared
    with Sandbox(shared) as last:
        last.grounds = None
        last.pids_dir.rmdir()
        last.assert_clean()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call":
        item.stash[_FAILED] = report.failed
    return report


@pytest.fixture
def sandbox(grounds: Grounds, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox whose launches find a fork server that is up already."""
    with Sandbox(grounds) as s:
        yield s
    if request.node.stash.get(_FAILED, True):
        s.clear()


@pytest.fixture
def alone() -> Iterator[Sandbox]:
    """A sandbox in which every launch starts from nothing."""
    with Sandbox() as s:
        yield s
