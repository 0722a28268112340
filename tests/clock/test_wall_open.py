"""An open pod under both clocks: the same answers at the same emulated times, and no idle time is slept."""

import time
from pathlib import Path

import pytest

from launch.llm import LLM
from serving.model import make_checkpoint
from serving.model.sampling import SamplingParams

pytestmark = [pytest.mark.multirank, pytest.mark.sweep, pytest.mark.timeout(200)]
DILATION, GRACE_S = 5.0, 6.0


def test_an_open_pod_stands_still_while_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Fails on a build in which `ServingEngine.run` does not hold the clock while idle: the leader, which
    waits for us longer than the grace, is then left behind."""
    make_checkpoint(tmp_path / "model", "mini")
    times, slept_s = [], 0.0
    for clock in ("virtual", "wall"):
        for name, value in (("CLOCK", clock), ("DILATION", f"{DILATION:g}"), ("GRACE_S", f"{GRACE_S:g}")):
            monkeypatch.setenv(f"SUPERPOD_{name}", value)
        with LLM(tmp_path / "model", ranks=2, memory_check=False) as llm:
            found = []
            for prompt, idle_s in (([5, 6, 7], GRACE_S + 1), ([8, 9], 0)):
                began = time.monotonic()
                (answer,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=4))
                slept_s = time.monotonic() - began
                (output,) = answer.outputs
                found.append((answer.arrival_ps, output.token_ids, output.token_times_ps))
                if clock == "wall":
                    time.sleep(idle_s)  # the user thinks
        times.append(found)
    assert times[0] == times[1]
    arrival_ps, _, token_times_ps = times[1][1]
    work_s = DILATION * (token_times_ps[-1] - arrival_ps) / 1e12
    assert slept_s >= 0.98 * work_s  # ranks that were late when they became idle catch up: deadlines stay
    assert "ranks were too late" not in capfd.readouterr().err
