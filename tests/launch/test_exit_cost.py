"""A rank's end copies little: torch's import is not taken apart at exit, what the program wants is done."""

from pathlib import Path

import pytest
from sandbox import Sandbox

PROGRAM = """
import atexit, resource, weakref

class Thing: pass

thing = Thing()
weakref.finalize(thing, print, "finalized")

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def at_the_end(before):
    print("pages copied:", faults() - before)

import torch
real = atexit._run_exitfuncs
def run():
    before = faults()
    real()
    at_the_end(before)
atexit._run_exitfuncs = run
"""


@pytest.mark.multirank
@pytest.mark.timeout(60)
def test_exit_handlers_of_imports_copy_little(sandbox: Sandbox, tmp_path: Path) -> None:
    program = tmp_path / "end.py"
    program.write_text(PROGRAM)
    result = sandbox.run(sandbox.superpod(1, str(program)))
    lines = result.stdout.splitlines()
    assert lines[0] == "finalized", result
    assert int(lines[1].split(":")[1]) < 1500
