"""Rules of exchanges of groups and of unequal sizes matter: wrong ones, in either engine, are caught."""

import dataclasses
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from programs_groups import group_config, group_program
from test_against_oracle import differences
from test_broken_rules import broken_core

from emulator.engine import twin
from emulator.engine.twin_core import Core

pytestmark = pytest.mark.multirank
SEEDS = range(40)


class OwnGroup(Core):
    """A record counts as one of the group that its target has opened, not of the group it was sent in."""

    def arrived(self, slot, p, t, key):
        self.m.members = lambda slot, p: self.m.group(slot // 2, p)
        try:
            return super().arrived(slot, p, t, key)
        finally:
            del self.m.members


class FromMe(Core):
    """Records leave in the order of the group, not from me + 1 on."""

    def depart(self, slot, p, start, ranks, order):
        return super().depart(slot, p, start, ranks, np.sort(order))


BROKEN = {"OWN_GROUP": OwnGroup, "FROM_ME": FromMe}


def caught(module, **extra):
    """The first seed whose program shows the fault."""
    for seed in SEEDS:
        machine = dataclasses.replace(group_config(seed), wall_deadline_s=3.0)
        try:
            found, _ = differences(
                seed, ("broken",), module=module, machine=machine, program=group_program, **extra
            )
        except RuntimeError as error:  # a rank failed
            found = str(error)
        if found:
            return found
    return None


@pytest.mark.parametrize("rule", BROKEN)
def test_broken_twin_is_caught(rule, capfd):
    engine = type(rule, (twin.TwinEngine,), {"core_class": BROKEN[rule]})
    module = SimpleNamespace(engine_bytes=twin.engine_bytes, engine_create=twin.engine_create, attach=engine)
    assert caught(module)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize("rule", BROKEN)
def test_broken_core_is_caught(rule, tmp_path, capfd):
    module, extra = broken_core(rule, tmp_path)
    assert caught(module, **extra)
