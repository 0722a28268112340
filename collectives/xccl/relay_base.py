"""What A2E and E2A stand on: the two sets, the four hops of each micro-batch, the checks of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectives.moe_base import check_array
from collectives.refusals import refused, told_in_making
from collectives.xccl.relay_blocks import Stage, block_of
from collectives.xccl.relay_costs import RelayCosts
from collectives.xccl.relay_plan import Int32, Int64, Relays
from collectives.xccl.relay_refusals import explained, give_up, given_up
from emulator import Device
from emulator.errors import DeadlockError, FabricError, StateError, UsageError
from emulator.profile import nearest
from emulator.rows import Plan, RowFormat
from emulator.transport import Area

Float32 = npt.NDArray[np.float32]
ENGINES = ("mte", "urma")


@dataclass(frozen=True)
class Sent:
    """What an attention die sent. start_ps: when it began."""

    plan: Plan
    tokens: int
    micro_batch: int
    event: int
    start_ps: int


@dataclass(frozen=True)
class Arrived:
    """What an expert die received.

    Attributes:
        rows: float32 [R, hidden], by slot, inside a slot by (attention die, token, k).
        rows_per_slot, charged_per_slot: int64 [slots].
        end_ps: when its last row was in.
        place: int32 [R], row of the i-th record. counts, charged: of each source the records came from.
        order: of a trampoline that forwards: where each record of its group, by member, was as pulled.
    """

    rows: Float32
    rows_per_slot: Int64
    charged_per_slot: Int64
    micro_batch: int
    event: int
    end_ps: int
    place: Int32
    counts: Int32
    charged: Int64
    order: Int64 | None = None


@dataclass
class Lane:
    """One micro-batch: its four hops, its event, and what it is in the middle of."""

    out: Stage
    forward: Stage
    back: Stage
    home: Stage
    event: int = 0
    is_open: bool = False


class RelayBase:
    """One rank's end of A2E and E2A. Collective to make: all ranks of the machine, members or not.

    Args:
        device: this rank.
        attention, experts: ranks of the two sets, evenly spaced, ascending, disjoint; others take no part.
        slots: expert slots of an expert die; slot s of expert e is number e * slots + s.
        hidden, max_tokens, topk: of a row; most rows of one A2E; slots each goes to.
        quant: None or "int8", of the way out.
        max_rows: most rows one A2E brings to an expert; by default all that can happen.
        mode: "trampoline" or "direct".
        engine: what pulls rows, "mte" (cores) or "urma" (the DMA engine, started by a core: a later start, no
            cores taken).
        micro_batches: how many may be under way.
        a2e_costs, e2a_costs: by default real row bytes and nothing else; see `relay_costs`.

    Raises: UsageError: bad sets or sizes, or no room (names the setting to raise).
    """

    @told_in_making
    def __init__(
        self,
        device: Device,
        attention: Sequence[int],
        experts: Sequence[int],
        slots: int,
        hidden: int,
        max_tokens: int,
        topk: int,
        *,
        quant: str | None = None,
        max_rows: int | None = None,
        mode: str = "trampoline",
        engine: str = "mte",
        micro_batches: int = 1,
        a2e_costs: RelayCosts | None = None,
        e2a_costs: RelayCosts | None = None,
    ) -> None:
        _check_sizes(
            slots=slots, hidden=hidden, max_tokens=max_tokens, topk=topk, micro_batches=micro_batches
        )
        if quant not in (None, "int8"):
            raise UsageError(f"a2e: quant {quant!r} is not one of None, 'int8'")
        if engine not in ENGINES:
            raise UsageError(f"a2e: engine {engine!r}: choose mte or urma{nearest(engine, ENGINES)}")
        self.device, self.slots, self.hidden = device, slots, hidden
        self.max_tokens, self.topk, self._engine = max_tokens, topk, engine
        self.relays = Relays.of(device.num_ranks, attention, experts, mode)
        most = len(self.relays.attention) * max_tokens * min(topk, slots)
        self.max_rows = most if max_rows is None else max_rows
        self._form = RowFormat(hidden, slots, quant == "int8")
        self._wide = RowFormat(hidden, slots * self.relays.group_size, quant == "int8")
        self._back_form = RowFormat(hidden, slots)
        self._a2e = a2e_costs or RelayCosts(hidden + 4 if quant else 4 * hidden)
        self._e2a = e2a_costs or RelayCosts(4 * hidden)
        self._me = self._number(device.rank)
        self._lanes = self._carve(micro_batches)

    @property
    def role(self) -> str:
        """ "attention", "trampoline", "expert" or "none"."""
        if self.device.rank in self.relays.attention:
            return "attention"
        if self.device.rank not in self.relays.experts:
            return "none"
        return "trampoline" if self._me < self.relays.num_trampolines else "expert"

    def records(self, micro_batch: int = 0) -> dict[str, int]:
        """Metadata records this rank has stored so far, by hop."""
        lane = self._lanes[micro_batch]
        return {name: getattr(lane, name).records for name in ("out", "forward", "back", "home")}

    def rows_pulled(self, micro_batch: int = 0) -> dict[str, int]:
        """Charged rows this rank has pulled so far, by hop."""
        lane = self._lanes[micro_batch]
        return {name: getattr(lane, name).rows_pulled for name in ("out", "forward", "back", "home")}

    def _served(self) -> range:
        """Ranks I serve, myself first; only me when I am no trampoline."""
        if self.role != "trampoline":
            return range(self.device.rank, self.device.rank + 1)
        return self.relays.experts[self._me :: self.relays.num_trampolines]

    # --- shared -----------------------------------------------------------------------------------------

    def _carve(self, micro_batches: int) -> list[Lane]:
        relays, pair = self.relays, self.max_tokens * self.topk
        group = self.max_rows * relays.group_size
        hops = [
            (block_of(pair, self._wide), relays.num_trampolines),
            (block_of(group if relays.group_size > 1 else 1, self._form), max(1, relays.most_forwards)),
            (block_of(self.max_rows if relays.group_size > 1 else 1, self._back_form), 1),
            (block_of(group, self._back_form), len(relays.attention)),
        ]
        sizes = [Stage.nbytes(*hop) for hop in hops]
        what = (
            f"a2e {relays.attention}:{relays.experts} {'direct' if relays.direct else 'trampoline'} by "
            f"{self._engine}, {self.slots}x{self.hidden}, {self.max_tokens} tokens to {self.topk}, "
            f"at most {self.max_rows} rows{' of int8' * self._form.int8} x {micro_batches}"
        )
        base, word, _ = self.device.symmetric.carve(
            Area.MANAGED, micro_batches * sum(sizes), what, words=4 * micro_batches
        )
        lanes = []
        for _ in range(micro_batches):
            stages = []
            for (block, width), size in zip(hops, sizes, strict=True):
                stages.append(Stage(self.device, block, width, base, word))
                base, word = base + size, word + 1
            lanes.append(Lane(stages[0], stages[1], stages[2], stages[3]))
        return lanes

    # --- who cannot take part ---------------------------------------------------------------------------

    def _refuse(self, lane: Lane, costs: RelayCosts, error: UsageError) -> UsageError:
        """I cannot take part in the event of a lane: tell the others; returns what all raise."""
        said = give_up(self.device, lane.out.word, lane.event, error)
        return self._pass_on(lane, costs, self.device.rank, said)

    def _hear(self, lane: Lane, costs: RelayCosts, who: int) -> UsageError:
        """Rank `who` cannot take part in the event of a lane: tell the others; returns what all raise."""
        said = given_up(self.device, lane.out.word, lane.event, who)
        return self._pass_on(lane, costs, who, said)

    def _pass_on(self, lane: Lane, costs: RelayCosts, who: int, said: UsageError) -> UsageError:
        """Tell whom I would send to, and wait until all I would hear from know: my tables are free then."""
        event, others = lane.event, self._served()[1:]
        try:
            if self.role == "attention" and who == self.device.rank:
                lane.out.give_up(event, self.relays.trampolines, who, costs, self._me)
                lane.home.hear(event, self.relays.trampolines)
            if self.role == "expert":
                trampoline, _ = self.relays.place(self._me)
                lane.back.give_up(event, self.relays.trampolines[trampoline : trampoline + 1], who, costs, 0)
            if self.role == "trampoline":
                if others and not lane.is_open:
                    lane.forward.give_up(event, others, who, costs, 0)
                lane.home.give_up(event, self.relays.attention, who, costs, self._me)
                if others:
                    lane.back.hear(event, others)
        except (DeadlockError, FabricError):  # they do not come: what they get ends with the remark
            pass
        lane.event, lane.is_open = event + 1, False
        return said

    def _explained(self, error: DeadlockError) -> UsageError:
        names = {}
        for number, lane in enumerate(self._lanes):
            for stage, call in ((lane.out, "a2e_receive"), (lane.forward, "a2e_receive"),
                                (lane.back, "e2a_send"), (lane.home, "e2a_receive")):  # fmt: skip
                names[stage.word] = f"in {call} of micro-batch {number}"
        return explained(error, names, [*self.relays.attention, *self.relays.experts])

    def _number(self, rank: int) -> int:
        """My number in my set; -1 in none."""
        for ranks in (self.relays.attention, self.relays.experts):
            if rank in ranks:
                return ranks.index(rank)
        return -1

    def _lane(self, micro_batch: int, call: str, roles: tuple[str, ...]) -> Lane:
        if not 0 <= micro_batch < len(self._lanes):
            text = f"{call}: no micro-batch {micro_batch}; it was made for {len(self._lanes)}"
            raise refused(self.device, UsageError(text))
        if self.role not in roles:
            raise self._state(
                f"{call}: rank {self.device.rank} is {self.role}; for {' and '.join(roles)} only"
            )
        return self._lanes[micro_batch]

    def _state(self, text: str) -> UsageError:
        """What I cannot do now; in my remark too."""
        return refused(self.device, StateError(text))

    def _checked(self, x: Float32, slot_ids: Int64, charge: Int32 | None) -> Int64:
        tokens, num_slots = x.shape[0], len(self.relays.experts) * self.slots
        if tokens > self.max_tokens:
            raise UsageError(f"a2e: {tokens} rows, the block takes max_tokens={self.max_tokens}")
        check_array("a2e: x", x, (tokens, self.hidden))
        if slot_ids.shape != (tokens, self.topk) or slot_ids.dtype != np.int64:
            raise UsageError(
                f"a2e: slot_ids must be int64 [{tokens}, {self.topk}], "
                f"got {slot_ids.dtype} {list(slot_ids.shape)}"
            )
        bad = slot_ids[(slot_ids < 0) | (slot_ids >= num_slots)]
        if bad.size:
            raise UsageError(f"a2e: slot {bad[0]} does not exist; there are {num_slots}")
        if charge is not None and (
            charge.shape != (tokens,) or charge.dtype != np.int32 or charge.min(initial=1) < 1
        ):
            raise UsageError(f"a2e: charge must be int32 [{tokens}] of at least 1, got {charge!r:.80}")
        return np.ascontiguousarray(slot_ids).reshape(-1)

    def _check_rows(self, lane: Lane, costs: RelayCosts, rows: int) -> None:
        room = self.max_rows * len(self._served())
        if rows > room:
            text = f"a2e: rank {self.device.rank} gets {rows} rows, it has room for {room}; raise max_rows"
            raise self._refuse(lane, costs, UsageError(text))


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise UsageError(f"a2e: {name} must be at least 1, got {value}")
