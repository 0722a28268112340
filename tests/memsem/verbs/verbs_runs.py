"""Start the rank programs of `programs/` and hand out what each case saw; a start is shared by all tests."""

import copy
import functools
import json
from pathlib import Path

from ranks import Ran, run_ranks

HERE = Path(__file__).parent
PROGRAM = """
import emulator
emulator.init()
import rig, {module}
cases = [case for case in {module}.CASES if case.__name__ not in {skip!r}]
rig.run_cases({{case.__name__: case for case in cases}}, report)
"""
URMA = """
import emulator
emulator.init()
import urma_cases
urma_cases.run_cases(report)
"""


@functools.cache
def start(module: str, num_ranks: int = 2, jitter: str = "", **config) -> Ran:
    """Run all cases of a module of `programs/`. Configuration as `run_ranks`; "" jitter is none."""
    text = URMA if module == "urma_cases" else PROGRAM.format(module=module, skip=())
    env = {"PYTHONPATH": f"{HERE / 'programs'}:{HERE.parents[2]}"}
    if jitter:
        env["SUPERPOD_JITTER"] = jitter
    return run_ranks(num_ranks, text, env=env, timeout_s=240, **config)


def seen(module: str, case: str, **config):
    """What side 0 and side 1 (...) saw in a case, as JSON has it; a copy, for the start is shared."""
    ran = start(module, **config)
    return copy.deepcopy([ran.reports[rank]["cases"][case]["seen"] for rank in sorted(ran.reports)])


def outcome(ran: Ran) -> str:
    """All that must not depend on the host, as text."""
    return json.dumps([ran.reports[rank] for rank in sorted(ran.reports)], sort_keys=True)
