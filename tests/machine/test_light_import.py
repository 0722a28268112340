"""`import emulator` costs next to nothing, and its names are the functions whatever is imported first."""

import subprocess
import sys

import pytest

import emulator

SEEN = """
import sys
{first}
import emulator
print(*(name for name in ("numpy", "mpi4py", "pydantic", "emulator.context") if name in sys.modules))
assert callable(emulator.device) and emulator.device.__module__ == "emulator.context", emulator.device
from emulator.device import Device
import emulator.device
assert emulator.Device is Device and emulator.device.__name__ == "device"
assert set(dir(emulator)) >= {{"errors"}} and all(getattr(emulator, name) for name in emulator.__all__)
assert not hasattr(emulator, "no_such_name")
"""


@pytest.mark.parametrize(
    ("first", "loaded"), [("", ""), ("import emulator.config", ""), ("import emulator.device", "numpy")]
)
def test_the_package_is_light_and_device_a_function(first: str, loaded: str) -> None:
    """Mutations that fail: import `emulator.context` at the top; leave out `_Machine.__setattr__`."""
    done = subprocess.run(
        [sys.executable, "-c", SEEN.format(first=first)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:1] == loaded.split()


def test_an_error_looked_for_in_the_package_is_said_to_be_in_errors() -> None:
    """Fails where the AttributeError does not say where the name is."""
    with pytest.raises(AttributeError, match=r"no attribute 'RankLostError'; it is emulator\.errors\."):
        _ = emulator.RankLostError
