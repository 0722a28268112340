"""Runs litmus programs on the emulator: many seeds of many programs within one start of a few ranks.

    barrier | program 0 | barrier | program 1 | ... up to SLOTS programs, each on memory of its own
    barrier | homes read the final values and zero the memory | barrier | next ones

For each (program, seed) the delivery is seeded anew, names are dealt to ranks in a drawn order,
and every thread pauses for drawn times before its operations, so that races come out this way and that. A
wait ends after `PATIENCE_PS` of virtual time; the outcome is then "stuck". All of it is a function of the
seeds: a row that fails is run again with its seed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import emulator
from emulator import Device
from memsem import Window
from memsem import mpi as MPI
from memsem.litmus import by_name
from memsem.litmus_deal import NAMES, SLOTS, Deal, Found, Machine, Stuck
from memsem.litmus_ops import (
    Barrier,
    Fence,
    Fetch,
    Get,
    Litmus,
    Load,
    Local,
    Op,
    Put,
    Quiet,
    Recv,
    Reset,
    Send,
    Wait,
)
from memsem.litmus_urma import UrmaMachine
from memsem.litmus_verbs import VerbsMachine
from memsem.ordering import OrderFlags

PATIENCE_PS = 10**9
PAUSES_PS = (0, 300_000, 3_000_000, 12_000_000, 40_000_000)
"""A thread begins after up to one of these: none, less than a latency, and as late as a delivery may be."""
PAUSE_SHARE = 0.2
"""How often it pauses again before a later operation."""
LONG_MESSAGE = 2048
"""Elements of the message with value 1: a rendezvous, so that a later short one could overtake it."""


class WindowMachine:
    """Windows for memory, MPI for messages."""

    def __init__(self, device: Device, window: Window) -> None:
        self._device, self._window, self._comm = device, window, MPI.COMM_WORLD
        self._late: list[tuple[str, Any]] = []
        self._sent: list[Any] = []

    def do(self, deal: Deal, op: Op) -> None:
        getattr(self, f"_{type(op).__name__.lower()}")(deal, op)

    def complete(self, deal: Deal) -> None:
        self._quiet(deal, Quiet())
        MPI.Request.Waitall(self._sent)
        self._sent.clear()

    def prepare(self, deal: Deal) -> None:
        """Nothing to get ready."""

    # --- memory ---

    def _put(self, deal: Deal, op: Put) -> None:
        flags = OrderFlags(op.order, op.complete, op.fence)
        names = [name for name, _ in op.writes]
        values = np.array([value for _, value in op.writes], np.int64)
        first = deal.place(names[0]) if names else 0
        assert [deal.place(name) for name in names] == list(range(first, first + len(names)))
        if op.signal is None:
            self._window.put(deal.home(names[0]), values, first, order=flags)
            return
        word, how, value = op.signal
        self._window.put_signal(deal.home(word), values, first, deal.place(word), value, how, order=flags)

    def _get(self, deal: Deal, op: Get) -> None:
        at = deal.home(op.var), deal.place(op.var)
        if op.blocking:
            deal.found[op.reg] = int(self._window.get(*at, 1)[0])
        else:
            out = np.full(1, -1, np.int64)
            self._window.get_nbi(*at, out)
            self._late.append((op.reg, out))

    def _fetch(self, deal: Deal, op: Fetch) -> None:
        at = deal.home(op.var), deal.place(op.var)
        if op.op == "add":
            old = self._window.fetch_add(*at, op.operand)
        else:
            old = self._window.compare_swap(*at, op.compare, op.operand)
        deal.found[op.reg] = int(old)

    def _fence(self, deal: Deal, op: Fence) -> None:
        self._window.fence()

    def _quiet(self, deal: Deal, op: Quiet) -> None:
        self._window.quiet()
        deal.found.update({reg: int(out[0]) for reg, out in self._late})
        self._late.clear()

    def _barrier(self, deal: Deal, op: Barrier) -> None:
        self._device.barrier()

    def _wait(self, deal: Deal, op: Wait) -> None:
        seen = self._window.signal_wait_until(deal.place(op.signal), op.how, op.value, timeout_ps=PATIENCE_PS)
        if seen is None:
            raise Stuck

    def _load(self, deal: Deal, op: Load) -> None:
        at = deal.place(op.var)
        signal = op.var in deal.litmus.signals
        deal.found[op.reg] = self._window.signal_read(at) if signal else int(self._window.load(at, 1)[0])

    def _local(self, deal: Deal, op: Local) -> None:
        deal.found[op.reg] = int(self._window.local[deal.place(op.var)])

    def _reset(self, deal: Deal, op: Reset) -> None:
        self._window.reset(deal.place(op.signal))

    # --- messages ---

    def _send(self, deal: Deal, op: Send) -> None:
        payload = np.full(LONG_MESSAGE if op.value == 1 else 1, op.value, np.int64)
        self._sent.append(self._comm.Isend(payload, dest=deal.number[op.to], tag=deal.slot))

    def _recv(self, deal: Deal, op: Recv) -> None:
        source = MPI.ANY_SOURCE if op.source is None else deal.number[op.source]
        payload = np.zeros(LONG_MESSAGE, np.int64)
        self._comm.Recv(payload, source=source, tag=deal.slot)
        deal.found[op.reg] = int(payload[0])


# --- the loop -----------------------------------------------------------------------------------------


def run(device: Device, names: Sequence[str], seeds: Sequence[int]) -> dict[str, list[Found]]:
    """Run programs under seeds on this rank (collective).

    Args:
        names: rows of the table.
        seeds: each program is run once under each.

    Returns:
        per row and seed what this rank knows of the outcome: its registers and the final values it holds.
    """
    window = Window.create(SLOTS * NAMES, np.int64, signals=SLOTS * NAMES)
    machines: dict[str, Machine] = {"window": WindowMachine(device, window)}
    rows = [by_name(name) for name in names]
    pairs = [(row, index, seed) for index, row in enumerate(rows) for seed in seeds]
    results: dict[str, list[Found]] = {name: [] for name in names}
    machines["message"] = machines["window"]
    paths = {row.path for row in rows}
    if "verbs" in paths:
        machines["verbs"] = VerbsMachine(device, window)
    if "urma" in paths:
        machines["urma"] = UrmaMachine(device, window)
    for first in range(0, len(pairs), SLOTS):
        batch = [
            _deal(device, row, seed, slot) for slot, (row, _, seed) in enumerate(pairs[first : first + SLOTS])
        ]
        for deal, (_, index, _) in zip(batch, pairs[first:], strict=False):
            _play(device, machines[deal.litmus.path], deal, index)
        device.barrier()
        for deal in batch:
            results[deal.litmus.name].append(deal.found | _finals(device, window, deal))
        _clean(device, window, batch)
        device.barrier()
    return results


def _deal(device: Device, litmus: Litmus, seed: int, slot: int) -> Deal:
    order = np.random.default_rng((seed, len(litmus.name))).permutation(device.num_ranks).tolist()
    return Deal(litmus, seed, slot, dict(zip(litmus.ranks, order, strict=False)), {})


def _play(device: Device, machine: Machine, deal: Deal, index: int) -> None:
    """One program at one seed: all threads from a barrier on."""
    rng = np.random.default_rng((deal.seed, index, device.rank))
    if device.delivery.reorders:
        device.delivery.reseed(deal.seed * 1000 + index)
    ops = deal.thread(device.rank)
    machine.prepare(deal)
    device.barrier()
    try:
        for step, op in enumerate(ops):
            pause = int(rng.integers(0, 1 + PAUSES_PS[rng.integers(len(PAUSES_PS))]))
            if (step == 0 or rng.random() < PAUSE_SHARE) and pause and not isinstance(op, Local):
                device.sleep_ps(pause)
            machine.do(deal, op)
    except Stuck:
        deal.found["stuck"] = 1
    if ops:
        machine.complete(deal)


def _finals(device: Device, window: Window, deal: Deal) -> Found:
    mine = [name for name in deal.litmus.homes if deal.home(name) == device.rank]
    signals = deal.litmus.signals
    return {
        name: window.signal_read(deal.place(name))
        if name in signals
        else int(window.load(deal.place(name), 1)[0])
        for name in mine
    }


def _clean(device: Device, window: Window, batch: Iterable[Deal]) -> None:
    window.store(0, np.zeros(window.size, np.int64))
    for deal in batch:
        for name in deal.litmus.signals:
            if deal.home(name) == device.rank:
                window.reset(deal.place(name))


# --- putting ranks together ---------------------------------------------------------------------------


def merged(litmus: Litmus, ranks: Sequence[Sequence[Found]]) -> list[tuple[tuple[str, int], ...]]:
    """Outcomes by seed, as `model.outcomes` writes them, from what each rank knows ([ranks][seeds])."""
    registers = _unset(litmus)
    return [
        tuple(sorted({**registers, **{k: v for part in parts for k, v in part.items()}}.items()))
        for parts in zip(*ranks, strict=True)
    ]


def _unset(litmus: Litmus) -> Found:
    ops = [op for thread in litmus.threads.values() for op in thread]
    names = {op.reg for op in ops if isinstance(op, Get | Fetch | Load | Local | Recv)}
    names |= {op.tell for op in ops if isinstance(op, Put) and op.tell is not None}
    return {**dict.fromkeys(names, -1), "stuck": 0}


def read_results(directory: Path) -> dict[str, Counter[tuple[tuple[str, int], ...]]]:
    """How often each outcome was seen, by row, from the files of `main`."""
    files = sorted(directory.glob("litmus-*.json"))
    ranks = [json.loads(path.read_text()) for path in files]
    return {name: Counter(merged(by_name(name), [rank[name] for rank in ranks])) for name in ranks[0]}


def main(argv: Sequence[str]) -> None:
    """Rank program: names (comma separated), first seed, number of seeds, directory for the results."""
    names, first, count, directory = argv[0].split(","), int(argv[1]), int(argv[2]), Path(argv[3])
    device = emulator.init()
    results = run(device, names, range(first, first + count))
    (directory / f"litmus-{device.rank}.json").write_text(json.dumps(results))
