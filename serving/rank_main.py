"""One rank of a replay, from the job's files to its line of result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import emulator
from emulator.errors import DeadlockError, RankLostError
from emulator.spare import give_back
from serving.ahead import CommonParts, common_parts, job_requests
from serving.engine import RankRecord
from serving.job import Progress, ReplayJob, append_ending, append_result
from serving.link import Channels
from serving.rank_parts import build
from serving.recovery.pids import note_pid
from serving.request import RequestSpec


def serve(directory: str) -> None:
    """Serve a job's requests as this rank and append this rank's result."""
    job, specs = ReplayJob.read(directory), job_requests(directory)
    device = emulator.init()
    serve_on(device, directory, common_parts(job, specs, device.profile), specs)


def serve_on(
    device: emulator.Device,
    directory: str,
    common: CommonParts,
    specs: Sequence[RequestSpec],
    channels: Channels | None = None,
) -> None:
    """Be the rank whose device this is, to the line of result; on other jobs' channels, if there are any."""
    progress = Progress(directory, device.num_ranks)
    progress.update(device.rank, 0, 0)
    try:
        engine, record, kv, run = build(common, specs, device, progress, directory, channels)
    except (RankLostError, DeadlockError) as error:
        if not _is_lost(device, error):
            raise
        append_result(directory, _never_served(device))
        return
    if device.faults.active and common.job.recovery is None:
        engine.ended = lambda request: append_ending(directory, record.ending(device.rank, request))
    if common.job.recovery is not None:
        note_pid(directory, device.rank)
    start_ps = device.now_ps
    record.time.add("other", start_ps)
    give_back()  # what start-up has touched; the first step is the largest
    engine.hold_clock, engine.start_clock = device.engine.hold_clock, device.engine.start_clock
    if common.job.decode is None:
        device.engine.start_clock()  # setting up took the host a while
    else:
        device.engine.hold_clock()  # filling the contexts is setting up; `DecodeForward` starts the clock
    try:
        run()
    except (RankLostError, DeadlockError) as error:
        if not _is_lost(device, error):
            raise
        engine.give_up(f"lost with another rank: {error}")
    kv.check_integrity()
    engine.count()
    append_result(directory, record.as_dict(device.rank, device.now_ps))
    if channels is not None:
        engine.close()


def _is_lost(device: emulator.Device, error: RankLostError | DeadlockError) -> bool:
    """Whether others are dead; the engine may know of it before the board does."""
    return isinstance(error, RankLostError) or bool(device.board.dead.any())


def _never_served(device: emulator.Device) -> dict[str, Any]:
    """The line of a rank whose pod lost another while it started: it has had no request."""
    record = RankRecord()
    record.time.add("other", device.now_ps)
    return record.as_dict(device.rank, device.now_ps)
