"""Work in a helper process waits for its start, tells what went wrong, and ends with the command."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox import Sandbox, wait_for

from emulator.errors import SuperpodError, UsageError
from launch import osproc, paths
from launch.helper import Helper


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[paths.RunDirectory]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    directory = paths.RunDirectory()
    yield directory
    directory.remove()
    os.close(directory.lock_fd)


def fail() -> None:
    raise UsageError("no such tensor", tensor="x")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_it_waits_for_its_start(own: paths.RunDirectory) -> None:
    done = own.path / "done"
    with Helper("the helper", own, done.touch) as helper:
        time.sleep(0.3)
        assert not done.exists()
        helper.start()
        wait_for(done.exists)
        helper.start()
        helper.wait()


def test_waiting_starts_it(own: paths.RunDirectory) -> None:
    done = own.path / "done"
    with Helper("the helper", own, done.touch) as helper:
        helper.wait()
    assert done.exists()


def test_its_error_is_raised_here(own: paths.RunDirectory) -> None:
    with Helper("the helper", own, fail) as helper, pytest.raises(UsageError, match="no such tensor") as e:
        helper.wait()
    assert e.value.fields == {"tensor": "x"}


@pytest.mark.parametrize(("work", "code"), [(die, -9), (lambda: sys.exit(3), 3)])
def test_a_bad_end_is_an_error(own: paths.RunDirectory, work: object, code: int) -> None:
    with Helper("the helper", own, work) as helper:  # type: ignore[arg-type]
        with pytest.raises(SuperpodError, match=f"the helper ended with exit code {code}"):
            helper.wait()


@pytest.mark.parametrize("started", [False, True])
def test_it_ends_with_the_block(own: paths.RunDirectory, started: bool) -> None:
    before = set(osproc.children([os.getpid()]))
    with pytest.raises(KeyboardInterrupt), Helper("the helper", own, signal.pause) as helper:
        if started:
            helper.start()
        assert set(osproc.children([os.getpid()])) - before
        raise KeyboardInterrupt
    assert not set(osproc.children([os.getpid()])) - before


PARENT = """
import os, signal
from launch import osproc, paths
from launch.helper import Helper

signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background has it ignored
with Helper("the helper", paths.RunDirectory(), signal.pause) as helper:
    helper.start()
    print(*osproc.children([os.getpid()]), flush=True)
    helper.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_parent(
    sandbox: Sandbox, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes to both; the others to the parent alone."""
    parent = sandbox.popen([sys.executable, "-c", PARENT], start_new_session=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    (os.killpg if number == signal.SIGINT else os.kill)(parent.pid, number)
    _, error = parent.communicate(timeout=60)
    assert error.count("Traceback") == (number == signal.SIGINT), error
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    monkeypatch.setenv("TMPDIR", str(sandbox.tmp))
    paths.sweep()  # nobody removed its directory
