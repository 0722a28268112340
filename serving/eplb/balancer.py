"""Balancing while serving, on one rank: counts, reports, moves weights between steps (`live` decides).

Rank 0 is where reports go and plans come from, as the shell of a serving engine would. Everything travels by
puts and gets of the emulated fabric and is charged there, so a move slows the exchanges it runs beside.
Weights read from storage wait in the memory of all ranks in turn; a rank fetches what comes into its slots
and computes with the bytes that have arrived. Nobody waits within a step, and an idle rank does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from emulator import Device
from emulator.device import META_BYTES
from emulator.engine.api import ADD, GE
from emulator.transport import Area
from serving.engine import RankRecord
from serving.eplb.live import (
    Move,
    distinct_loads,
    imbalance,
    moves_between,
    rebalanced,
    without_changed,
)
from serving.eplb.options import EplbOptions
from serving.eplb.room import MovePrices
from serving.placement import Placement, placement_of

COUNT, REPORTED, PREFETCH, LOAD, LOADED = "counting", "reported", "prefetching", "loading", "loaded"
_SHELL = 0
_WHAT = "expert balancing"
Table = NDArray[np.int64]


class ExpertStore(Protocol):
    """The routed experts of one MoE layer, as bytes."""

    def expert_bytes(self, expert: int) -> NDArray[np.uint8]:
        """An expert's weights, read from the checkpoint."""

    def install_expert(self, expert: int, weights: NDArray[np.uint8]) -> None:
        """Compute an expert with these weights from now on."""

    def drop_expert(self, expert: int) -> None:
        """Do without an expert."""


class Tables(Protocol):
    """Who routes by the tables (`serving.forward.Forward`)."""

    def place(self, tables: Sequence[Placement]) -> None:
        """Route by these from the next step on, one for each MoE layer."""


@dataclass
class Balancer:
    """Live balancing of one rank.

    Attributes:
        home: int64 [ranks, slots], one replica of each expert.
        placement: the tables' beginning, the same in every layer.
        layers: the MoE layers' experts.
        weights_bytes: bytes of an expert's weights as they are.
        announce: called before each phase of a move.
    """

    device: Device
    options: EplbOptions
    placement: Placement
    home: Table
    redundant: int
    layers: Sequence[ExpertStore]
    forward: Tables
    prices: MovePrices
    record: RankRecord
    weights_bytes: int
    announce: Callable[[], None] = lambda: None
    phase: str = COUNT
    steps: int = 0
    _until_ps: int = 0
    _gets: list[tuple[Move, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n, layers, experts = self.device.num_ranks, len(self.layers), self.placement.num_routed
        self.rounds = self.record.balancing
        self.counts = np.zeros((layers, experts, self.options.slices), np.int64)
        self.tables = np.repeat(self.placement.slot_expert[None], layers, axis=0)
        self.new = self.tables
        self._room = -(-self.redundant * layers // n)
        sizes = (n * self.counts.nbytes, self.tables.nbytes, self._room * self.weights_bytes)
        at, words, _ = self.device.symmetric.carve(Area.HEAP, sum(sizes), _WHAT, words=2)
        self._held = (at, sum(sizes), _WHAT, words, 2)
        self._reports, self._plan, self._memory = (at + sum(sizes[:i]) for i in range(3))
        self._reported, self._planned = words, words + 1
        self.record.work.record_bytes_sent += n * META_BYTES  # carving is a barrier

    def close(self) -> None:
        """Give my memory back, on all ranks at once. Collective: costs a barrier."""
        for _, handle in self._gets:
            self.device.wait_get(handle)
        self._gets.clear()
        self.device.symmetric.release(Area.HEAP, *self._held)

    def observe(self, layer: int, experts: NDArray[np.int64], shares: NDArray[np.int64]) -> None:
        """Count what my tokens chose: experts int64 [T, K], priced rows of each token int64 [T]."""
        rows = np.bincount(
            experts.ravel(), np.repeat(shares, experts.shape[1]), minlength=self.counts.shape[1]
        )
        self.counts[layer, :, self.options.slice_of(self.steps)] += rows.astype(np.int64)

    def between_steps(self, now_ps: int) -> None:
        """Called on every rank between two steps, with the same time on all."""
        start_ps = self.device.now_ps
        actions: dict[str, Callable[[int], None]] = {
            COUNT: self._report,
            REPORTED: self._decide,
            PREFETCH: self._disable,
            LOAD: self._load,
            LOADED: self._restore,
        }
        actions[self.phase](now_ps)
        self.steps += 1
        spent_ps = self.device.now_ps - start_ps
        if spent_ps:
            self.record.time.add("balancing", spent_ps)

    # --- the phases -------------------------------------------------------------------------------------

    def _report(self, now_ps: int) -> None:
        if self.steps < self.options.interval:
            return
        mine = self._reports + self.device.rank * self.counts.nbytes
        self._put(_SHELL, mine, self.counts, self._reported)
        self.rounds.append({"reported_ps": now_ps})
        self.counts[:] = 0
        self._enter(REPORTED)

    def _decide(self, now_ps: int) -> None:
        """Rank 0 plans one boundary after the reports; everyone takes the plan one boundary later."""
        number = len(self.rounds)
        if self.steps == 0:
            if self.device.rank == _SHELL:
                self.device.wait([(self._reported, GE, number * self.device.num_ranks)])
                plan = self._planned_tables()
                for rank in range(self.device.num_ranks):
                    self._put(rank, self._plan, plan, self._planned)
            return
        self.device.wait([(self._planned, GE, number)])
        self.new = self._heap(self._plan, self.tables).copy()
        moves = moves_between(self.tables, self.new)
        loads = distinct_loads(moves)
        self.rounds[-1] |= {"planned_ps": now_ps, "moves": len(moves), "loads": len(loads)}
        if not moves:
            self._enter(COUNT)
            return
        self.announce()
        self._read_from_storage(loads)
        prefetch_ps = self.prices.prefetch_ps(loads)
        self._until_ps = now_ps + prefetch_ps
        self.rounds[-1]["prefetch_ps"] = prefetch_ps
        self._enter(PREFETCH)

    def _planned_tables(self) -> Table:
        n = self.device.num_ranks
        told = self._heap(self._reports, np.empty((n, *self.counts.shape), np.int64))
        counts = told.sum(axis=0)
        new = np.stack(
            [
                rebalanced(rows, self.home, now, self.redundant, self.options.policy)
                for rows, now in zip(counts, self.tables, strict=True)
            ]
        )
        rows = counts.sum(axis=2)
        self.rounds[-1] |= {
            "rows": int(rows.sum()),
            "imbalance_before": imbalance(rows, self.tables),
            "imbalance_after": imbalance(rows, new),
        }
        return new

    def _read_from_storage(self, loads: Sequence[tuple[int, int]]) -> None:
        """My share of the weights, into my memory."""
        n = self.device.num_ranks
        for number, (layer, expert) in enumerate(loads):
            if number % n == self.device.rank:
                begin = self._memory + number // n * self.weights_bytes
                self.device.heap[begin : begin + self.weights_bytes] = self.layers[layer].expert_bytes(expert)

    def _disable(self, now_ps: int) -> None:
        if now_ps < self._until_ps:
            return
        self.announce()
        self._use(without_changed(self.tables, self.new))
        moves, n = moves_between(self.tables, self.new), self.device.num_ranks
        where = {load: i for i, load in enumerate(distinct_loads(moves))}
        numbers = [where[move.layer, move.expert] for move in moves]
        for move, number in zip(moves, numbers, strict=True):
            if move.rank == self.device.rank:
                offset, charged = number // n * self.weights_bytes, self.prices.layer_bytes[move.layer]
                handle = self.device.start_get(number % n, self._memory + offset, self.weights_bytes, charged)
                self._gets.append((move, handle))
                self._count(charged, self.weights_bytes)
        transfers = [(m.layer, i % n, m.rank) for m, i in zip(moves, numbers, strict=True)]
        load_ps = self.prices.load_ps(transfers)
        self._until_ps = now_ps + load_ps
        moved = sum(self.prices.layer_bytes[move.layer] for move in moves)
        self.rounds[-1] |= {"disabled_ps": now_ps, "moved_bytes": moved, "load_ps": load_ps}
        self._enter(LOAD)

    def _load(self, now_ps: int) -> None:
        """Not before all can be here; where others were in the way I wait for the rest."""
        if now_ps < self._until_ps:
            return
        self.announce()
        rank = self.device.rank
        for move, handle in self._gets:
            weights = self.device.wait_get(handle)
            self.layers[move.layer].install_expert(move.expert, np.asarray(weights))
        self._gets.clear()
        for layer, (now, new) in enumerate(zip(self.tables[:, rank], self.new[:, rank], strict=True)):
            for expert in set(now.tolist()) - set(new.tolist()) - {-1}:
                self.layers[layer].drop_expert(expert)
        self.rounds[-1] |= {"loaded_ps": now_ps, "steps_without": self.steps + 2}
        self._enter(LOADED)

    def _restore(self, now_ps: int) -> None:
        self.announce()
        self.tables = self.new
        self._use(self.tables)
        self.rounds[-1]["restored_ps"] = now_ps
        self._enter(COUNT)

    # --- small things -----------------------------------------------------------------------------------

    def _enter(self, phase: str) -> None:
        self.phase, self.steps = phase, -1  # `between_steps` counts on

    def _use(self, tables: Table) -> None:
        p = self.placement
        num_experts = len(p.num_replicas)
        self.forward.place([placement_of(t, p.num_routed, num_experts, p.options) for t in tables])

    def _put(self, target: int, offset: int, data: Table, word: int) -> None:
        self.device.put(target, offset, data, data.nbytes, word, ADD, 1)
        self._count(data.nbytes, data.nbytes)

    def _count(self, priced: int, functional: int) -> None:
        """Bytes of one transfer, both ends."""
        work = self.record.work
        work.priced_bytes_sent += priced
        work.priced_bytes_received += priced
        work.functional_bytes_sent += functional
        work.functional_bytes_received += functional

    def _heap(self, offset: int, like: Table) -> Table:
        return self.device.heap[offset : offset + like.nbytes].view(like.dtype).reshape(like.shape)
