"""Which jobs a tensor-parallel group can serve."""

from __future__ import annotations

from emulator.errors import UsageError
from serving.job import ReplayJob
from serving.model.config import ModelConfig
from serving.model.part import check_parts

__all__ = ["check_tensor"]


def check_tensor(job: ReplayJob, config: ModelConfig) -> None:
    """Refuse what does not go with `--tp-size`.

    Raises:
        UsageError: naming the option, or the size that does not divide.
    """
    size = job.tp_size
    if size == 1:
        return
    if size < 1 or job.num_ranks % size:
        divisors = [n for n in range(1, job.num_ranks + 1) if job.num_ranks % n == 0]
        nearest = min(divisors, key=lambda n: (abs(n - size), n))
        raise UsageError(
            f"--tp-size {size}: {job.num_ranks} ranks are no whole number of groups; the nearest is {nearest}"
        )
    check_parts(config, size)
    unsupported = {
        "--recovery in-place": job.recovery is not None,
        "--schedule-from": bool(job.schedule),
        "superpod decode": job.decode is not None,
    }
    for option, asked in unsupported.items():
        if asked:
            raise UsageError(f"--tp-size {size} does not go with {option} yet; leave one of them out")
