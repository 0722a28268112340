"""What the ranks of an expert-parallel group share: memory for blocks and tables, channels, words.

Carved once for all ranks of the machine; disjoint groups use the same places and channels at the same time.
A *table* is what a rank says about its call beside its rows: facts that must be equal (`FIELDS`), a text
where it cannot take part, counts that others need. A *state* is which call a rank is in, for reports.
Tables and states cost no virtual time where they only check the program; counts are charged by the schemes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.ep.layout import Nodes, nodes_of
from collectives.ep.tables import HEAD_BYTES, STATE_BYTES, TEXT_BYTES, disagreement, unlike_calls
from emulator import Device
from emulator.errors import DeadlockError, MembershipChanged, RankLostError, UsageError
from emulator.rows import Records
from emulator.transport import Area

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
CHUNKS = 4
"""Pieces in which DeepEP's two hops follow each other; each has a signal word of its own."""
WORDS = CHUNKS + 2
"""Signal words of one operation of one micro-batch: one for each piece, two by parity for what ends it."""


class Ranks(NamedTuple):
    """A group: the device, machine ranks int64 [R], my place among them, where they sit."""

    device: Device
    members: Int64
    me: int
    nodes: Nodes

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return int(self.members.size)

    @property
    def whole(self) -> bool:
        """Is it all ranks of the machine, in order?"""
        return self.size == self.device.num_ranks and bool((self.members == np.arange(self.size)).all())


def ranks_of(device: Device, members: Any = None) -> Ranks:
    """Return the group of `members` (machine ranks in group order; None for all).

    Raises:
        UsageError: I am not a member, or one is named twice. RankLostError: one is known to be dead.
    """
    device.renew()
    chosen = np.arange(device.num_ranks) if members is None else np.asarray(members, np.int64)
    chosen = chosen.astype(np.int64)
    gone = chosen[device.dead[chosen] > 0] if device.config.keep_going else chosen[:0]
    if gone.size:
        raise RankLostError(
            f"expert group: ranks {gone.tolist()} are lost; make it of the living", gone.tolist()
        )
    mine = np.flatnonzero(chosen == device.rank)
    if mine.size != 1 or np.unique(chosen).size != chosen.size:
        raise UsageError(
            f"expert group: rank {device.rank} must be in it once, and nobody twice; got {chosen.tolist()}"
        )
    return Ranks(device, chosen, int(mine[0]), nodes_of(chosen, device.topology.dies_per_node))


def _largest(ranks: Ranks, out_bytes: int, back_bytes: int) -> tuple[int, int]:
    """Sizes that are enough for every group of the machine, which may have different numbers of ranks: the
    same on all. Costs a barrier where there are several groups; bytes are told in units of 64."""
    mine = [min(-(-size // 64), 2**31 - 1) for size in (out_bytes, back_bytes)]
    if ranks.whole:
        return out_bytes, back_bytes
    told = ranks.device.exchange(0, None, 0, tag=mine[0] << 32 | mine[1]).tags.astype(np.int64)
    return 64 * int((told >> 32).max()), 64 * int((told & (2**32 - 1)).max())


class Places(NamedTuple):
    """Where one operation of one micro-batch lies: channel, first of its words, offsets of blocks (two of
    `block_bytes`) and tables (two)."""

    channel: int
    word: int
    block: int
    block_bytes: int
    table: int


class EpArea:
    """The shared pieces of one buffer. Collective over all ranks of the machine: costs a barrier, or two with
    several groups.

    Args:
        ranks: my group. Groups of one machine are disjoint, and every rank is in one.
        out_bytes, back_bytes: a block of dispatch, of combine.
        micro_batches: how many may be in flight. sets: of channels, to change the group with `regroup`.

    Raises:
        UsageError: no room (names the setting to raise), or ranks ask for other sizes.
    """

    def __init__(
        self, ranks: Ranks, out_bytes: int, back_bytes: int, micro_batches: int, sets: int = 1
    ) -> None:
        self.ranks, device = ranks, ranks.device
        self.counts_at = HEAD_BYTES + TEXT_BYTES + -(-4 * device.num_ranks // 64) * 64
        self.table_bytes = self.counts_at + -(-4 * (3 * device.num_ranks + 1) // 64) * 64
        out_bytes, back_bytes = _largest(ranks, out_bytes, back_bytes)
        sizes = [-(-size // 64) * 64 for size in (out_bytes, back_bytes)]
        each = sum(2 * size + 2 * self.table_bytes for size in sizes)
        words = 2 * micro_batches * WORDS
        what = f"expert buffer {out_bytes} + {back_bytes} x {micro_batches}"
        spare = device.library.setdefault(EpArea, [])
        count = 2 * micro_batches * sets
        kept = next((piece for piece in spare if piece[1] == count), None)
        base, word, channel = device.symmetric.carve(
            Area.MANAGED, STATE_BYTES + micro_batches * each, what, words, 0 if kept else count
        )
        if kept:
            spare.remove(kept)
            channel = kept[0]
        self._channels = channel, count
        self._what = base, STATE_BYTES + micro_batches * each, what, word, words
        self._state, at, self._set = base, base + STATE_BYTES, 0
        self.places: list[tuple[Places, Places]] = []
        for _ in range(micro_batches):
            pair = []
            for size in sizes:
                pair.append(Places(channel, word, at, size, at + 2 * size))
                at, channel, word = at + 2 * (size + self.table_bytes), channel + 1, word + WORDS
            self.places.append((pair[0], pair[1]))
        self._rows(self._state, STATE_BYTES)[1][:] = 0
        self.open_groups(always=kept is not None)

    def open_groups(self, always: bool = False) -> None:
        """Tell the engine who takes part, where it is not everybody."""
        if always or not self.ranks.whole:
            for pair in self.places:
                for place in pair:
                    self.ranks.device.open_group(place.channel, self.ranks.members.astype(np.int32))

    def regroup(self, ranks: Ranks, mask: int) -> None:
        """Go on among other ranks; local. With mask 0 it is everybody again, on the first set of channels,
        else the ranks of `mask`, on the second and third in turns: a slow rank may still read what came on
        those of the mask before."""
        chosen = (2 if self._set == 1 else 1) if mask else 0
        step = 2 * len(self.places) * (chosen - self._set)
        self._set, self.ranks = chosen, ranks
        self.places = [
            (out._replace(channel=out.channel + step), back._replace(channel=back.channel + step))
            for out, back in self.places
        ]
        self._rows(self._state, STATE_BYTES)[1].view(np.int64)[2] = mask
        if mask:
            self.open_groups(always=True)

    def meet(self) -> None:
        """Wait until the ranks of the group are here: nobody reads blocks of earlier calls any more."""
        try:
            self.ranks.device.exchange(self.places[0][0].channel, None, 0, 4)
        except (DeadlockError, RankLostError) as error:
            raise self.why(error) from None

    def release(self) -> None:
        """Give memory and words back (collective); channels are kept for the next buffer like it."""
        self.ranks.device.library[EpArea].append(self._channels)
        base, nbytes, what, word, words = self._what
        self.ranks.device.symmetric.release(Area.MANAGED, base, nbytes, what, word, words)

    # --- tables -------------------------------------------------------------------------------------------

    def _rows(self, offset: int, nbytes: int) -> tuple[Bytes, Bytes]:
        """The piece of all ranks mapped here, uint8 [ranks, nbytes], and mine, uint8 [nbytes]."""
        memory, count = self.ranks.device.transport.piece(offset, nbytes)
        rows = memory.reshape(count, nbytes)
        return rows, rows[self.ranks.device.rank if count > 1 else 0]

    def _of_all(self, offset: int, nbytes: int) -> Bytes:
        """The piece of every member, uint8 [R, nbytes]; a copy."""
        rows, mine = self._rows(offset, nbytes)
        transport, members = self.ranks.device.transport, self.ranks.members
        if transport.kind == "shared":
            return rows[members]
        out = np.empty((members.size, nbytes), np.uint8)
        for place, rank in enumerate(members.tolist()):
            if rank == self.ranks.device.rank:
                out[place] = mine
            else:
                transport.start_read(rank, Area.MANAGED, offset, out[place])
        transport.flush_reads()
        return out

    def own_table(self, place: Places, parity: int) -> Bytes:
        """My table, uint8 [table_bytes]."""
        return self._rows(place.table + parity * self.table_bytes, self.table_bytes)[1]

    def tables(self, place: Places, parity: int) -> Bytes:
        """Tables of the group, uint8 [R, table_bytes]; a copy."""
        return self._of_all(place.table + parity * self.table_bytes, self.table_bytes)

    def column(self, place: Places, parity: int, offset: int, count: int = 1) -> Int32:
        """`count` numbers from byte `offset` of every member's table, int32 [R, count]; perhaps no copy."""
        at = place.table + parity * self.table_bytes
        if self.ranks.device.transport.kind == "shared":
            rows = self._rows(at, self.table_bytes)[0].view(np.int32)[:, offset // 4 : offset // 4 + count]
            return rows if self.ranks.whole else rows[self.ranks.members]
        return np.ascontiguousarray(self._of_all(at + offset, 4 * count)).view(np.int32)

    def enter(self, side: int, event: int) -> None:
        """Say which call I am in: 0 none, else 1 + micro-batch * 2 + operation."""
        state = self._rows(self._state, STATE_BYTES)[1].view(np.int64)
        state[0], state[1] = side, event

    # --- rows ---------------------------------------------------------------------------------------------

    def fetch(
        self, records: Records, base: int, stride: int, counts: Int32, first: Int32
    ) -> tuple[Records, Int32]:
        """Return records the row kernels can read `counts` from, source by source, and where each begins.

        Args:
            records: blocks of all mapped ranks. base: of my block in the managed area. stride: bytes of a
                record. counts, first: int32 [R].
        """
        ranks, transport = self.ranks, self.ranks.device.transport
        if transport.kind == "shared" and ranks.whole:
            return records, first
        after = np.cumsum(counts, dtype=np.int64)
        start = (after - counts).astype(np.int32)
        room = 1 << int(after[-1]).bit_length()
        local = np.empty((1, 1, room, stride), np.uint8)
        if transport.kind == "shared":
            source = np.repeat(np.arange(counts.size), counts)
            record = (np.arange(source.size) - start[source] + first[source]).astype(np.int64)
            local[0, 0, : source.size] = records.take(ranks.members[source], record)
        else:
            self._read(local.reshape(-1), base, stride, counts, first, start)
        return Records(np.broadcast_to(local, (1, counts.size, room, stride))), start

    def _read(self, flat: Bytes, base: int, stride: int, counts: Int32, first: Int32, start: Int32) -> None:
        """Under rma: one Get for each rank that holds rows for me, then one flush."""
        transport = self.ranks.device.transport
        for place in np.flatnonzero(counts).tolist():
            at, size = int(start[place]) * stride, int(counts[place]) * stride
            rank, offset = int(self.ranks.members[place]), base + int(first[place]) * stride
            transport.start_read(rank, Area.MANAGED, offset, flat[at : at + size])
        transport.flush_reads()

    # --- disagreement -------------------------------------------------------------------------------------

    def disagreement(self, tables: Bytes) -> UsageError:
        """What the group raises after an exchange whose tags are not all alike."""
        return disagreement(tables, self.ranks.members)

    def why(self, error: DeadlockError | RankLostError) -> Exception:
        """The reason of a deadlock where the states tell it: ranks of the group are in different calls. A
        dead one among them is the reason itself."""
        if isinstance(error, MembershipChanged):
            return error
        states = np.ascontiguousarray(self._of_all(self._state, STATE_BYTES)).view(np.int64)[:, :3]
        unlike = unlike_calls(states, self.ranks.members)
        if isinstance(error, RankLostError) and np.isin(error.ranks, self.ranks.members).any():
            return RankLostError(
                f"{error.message}; {unlike.message}" if unlike else error.message, error.ranks
            )
        return unlike or error
