"""The pod's exchanges as the serving engine sees them; every picosecond and byte goes into the ledgers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from collectives.moe import ExpertExchange, Handle, IdleStep
from emulator import Device
from emulator.device import META_BYTES
from emulator.errors import InternalError
from emulator.rows import RowFormat
from emulator.transport import Area
from serving.engine import RankRecord
from serving.exchange_price import ExchangeCosts
from serving.forward import Received
from serving.limits import ExchangeSizes
from serving.placement import Placement


class PodStatus:
    """One 64-bit word from every rank to every rank, on a channel of its own (else the one that is given)."""

    def __init__(self, device: Device, record: RankRecord, channel: int | None = None) -> None:
        self._device, self._record = device, record
        if channel is None:
            _, _, channel = device.symmetric.carve(Area.MANAGED, 0, "status of every rank", channels=1)
            _count_records(device.num_ranks, record, META_BYTES)  # carving is a barrier
        self.channel = channel
        self._members: NDArray[np.int32] | None = None

    def exchange(self, word: int) -> NDArray[np.int64]:
        """Give my word and wait for everyone's: int64[n], 0 of the dead."""
        members, n = self._members, self._device.num_ranks
        _count_records(n if members is None else len(members), self._record, META_BYTES)
        tags = self._device.exchange(self.channel, None, 0, META_BYTES, tag=word).tags
        if members is None:
            return tags
        words = np.zeros(n, np.int64)
        words[members] = tags
        return words

    def regroup(self, living: Sequence[int]) -> None:
        """Go on among these ranks, if they are others: after a change of membership."""
        known = range(self._device.num_ranks) if self._members is None else self._members.tolist()
        if list(known) == list(living):
            return
        self._members = np.array(living, np.int32)
        self._device.open_group(self.channel, self._members)


class PodLink:
    """Rows to the experts and back over the emulated fabric. Implements `serving.forward.ExpertLink`.

    Waiting is told from transfer by the moment the last metadata record was in.
    """

    def __init__(
        self,
        device: Device,
        placement: Placement,
        hidden: int,
        top_k: int,
        sizes: ExchangeSizes,
        record: RankRecord,
        quantization: str | None = None,
        exchange: ExpertExchange | None = None,
    ) -> None:
        self._device, self._record = device, record
        slots = placement.slots_per_rank
        top_k += placement.shared_placed
        if exchange is None:
            exchange = ExpertExchange(
                device, slots, hidden, sizes.max_tokens, top_k, quantization, max_rows=sizes.max_rows
            )
            _count_records(device.num_ranks, record, META_BYTES)  # carving is a barrier
        self.exchange = self._exchange = exchange
        self._out_bytes = RowFormat(hidden, slots, quantization == "int8").record_bytes
        self._back_bytes = RowFormat(hidden, slots).record_bytes
        self._num_living = device.num_ranks

    def regroup(self, living: Sequence[int]) -> None:
        """Go on among these ranks, after a change of membership."""
        self._num_living = len(living)
        self._exchange.regroup(np.array(living, np.int32))

    def dispatch(
        self,
        x: NDArray[np.float32],
        slots: NDArray[np.int64],
        shares: NDArray[np.int64],
        costs: ExchangeCosts,
    ) -> Received:
        """See `ExpertLink.dispatch`."""
        start_ps = self._device.now_ps
        handle = self._exchange.dispatch(x, slots, costs, shares.astype(np.int32))
        self._account("dispatch", start_ps, costs)
        self._count_dispatch(handle, costs)
        return _received(handle)

    def combine(
        self,
        received: Received,
        results: NDArray[np.float32],
        weights: NDArray[np.float32],
        costs: ExchangeCosts,
    ) -> NDArray[np.float32]:
        """See `ExpertLink.combine`."""
        handle = received.ticket
        if not isinstance(handle, Handle):
            raise InternalError("combine: the rows were not received over this link")
        if not handle.tokens:
            weights = np.empty((0, self._exchange.topk), np.float32)
        start_ps = self._device.now_ps
        routed = self._exchange.combine(handle, results, weights, costs)
        self._account("combine", start_ps, costs)
        self._count_combine(handle, costs)
        return routed

    def idle(self, layers: Sequence[tuple[ExchangeCosts, ExchangeCosts]]) -> tuple[int, Received | None]:
        """See `ExpertLink.idle`."""
        steps = _steps(layers)
        start_ps = self._device.now_ps
        index, handle = self._exchange.idle(steps)
        self._record.time.add("waiting", self._device.now_ps - start_ps)
        return self._woken(layers, steps, index, handle)

    def combine_then_idle(
        self,
        received: Received,
        results: NDArray[np.float32],
        costs: ExchangeCosts,
        layers: Sequence[tuple[ExchangeCosts, ExchangeCosts]],
    ) -> tuple[int, Received | None]:
        """See `ExpertLink.combine_then_idle`. My combine brings nothing, so it is over `pull_start_ps` after
        its last record."""
        handle = received.ticket
        if not isinstance(handle, Handle):
            raise InternalError("combine: the rows were not received over this link")
        if not layers:
            self.combine(received, results, np.empty((0, self._exchange.topk), np.float32), costs)
            return 0, None
        steps, start_ps = _steps(layers), self._device.now_ps
        index, found = self._exchange.combine_then_idle(handle, results, steps, costs)
        _count_records(self._num_living, self._record, costs.meta_bytes)
        self._count_combine(handle, costs)
        combine_ps = costs.start_ps + costs.pull_start_ps
        self._record.time.add("combine", combine_ps)
        self._record.time.add("waiting", self._device.now_ps - start_ps - combine_ps)
        return self._woken(layers, steps, index, found)

    def _woken(
        self,
        layers: Sequence[tuple[ExchangeCosts, ExchangeCosts]],
        steps: Sequence[IdleStep],
        index: int,
        handle: Handle,
    ) -> tuple[int, Received | None]:
        """Count the steps up to `index`; the layer and the rows that woke me."""
        for step in steps[: index + 1]:
            _count_records(self._num_living, self._record, step.costs.meta_bytes)
        if steps[index].combine:
            return len(layers), None
        self._count_dispatch(handle, layers[index // 2][0])
        return index // 2, _received(handle)

    def _account(self, bucket: str, start_ps: int, costs: ExchangeCosts) -> None:
        """Split an operation's time: until all records were in I waited, the rest is the operation."""
        _count_records(self._num_living, self._record, costs.meta_bytes)
        now_ps = self._device.now_ps
        waited_ps = max(0, self._exchange.timing.records_ps - start_ps - costs.start_ps)
        self._record.time.add("waiting", waited_ps)
        self._record.time.add(bucket, now_ps - start_ps - waited_ps)

    def _count_dispatch(self, handle: Handle, costs: ExchangeCosts) -> None:
        work, sent, received = self._record.work, int(handle.sent.counts.sum()), len(handle.rows)
        self._count(sent, received, handle, costs)
        work.functional_rows_sent += sent
        work.functional_rows_received += received
        work.priced_rows_sent += int(handle.sent.charged.sum())
        work.priced_rows_received += int(handle.received_charge.sum())

    def _count_combine(self, handle: Handle, costs: ExchangeCosts) -> None:
        work = self._record.work
        sent, received = len(handle.rows), int(handle.sent.counts.sum())
        work.functional_bytes_sent += sent * self._back_bytes
        work.functional_bytes_received += received * self._back_bytes
        work.priced_bytes_sent += int(handle.received_charge.sum()) * costs.row_bytes
        work.priced_bytes_received += int(handle.sent.charged.sum()) * costs.row_bytes

    def _count(self, sent: int, received: int, handle: Handle, costs: ExchangeCosts) -> None:
        work = self._record.work
        work.functional_bytes_sent += sent * self._out_bytes
        work.functional_bytes_received += received * self._out_bytes
        work.priced_bytes_sent += int(handle.sent.charged.sum()) * costs.row_bytes
        work.priced_bytes_received += int(handle.received_charge.sum()) * costs.row_bytes


class Channels:
    """Channels of the pod's exchanges that one job after another uses: they are never given back."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._status = PodStatus(device, RankRecord()).channel
        self._exchanges: dict[tuple[object, ...], ExpertExchange] = {}

    def status(self, record: RankRecord | None = None) -> PodStatus:
        """The exchange of status words."""
        return PodStatus(self._device, record or RankRecord(), self._status)

    def link(
        self,
        placement: Placement,
        hidden: int,
        top_k: int,
        sizes: ExchangeSizes,
        record: RankRecord,
        quantization: str | None,
    ) -> PodLink:
        """The exchanges of rows, made where none was of this shape."""
        key = (placement.slots_per_rank, hidden, top_k + placement.shared_placed, sizes, quantization)
        parts = (self._device, placement, hidden, top_k, sizes, record, quantization)
        link = PodLink(*parts, self._exchanges.get(key))
        self._exchanges[key] = link.exchange
        return link


def _steps(layers: Sequence[tuple[ExchangeCosts, ExchangeCosts]]) -> list[IdleStep]:
    return [IdleStep(kind == 1, costs) for layer in layers for kind, costs in enumerate(layer)]


def _count_records(num_ranks: int, record: RankRecord, meta_bytes: int) -> None:
    record.work.record_bytes_sent += num_ranks * meta_bytes


def _received(handle: Handle) -> Received:
    return Received(handle.rows, handle.rows_per_slot, handle.charged_per_slot, handle)
