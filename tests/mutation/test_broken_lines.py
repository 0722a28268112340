"""Every broken build names a line that its file has, so that the tool can run at any time."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from broken_builds import BUILDS, ROOT

pytestmark = pytest.mark.sweep


def test_every_broken_build_changes_something() -> None:
    assert len({build.name for build in BUILDS}) == len(BUILDS) >= 40
    for build in BUILDS:
        text = (ROOT / build.file).read_text()
        assert build.line in text and build.line != build.wrong, build.name
        assert (ROOT / build.test.partition(" ")[0]).exists(), build.name
