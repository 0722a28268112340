"""What killed runs leave in /dev/shm: empty directories of processes that are gone go, others stay."""

import os
import subprocess
import time
from pathlib import Path

from launch import paths


def test_only_old_empty_directories_of_dead_processes_go() -> None:
    """Fails on a build that asks for less: another run, here or in another container, may hold the rest."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    uid, dead, alive = os.getuid(), ended.pid, os.getpid()
    names = {
        "old": f"superpod-{uid}-run-{dead}-sweeptest1",
        "job": f"superpod-{uid}-sweeptest-prterun-host-{dead}@1",
        "young": f"superpod-{uid}-run-{dead}-sweeptest2",
        "alive": f"superpod-{uid}-run-{alive}-sweeptest3",
        "used": f"superpod-{uid}-run-{dead}-sweeptest4",
        "other": f"superpod-{uid}-sweeptest",
    }
    made = {kind: paths.SHM / name for kind, name in names.items()}
    try:
        for kind, path in made.items():
            path.mkdir()
            if kind == "used":
                (path / "segment").touch()
            if kind != "young":
                os.utime(path, (time.time() - 3600,) * 2)
        swept = set(paths.sweep())
        assert {kind for kind, path in made.items() if not path.exists()} == {"old", "job"}
        assert {made["old"], made["job"]} <= swept
    finally:
        (made["used"] / "segment").unlink(missing_ok=True)
        for path in made.values():
            if Path(path).exists():
                path.rmdir()
