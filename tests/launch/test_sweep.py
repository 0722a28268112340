"""What killed runs leave in /dev/shm: directories of processes that are gone, and that nobody holds, go."""

import os
import shutil
import subprocess
import time

from launch import paths


def test_only_old_directories_of_dead_processes_that_nobody_holds_go() -> None:
    """Fails on a build that asks for less: another run, here or in another container, may hold
    the rest; and on one that leaves what nobody holds: the segments of a run killed with its fork server."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    uid, dead, alive = os.getuid(), ended.pid, os.getpid()
    names = {
        "old": f"superpod-{uid}-run-{dead}-sweeptest1",
        "job": f"superpod-{uid}-sweeptest-prterun-host-{dead}@1",
        "young": f"superpod-{uid}-run-{dead}-sweeptest2",
        "alive": f"superpod-{uid}-run-{alive}-sweeptest3",
        "used": f"superpod-{uid}-run-{dead}-sweeptest4",
        "left": f"superpod-{uid}-run-{dead}-sweeptest5",
        "other": f"superpod-{uid}-sweeptest",
    }
    made = {kind: paths.SHM / name for kind, name in names.items()}
    try:
        for kind, path in made.items():
            path.mkdir()
            if kind in ("used", "left"):
                (path / "sm_segment.host.0.1.2").touch()
            if kind == "used":
                held = paths.hold(path)
            if kind != "young":
                os.utime(path, (time.time() - 3600,) * 2)
        swept = set(paths.sweep())
        assert {kind for kind, path in made.items() if not path.exists()} == {"old", "job", "left"}
        assert {made["old"], made["job"], made["left"]} <= swept
        os.close(held)
    finally:
        for path in made.values():
            shutil.rmtree(path, ignore_errors=True)
