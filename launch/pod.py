"""An open pod: ranks that serve whatever is fed to them, in processes of their own, until the feed is closed.

    this process ── pod process (`python -m launch.pod DIR`) ── what `launch.run` starts

The pod process has a session of its own, so Ctrl-C at a terminal reaches this one alone, which ends the
feed and waits; and it is killed when this one ends, whatever the way.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from emulator.errors import SuperpodError, UsageError
from launch import osproc, paths, run
from launch.helper import Helper
from serving.job import Progress, ReplayJob, read_results, write_requests
from serving.replay import Replay

RANK_BYTES = 12 << 20
"""What serving takes of a rank's own memory beyond a bare start (as `superpod replay`)."""
_FOR_EVER_S = 1e9
"""An idle pod enters no engine call; that is no hang."""
_POD, _RESULT, _ERROR = "pod.json", "pod_result.json", "pod_error.json"
_STOPPED = (0, 130, 143)


@dataclass(frozen=True)
class PodSpec:
    """What the pod process is told. machine: as `emulator.init` reads it. made: the model is a made one."""

    num_ranks: int
    machine: dict[str, Any] = field(default_factory=dict)
    shm_bytes: int = 0
    progress: bool = False


def prepare(plan: Replay, directory: Path, progress: bool = False) -> None:
    """Write what ranks and pod process read."""
    job = plan.job
    job.write(directory)
    write_requests(directory, plan.specs)
    Progress(directory, job.num_ranks, create=True)
    machine = {
        "profile": job.profile,
        "set": job.overrides,
        "seed": job.seed,
        "transport": "shared",
        "wall_deadline_s": _FOR_EVER_S,
        "report": str(directory / "machine.json"),
        **plan.machine_bytes,
    }
    spec = PodSpec(job.num_ranks, machine, job.num_ranks * plan.touched_bytes, progress)
    (directory / _POD).write_text(json.dumps(asdict(spec)))


class OpenPod:
    """The pod process of a prepared directory; started at once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        me = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "launch.pod", str(directory)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: osproc.die_with_parent(me),
        )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait(self) -> None:
        """Wait for its end.

        Raises:
            UsageError: what was wrong with the model or the machine.
            SuperpodError: the ranks ended otherwise than well.
        """
        code = self.process.wait()
        error = self._directory / _ERROR
        if error.exists():
            told = json.loads(error.read_text())
            raise (UsageError if told["usage"] else SuperpodError)(told["error"])
        if code:
            raise SuperpodError(f"the ranks ended with exit code {code}")

    def kill(self) -> None:
        """End it and its ranks at once."""
        if self.running:
            self.process.terminate()
            try:
                self.process.wait(_KILL_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def result(self) -> dict[str, Any]:
        """What is known of the run after its end: the ranks' results, the host's figures."""
        told = json.loads((self._directory / _RESULT).read_text())
        return {"host": told, "ranks": read_results(self._directory)}


_KILL_S = 20.0


def _open_model(model_dir: str) -> None:
    """Check every tensor once, before any rank starts."""
    gc.disable()
    import torch

    from serving import model

    torch.set_num_threads(1)  # a forked process has no pool of threads
    model.load_model(model_dir)


def main(directory: str) -> int:
    """Be the pod process."""
    folder = Path(directory)
    spec = PodSpec(**json.loads((folder / _POD).read_text()))
    own = paths.RunDirectory()
    try:
        with Helper(
            "opening the model", own, partial(_open_model, ReplayJob.read(folder).model_dir)
        ) as opening:
            opening.start()
            ended = run.run_job(
                spec.num_ranks,
                ["-m", "serving", directory],
                spec.machine,
                progress=spec.progress,
                measure_memory=False,
                rank_bytes=RANK_BYTES,
                shm_bytes=spec.shm_bytes,
                started_s=run.command_start_s(),
                before_ranks=opening.wait,
            )
    except SuperpodError as error:
        told = {"error": str(error), "usage": isinstance(error, UsageError)}
        (folder / _ERROR).write_text(json.dumps(told))
        return 1
    finally:
        own.remove()
        os.close(own.lock_fd)
    (folder / _RESULT).write_text(json.dumps(asdict(ended)))
    return ended.exit_code


if __name__ == "__main__":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.exit(main(sys.argv[1]))
