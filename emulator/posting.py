"""Posts of one rank on their way to the engine, and records on their way back to those who posted.

    library -> post(): payload staged, order disturbed (adversarial delivery), handed over, recorded
    engine  -> inbox  -> the owner's callback, at each observation, in key order

An owner is one library on this device (verbs, messages, ...). Its number stands in the high byte of `user_b`
of everything it posts and in the high half of its match contexts; so a record finds its way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from emulator.engine.api import LOG_PUT, LOG_RMW, LOG_SNAPSHOT, LogRef
from emulator.engine.posts import (
    IN_DONE,
    IN_MATCH,
    IN_UNEXPECTED,
    INBOX_DTYPE,
    K_CLOSE,
    K_GET,
    K_PUT,
    K_SEND,
    K_WORD,
    ORD_FENCE,
    ST_OK,
    Posts,
)
from emulator.errors import InternalError, RankLostError, SizeError
from emulator.rmw import split_log_kinds
from emulator.rows import _ODD
from emulator.tracing import TRACE_DTYPE, Op
from emulator.transport import Bytes

if TYPE_CHECKING:
    from emulator.device import Device

OWNER_VERBS, OWNER_MESSAGES, OWNER_URMA, OWNER_WINDOWS, OWNER_PROBES = 1, 2, 3, 4, 5
_OWNER_SHIFT = 56
_CONTEXT_SHIFT = 32
_KINDS = np.arange(K_CLOSE + 1)
_STAGED = np.isin(_KINDS, (K_PUT, K_SEND))
_REMOTE = np.isin(_KINDS, (K_PUT, K_GET, K_WORD, K_SEND))
_ORDERED = np.isin(_KINDS, (K_PUT, K_WORD, K_SEND))
_COMPLETED = np.isin(_KINDS, (K_PUT, K_GET, K_WORD))
"""By kind: brings a payload; goes to another rank; can be ordered by a fence; `quiet` waits for it."""
_NOTHING = np.empty(0, np.uint8)
Int64 = npt.NDArray[np.int64]
Payload = Sequence[Bytes | None] | Bytes


class InboxRecord(NamedTuple):
    """One record of the inbox as plain integers; the fields of `INBOX_DTYPE`."""

    time_ps: int
    key: int
    seq: int
    value: int
    nbytes: int
    tag: int
    context: int
    user_a: int
    user_b: int
    file_id: int
    file_offset: int
    real_bytes: int
    kind: int
    rank: int
    status: int
    context_lo: int


assert InboxRecord._fields == INBOX_DTYPE.names
Callback = Callable[[InboxRecord], None]


class Posting:
    """What a device posts and gets back.

    Attributes:
        fence_seq: sequence number of my last fence, 0 without; for the `fence` field of posts with ORD_FENCE.
        seen: records taken from my inbox so far.
        owners: owner number -> callback.
        unquiet: whether something that `quiet` waits for was posted since the last one; a barrier begins with
            a quiet then.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._streams = 0
        self._reordering = False
        self.unquiet = False
        self.fence_seq = 0
        self.seen = 0
        self.owners: dict[int, Callback] = {}

    def new_stream(self) -> int:
        """Return a stream number this rank has not used yet."""
        self._streams += 1
        return self._streams

    @property
    def may_reorder(self) -> bool:
        """Whether my operations may take effect in another order than posted: adversarial delivery, or some
        of mine took more than UB's ports, which keep puts in order. A fence then needs ORD_FENCE on what
        follows."""
        return self._reordering or self._device.delivery.reorders

    # --- out --------------------------------------------------------------------------------------------

    def post(self, posts: Posts, data: Payload | None, call: Op, step_ps: int) -> int:
        """See `Device.post`."""
        device, posts = self._device, posts.copy()
        remote = _REMOTE[posts["kind"]]
        self._check_alive(posts["peer"][remote & (posts["state_word"] < 0)])
        self._keep_fence(posts)
        self.unquiet = self.unquiet or bool(_COMPLETED[posts["kind"]].any())
        flat = self._payload(posts, data)
        sums = self._checksums(posts, flat)
        np.add.at(device.ledger.wire, posts["plane"][remote], (posts["nbytes"] + posts["pull_bytes"])[remote])
        self._reordering = self._reordering or bool(_is_irregular(posts))
        real, first = device.delivery.disturb(posts)
        self._stage(real, flat)
        expected = self._expect(real)
        start = device.engine.now_ps
        seq = device.engine.post(real, step_ps)
        for row, ref in expected:
            device.memory.expected(seq + row, int(real["peer"][row]), ref)
        price = device.engine.config.call_price_ps + step_ps
        self._record(posts, first, sums, call, start, price)
        return seq

    def _keep_fence(self, posts: Posts) -> None:
        """Have what follows my last fence, and is in no queue of its own, wait for what went before."""
        if self.fence_seq and self.may_reorder:
            kinds = _ORDERED[posts["kind"]]
            after = (kinds | (split_log_kinds(posts["log_kind"])[0] == LOG_RMW)) & (posts["stream"] == 0)
            posts["order"][after] |= ORD_FENCE
            posts["fence"][after] = self.fence_seq

    def _check_alive(self, peers: npt.NDArray[np.int32]) -> None:
        dead = self._device.dead
        if peers.size and peers.min() >= 0 and peers.max() < dead.size and dead[peers].any():
            lost = int(peers[dead[peers] != 0][0])
            where = f"(rank {self._device.rank}, {self._device.now_ps} ps)"
            raise RankLostError(f"post: rank {lost} is dead {where}", [lost])

    def _payload(self, posts: Posts, data: Payload | None) -> Bytes:
        """Payloads one after another; fills in `real_bytes` of a list's, and the usual log kinds."""
        if data is None:
            flat = np.empty(0, np.uint8)
        elif isinstance(data, np.ndarray):
            flat = data
        else:
            pieces = [_NOTHING if piece is None else piece for piece in data]
            if len(pieces) != posts.size:
                raise SizeError(f"post: {len(pieces)} payloads for {posts.size} posts", value=len(pieces))
            sends = _STAGED[posts["kind"]]
            posts["real_bytes"][sends] = np.array([piece.size for piece in pieces], np.int64)[sends]
            flat = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        staged = int(posts["real_bytes"][_STAGED[posts["kind"]]].sum())
        if flat.size != staged:
            raise SizeError(
                f"post: real_bytes are {staged} in all, the payload has {flat.size}", value=flat.size
            )
        plain = (posts["log_kind"] == 0) & (posts["real_bytes"] > 0)
        posts["log_kind"][plain & (posts["kind"] == K_PUT)] = LOG_PUT
        posts["log_kind"][plain & (posts["kind"] == K_GET)] = LOG_SNAPSHOT
        return flat

    def _stage(self, posts: Posts, flat: Bytes) -> None:
        """Copy payloads to the pools of their targets and fill in where they are."""
        if not flat.size:
            return
        memory = self._device.memory
        if posts.size == 1:
            logged = int(posts["log_kind"][0] != 0)
            file_id, at, op_id = memory.stage_one(int(posts["peer"][0]), flat, logged)
            posts["file_id"], posts["file_offset"], posts["op_id"] = file_id, at, op_id
            return
        rows = np.flatnonzero(_STAGED[posts["kind"]] & (posts["real_bytes"] > 0))
        ends = np.cumsum(posts["real_bytes"][rows])
        peers = posts["peer"][rows]
        for peer in np.unique(peers).tolist():
            mine = np.flatnonzero(peers == peer)
            sizes = posts["real_bytes"][rows[mine]]
            data = flat if mine.size == rows.size else _picked(flat, ends[mine], sizes)
            logged = int(np.count_nonzero(posts["log_kind"][rows[mine]]))
            places = memory.stage_pieces(peer, data, sizes, logged)
            posts["file_id"][rows[mine]], posts["file_offset"][rows[mine]] = (
                places.file_ids,
                places.file_offsets,
            )
            posts["op_id"][rows[mine]] = places.op_ids

    def _expect(self, posts: Posts) -> list[tuple[int, LogRef]]:
        """Make room for what gets and atomics will bring; returns (row, place) of each."""
        gets = (posts["kind"] == K_GET) & (posts["log_kind"] > 0)
        if not gets.any():
            return []
        made = []
        posts["log_kind"], operations = split_log_kinds(posts["log_kind"])
        for row in np.flatnonzero(gets).tolist():
            post = posts[row]
            place = int(post["peer"]), int(post["offset"]), int(post["real_bytes"])
            ref = self._device.memory.expect(*place, int(operations[row]))
            post["file_id"], post["file_offset"], post["op_id"] = ref.file_id, ref.file_offset, ref.op_id
            made.append((row, ref))
        return made

    def _checksums(self, posts: Posts, flat: Bytes) -> npt.NDArray[np.uint64]:
        """Of the payload of each post; 0 without."""
        sums = np.zeros(posts.size, np.uint64)
        if not flat.size:
            return sums
        sizes = np.where(_STAGED[posts["kind"]], posts["real_bytes"], 0)
        if posts.size == 1:
            sums[0] = self._device.rows.checksum(flat)
            return sums
        if (sizes == sizes[0]).all():
            return _checksums_of_equals(flat.reshape(posts.size, -1))
        low = 0
        for row, size in enumerate(sizes.tolist()):
            sums[row] = self._device.rows.checksum(flat[low : low + size])
            low += size
        return sums

    def _record(
        self,
        posts: Posts,
        first: Int64 | None,
        sums: npt.NDArray[np.uint64],
        call: Op,
        start: int,
        price: int,
    ) -> None:
        """One trace record for each post as given, whatever became of it."""
        steps = np.arange(posts.size + 1) if first is None else first
        records = np.zeros(posts.size, TRACE_DTYPE)
        records["start_ps"], records["end_ps"] = start + steps[:-1] * price, start + steps[1:] * price
        records["nbytes"], records["checksum"] = posts["nbytes"], sums
        records["peer"], records["op"] = posts["peer"], call
        self._device.trace.add_batch(records)

    # --- back -------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Hand the records up to now to their owners, in key order."""
        records = self._device.engine.inbox()
        if not records.size:
            return
        self.seen += records.size
        for record in map(InboxRecord._make, records.tolist()):
            matched = record.kind in (IN_MATCH, IN_UNEXPECTED)
            owner = record.context >> _CONTEXT_SHIFT if matched else record.user_b >> _OWNER_SHIFT
            if owner not in self.owners:
                raise InternalError(f"rank {self._device.rank}: no owner {owner} for {record}")
            self.owners[owner](record)

    def take(self, record: InboxRecord) -> Bytes:
        """See `Device.take`."""
        memory = self._device.memory
        if record.kind == IN_DONE and memory.is_expected(record.seq):
            return memory.finish_get(record.seq, wanted=record.status == ST_OK)
        if record.status != ST_OK:
            return np.empty(0, np.uint8)
        return memory.take(record.file_id, record.file_offset, record.real_bytes)


def _is_irregular(posts: Posts) -> bool:
    """Whether some operation takes another way than a plain put, which the ports of plane 0 keep in order."""
    moved = _ORDERED[posts["kind"]]
    other = (posts["unit"] >= 0) | (posts["plane"] > 0) | (posts["start_ps"] > 0) | (posts["tail_ps"] > 0)
    return bool((moved & (other | (posts["stream"] > 0) | (posts["rd_below"] > 0))).any())


def _picked(flat: Bytes, ends: Int64, sizes: Int64) -> Bytes:
    """Some of the payloads that lie one after another in `flat`, given where each ends and how long it is."""
    return np.concatenate(
        [flat[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
    )


def _checksums_of_equals(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """`rows.checksum` of each row of uint8 [count, size], size at least 1."""
    count, size = rows.shape
    words = np.zeros((count, -(-size // 8)), np.uint64)
    words.view(np.uint8)[:, :size] = rows
    multiplier = np.arange(words.shape[1], dtype=np.uint64) * np.uint64(2 * _ODD % 2**64) + np.uint64(_ODD)
    mixed = (words ^ (words >> np.uint64(29))) * multiplier
    sums: npt.NDArray[np.uint64] = mixed.sum(axis=1, dtype=np.uint64) + np.uint64(size * _ODD % 2**64)
    return sums
