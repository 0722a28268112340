"""Every rule of the engine matters: eight wrong ones, in either engine, are caught by the oracle."""

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace

import programs
import pytest
import test_against_oracle
from builds import broken_library

from emulator.engine import native, twin
from emulator.engine.twin_core import Core
from emulator.engine.twin_events import S_TIMEOUT, key_of

SEEDS = range(120)


class LookaheadTooLong(Core):
    def final(self, t, p, low):
        return t < self.m.bound[p] and t <= low + self.m.look[p]


class OwnBoundIgnored(Core):
    def final(self, t, p, low):
        return t < low + self.m.look[p]


class HostOrder(Core):
    """Whatever is there is processed when somebody enters."""

    def final(self, t, p, low):
        return True


class TimeoutFirst(Core):
    """A time-out beats a delivery at the same instant."""

    def timeout_key(self, p, seq):
        return key_of(0, seq, 0, S_TIMEOUT)

    def process(self, event):
        if event[1] & 63 == S_TIMEOUT:
            event = event[0], key_of(event[2], event[1] >> 18 & 0xFFFFFFFF, 0, S_TIMEOUT), *event[2:]
        super().process(event)


class CrossTrafficIgnored(Core):
    """Metadata records do not see what else arrives at their ingress."""

    def ingress(self, t, key, p, peer, op):
        self.skip = True
        super().ingress(t, key, p, peer, op)
        self.skip = False

    def slots_reaching(self, p, t):
        return [] if getattr(self, "skip", False) else super().slots_reaching(p, t)


class NextRoundIgnored(Core):
    """A complete exchange does not see the records of one that is still being posted."""

    def bulk(self, t, key, p, slot):
        self.only = slot
        super().bulk(t, key, p, slot)
        self.only = None

    def slots_reaching(self, p, t):
        slots = super().slots_reaching(p, t)
        if getattr(self, "only", None) is None:
            return slots
        return [s for s in slots if self.m.posted[self.m.round_of(s, p)] == len(self.m.members(s, p))]


class TiesByTimeOnly(Core):
    """Records of the same instant are served before, whatever their key."""

    def before(self, at, keys, t, key):
        return at <= t


class FreeCalls(twin.TwinEngine):
    """Calls cost nothing."""

    def _begin(self):
        self._seq += 1


BROKEN = {
    "LOOKAHEAD": LookaheadTooLong,
    "OWN_BOUND": OwnBoundIgnored,
    "HOST_ORDER": HostOrder,
    "TIMEOUT_FIRST": TimeoutFirst,
    "CROSS_TRAFFIC": CrossTrafficIgnored,
    "NEXT_ROUND": NextRoundIgnored,
    "TIE": TiesByTimeOnly,
    "PRICE": None,
}


def broken_twin(rule):
    """The Python engine with one wrong rule."""
    engine = FreeCalls
    if BROKEN[rule]:
        engine = type(rule, (twin.TwinEngine,), {"core_class": BROKEN[rule]})
    return SimpleNamespace(engine_bytes=twin.engine_bytes, engine_create=twin.engine_create, attach=engine)


def broken_core(rule, folder: Path):
    """The C core compiled with one wrong rule, away from the real one."""
    target = broken_library(rule, folder / f"core_{rule}.so")
    return native, {"lib": native.load(str(target))}


def caught(monkeypatch, module, **extra):
    """The first seed whose program shows the fault."""
    impatient = programs.config

    def config(seed):
        return dataclasses.replace(impatient(seed), wall_deadline_s=3.0)

    monkeypatch.setattr(test_against_oracle, "config", config)
    for seed in SEEDS:
        found, _ = test_against_oracle.differences(
            seed, ("broken",), ({"jitter": 0.1},), module=module, **extra
        )
        if found:
            return seed, found
    return None


def test_the_frame_itself_is_sound():
    """The same way of running, nothing broken: no difference. (So what is caught below is the rule.)"""
    module = SimpleNamespace(
        engine_bytes=twin.engine_bytes, engine_create=twin.engine_create, attach=twin.TwinEngine
    )
    for seed in range(6):
        found, _ = test_against_oracle.differences(seed, ("twin",), ({"jitter": 0.1},), module=module)
        assert not found


@pytest.mark.multirank
@pytest.mark.parametrize("rule", BROKEN)
def test_broken_twin_is_caught(rule, monkeypatch, capfd):
    found = caught(monkeypatch, broken_twin(rule))
    capfd.readouterr()
    assert found, f"no program of {len(SEEDS)} noticed"
    print(f"{rule}: seed {found[0]}: {found[1]}")


@pytest.mark.multirank
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize("rule", BROKEN)
def test_broken_core_is_caught(rule, monkeypatch, tmp_path, capfd):
    module, extra = broken_core(rule, tmp_path)
    found = caught(monkeypatch, module, **extra)
    capfd.readouterr()
    assert found, f"no program of {len(SEEDS)} noticed"
    print(f"{rule}: seed {found[0]}: {found[1]}")
