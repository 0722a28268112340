"""A rank's watch over the others, in a run that keeps going: who has died is marked dead in the engine.

Nothing in virtual time tells a dead rank from a slow one; the template, which reaps the ranks, knows. It
notes each end in the job's table and wakes this thread, which sleeps on a futex otherwise. The thread has an
engine handle of its own, because the rank may be blocked in the one it uses. Every survivor watches, as any
of them may be the next to die.
"""

import threading
from typing import TYPE_CHECKING

from emulator.engine import engine_attach, engine_bytes
from emulator.engine.api import EngineKind
from emulator.engine.native import NativeEngine
from launch.jobtable import JobTable

if TYPE_CHECKING:
    from emulator.device import Device


class DeathWatch:
    """The watching thread of one rank; it runs until `stop()`."""

    def __init__(self, device: "Device", table: JobTable) -> None:
        config = device.engine.config
        kind: EngineKind = "c" if isinstance(device.engine, NativeEngine) else "python"
        block = device.transport.control[: engine_bytes(config, kind)]
        self._engine = engine_attach(block, config, kind, device.rank)
        self._device, self._table = device, table
        self._lock, self._stopped = threading.Lock(), False
        threading.Thread(target=self._run, name="superpod-watch", daemon=True).start()

    def stop(self) -> None:
        """Touch the device no more; call it before the device's memory goes."""
        with self._lock:
            self._stopped = True

    def _run(self) -> None:
        told: set[int] = set()
        while True:
            events, ended = self._table.ends()
            for rank in set(ended) - told:
                with self._lock:
                    if self._stopped:
                        return
                    if not self._device.board.finished[rank]:
                        self._device.mark_dead(rank, self._engine)
                told.add(rank)
            self._table.wait_for_end(events)
