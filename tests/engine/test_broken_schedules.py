"""Every rule of schedules matters: in either engine a wrong one is caught by the loop it stands for."""

import dataclasses
import shutil

import programs_schedule
import pytest
import test_schedule_oracle
from mutations import broken_twin
from test_broken_rules import broken_core

from emulator.engine import twin
from emulator.engine.twin_core import Core

SEEDS = range(60)


class Early(Core):
    """A wait is decided by what its word is when the step before it ends."""

    def begin_wait(self, p, now, step):
        super().begin_wait(p, now, step)
        self.m.armed[p] = 1


class FreePuts(Core):
    """Puts of a schedule cost the step, but not the call."""

    def advance(self, p, t):
        self.m.step_ps[p] -= self.cfg.call_price_ps
        super().advance(p, t)
        self.m.step_ps[p] += self.cfg.call_price_ps


class NoDeadline(Core):
    """The time-out ends only the first wait."""

    def begin_wait(self, p, now, step):
        self.m.deadline[p] = 1 << 62
        super().begin_wait(p, now, step)


def caught(monkeypatch, module, **extra):
    """The first seed whose program shows the fault, or None."""
    patient = programs_schedule.config
    monkeypatch.setattr(
        test_schedule_oracle, "config", lambda seed: dataclasses.replace(patient(seed), wall_deadline_s=3.0)
    )
    for seed in SEEDS:
        try:
            found, _ = test_schedule_oracle.differences(
                seed, ("broken",), (0.0,), module=module, threads=True, **extra
            )
        except RuntimeError as error:  # a rank failed
            found = str(error)
        if found:
            return seed, found
    return None


def test_the_frame_itself_is_sound():
    for seed in range(4):
        found, _ = test_schedule_oracle.differences(
            seed, ("twin",), (0.0,), module=broken_twin(None), threads=True
        )
        assert not found


@pytest.mark.parametrize("core", [Early, FreePuts, NoDeadline])
def test_broken_twin_is_caught(core, monkeypatch, capfd):
    module = broken_twin(None)
    module.attach = type(core.__name__, (twin.TwinEngine,), {"core_class": core})
    found = caught(monkeypatch, module)
    capfd.readouterr()
    assert found, f"no program of {len(SEEDS)} noticed"
    print(f"{core.__name__}: seed {found[0]}: {found[1]}")


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize("rule", ["SCHEDULE_EARLY", "SCHEDULE_ACK"])
def test_broken_core_is_caught(rule, monkeypatch, tmp_path, capfd):
    """EARLY: a word that changed before the wait began decides it. ACK: quiet ends as a put takes effect."""
    module, extra = broken_core(rule, tmp_path)
    found = caught(monkeypatch, module, **extra)
    capfd.readouterr()
    assert found, f"no program of {len(SEEDS)} noticed"
    print(f"{rule}: seed {found[0]}: {found[1]}")
