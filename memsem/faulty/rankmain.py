"""Rank 2i sends to rank 2i + 1, one transfer after the other; both note what they were told, and when."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import emulator
from emulator.errors import DeadlockError, FabricError, SuperpodError
from memsem.faulty.lanes import LANES

ATTEMPTS = 3
"""How often a program sends a transfer before it goes on without it."""


def main(words: Sequence[str]) -> None:
    """Be one rank: settings as JSON, and the directory of the results."""
    settings, folder = json.loads(words[0]), Path(words[1])
    device = emulator.init()
    sends = device.rank % 2 == 0
    file = folder / f"{device.rank}.json"
    try:
        lane = LANES[settings["path"]](device, device.rank ^ 1, settings["size"])
        device.barrier()
    except (FabricError, DeadlockError) as error:
        file.write_text(json.dumps({"rank": device.rank, "no_lane": str(error)}))
        return
    begin_ps = device.now_ps
    notes: list[dict[str, Any]] = []
    done: list[tuple[int, int, int]] = []
    for number in range(settings["transfers"]):
        if sends:
            device.compute(settings["gap_ps"])
        start_ps = device.now_ps
        attempts = _carry_out(device, lane, number, sends, notes)
        if attempts:
            done.append((number, start_ps, device.now_ps))
        elif not sends:
            break
    result = {"rank": device.rank, "sends": sends, "notes": notes, "done": done}
    file.write_text(json.dumps(result | {"begin_ps": begin_ps, "end_ps": device.now_ps}))


def _carry_out(
    device: emulator.Device, lane: Any, number: int, sends: bool, notes: list[dict[str, Any]]
) -> int:
    """One transfer; how many attempts it took, 0 if all failed."""
    call: Callable[[int], str | None] = lane.send if sends else lane.receive
    for attempt in range(1, 1 + (ATTEMPTS if sends else 1)):
        try:
            told = call(number)
        except SuperpodError as error:
            told = type(error).__name__
            if not isinstance(error, FabricError):  # nobody answers any more: nothing to try
                notes.append({"at_ps": device.now_ps, "told": told, "transfer": number})
                return 0
        if told is None:
            return attempt
        notes.append({"at_ps": device.now_ps, "told": told, "transfer": number})
        lane.mend()
    return 0
