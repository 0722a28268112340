"""A test's run that does not end says who waits for whom, and nothing of it is left."""

import os
from pathlib import Path

import pytest
from ranks import run_ranks
from sandbox import wait_for

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(120)]

STUCK = """
import time, emulator
device = emulator.init()
def wait_for_the_other():
    device.barrier()
if device.rank:
    time.sleep(1000)
wait_for_the_other()
"""


def running(mark: str) -> list[str]:
    """Other processes whose directory is `mark`."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cwd").readlink() == Path(mark) and int(path.name) != os.getpid():
                found.append(path.joinpath("stat").read_text()[:200])
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    "launcher", ["fork", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("rank", "plain"))]
)
def test_the_error_names_what_each_process_does(launcher, tmp_path, monkeypatch):
    """Ranks of a shared fork server are no children of the command and are ended with it; shown to fail for
    "plain" where only the command's process group is killed (mpirun gives each rank its own)."""
    monkeypatch.chdir(tmp_path)
    segments = {"OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}  # a killed plain run leaves them
    run_ranks(2, "import emulator; emulator.init()", launcher=launcher, env=segments)  # imports now
    with pytest.raises(AssertionError, match="did not end in 15 s") as caught:
        run_ranks(
            2, STUCK, launcher=launcher, timeout_s=15, env=segments, engine="python", wall_deadline_s=600
        )
    text = str(caught.value)
    assert "in wait_for_the_other" in text and "in _sleep_until_woken" in text, text
    assert "prterun" in text and "hrtimer_nanosleep" in text, text
    wait_for(lambda: not running(str(tmp_path)))
