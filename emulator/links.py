"""A rank's faulty links: what it hands to the engine is sent late, again, or never.

With link faults in the plan the rank's engine calls are wrapped: an operation that finds its link down leaves
at the tick of the ladder at which it gets through (`emulator.faults.links`), and nothing overtakes it on its
way to the same peer. One given up ends with status LOST at its poster; where no queue pair reports that, the
poster's next blocking call raises `LinkDownError`. Times follow from the plan and the post's own time, so
both engines agree. An exchange and an atomic are handed over when the slowest of their peers can be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from emulator.engine.api import LOG_PUT, LOG_SNAPSHOT, NO_OP, SET, Engine, LogRef
from emulator.engine.posts import K_GET, K_PUT, K_SEND, K_WORD, Posts, new_posts
from emulator.errors import LinkDownError
from emulator.faults.links import RDMA, LinkFault, Passage, passage, ub_ladder
from emulator.npu import ceil_ps
from emulator.topology import Topology

_REMOTE = (K_PUT, K_GET, K_WORD, K_SEND)
_BLOCKING = ("quiet", "wait", "wait_get", "exchange_wait", "observe")
_QUEUES = (1, 3, 5)
"""Owners (`emulator.posting`) whose queue pairs, jetties and probes report a lost operation themselves."""
_NOBODY = 1 << 30
"""A state word no rank has: an operation guarded by it ends with ST_LOST."""


class Links:
    """Wraps the calls of one rank's engine.

    Attributes:
        retries: operations sent again so far; given_up: (peer, ps) of those that never got through.
    """

    def __init__(self, engine: Engine, topology: Topology, faults: Sequence[LinkFault], seed: int) -> None:
        self._engine, self._topology, self._faults, self._seed = engine, topology, tuple(faults), seed
        self._ladder, self._number = ub_ladder(), 0
        self._held: dict[tuple[int, int], int] = {}
        self._unsaid: list[tuple[int, int]] = []
        self._crossed: dict[tuple[int, int], tuple[LinkFault, ...]] = {}
        self.retries, self.given_up = 0, list[tuple[int, int]]()
        names = ("put", "get", "atomic", "post", "exchange", "exchange_post", "schedule", *_BLOCKING)
        self._enter: dict[str, Callable[..., Any]] = {name: getattr(engine, name) for name in names}
        self._compute = engine.compute
        for name in names[:4]:
            setattr(engine, name, getattr(self, f"_{name}"))
        for name in ("exchange", "exchange_post", "schedule"):
            setattr(engine, name, self._meeting(name))
        for name in _BLOCKING:
            setattr(engine, name, self._telling(name))

    # --- one operation ----------------------------------------------------------------------------------

    def _way(self, peer: int, plane: int) -> tuple[LinkFault, ...]:
        key = peer, plane
        if key not in self._crossed:
            me = self._engine.rank
            crossed = [f for f in self._faults if f.crossed(me, peer, plane, self._topology)]
            self._crossed[key] = tuple(crossed)
        return self._crossed[key]

    def _pass(self, t: int, peer: int, plane: int, nbytes: int, ladder: Sequence[int]) -> Passage:
        """When an operation handed over at `t` leaves; what follows to the same peer leaves no earlier."""
        self._number += 1
        t = max(t, self._held.get((peer, plane), 0))
        found = passage(self._way(peer, plane), t, ladder, self._engine.rank, self._number, self._seed)
        extra = 0 if found.failed else self._extra_ps(peer, plane, nbytes, found.slower)
        found = found._replace(start_ps=found.start_ps + extra)
        if not found.failed:
            self._held[peer, plane] = found.start_ps
        self.retries += found.retries
        if found.failed:
            self.given_up.append((peer, found.start_ps))
        return found

    def _extra_ps(self, peer: int, plane: int, nbytes: int, times: Fraction) -> int:
        """What a slower link takes beyond the port's own time, ps."""
        if times == 1 or not nbytes:
            return 0
        config = self._engine.config
        rates = config.write_bytes_per_s if plane == 0 else config.planes[plane - 1].write_bytes_per_s
        occupy = ceil_ps(nbytes, rates[self._topology.link_class(self._engine.rank, peer)])
        return int(occupy * (times - 1))

    # --- the engine's calls -----------------------------------------------------------------------------

    def _post(self, posts: Posts, step_ps: int = 0) -> int:
        price = self._engine.config.call_price_ps + step_ps
        now, given = self._engine.now_ps, posts
        for i in range(len(posts)):
            row = posts[i]
            if row["kind"] not in _REMOTE or not self._way(int(row["peer"]), int(row["plane"])):
                continue
            if posts is given:
                posts = given.copy()
                row = posts[i]
            self._late(row, now + (i + 1) * price)
        return int(self._enter["post"](posts, step_ps))

    def _late(self, row: Any, at: int) -> None:
        """Change a row so that it leaves when its links let it."""
        plane, ladder = int(row["plane"]), self._ladder
        if plane == RDMA and row["state_word"] >= 0:  # a queue pair has its own time-out and retries
            ladder = (int(row["lost_ps"]),) * int(row["lost_retries"])
        start = at + int(row["start_ps"])
        found = self._pass(start, int(row["peer"]), plane, int(row["nbytes"]), ladder)
        row["start_ps"] += found.start_ps - start
        if found.failed:
            row["state_word"], row["lost_retries"], row["lost_ps"] = _NOBODY, 0, 1
            if int(row["user_b"]) >> 56 not in _QUEUES:
                self._unsaid.append((int(row["peer"]), found.start_ps))

    def _put(
        self, dst: int, nbytes: int, log: LogRef | None = None, word: int | None = None, op: int = SET,
        value: int = 0,
    ) -> None:  # fmt: skip
        if not self._way(dst, 0):
            self._enter["put"](dst, nbytes, log, word, op, value)
            return
        row = new_posts(1, kind=K_PUT, peer=dst, nbytes=nbytes, op=NO_OP)
        if word is not None:
            row["word"], row["op"], row["value"] = word, op, value
        self._post(_logged(row, log, LOG_PUT))

    def _get(self, src: int, nbytes: int, log: LogRef | None = None) -> int:
        if not self._way(src, 0):
            return int(self._enter["get"](src, nbytes, log))
        return self._post(_logged(new_posts(1, kind=K_GET, peer=src, nbytes=nbytes), log, LOG_SNAPSHOT))

    def _atomic(self, dst: int, *arguments: int) -> int:
        self._reach([dst], 0)
        result = int(self._enter["atomic"](dst, *arguments))
        self._tell()
        return result

    def _meeting(self, name: str) -> Callable[..., Any]:
        def meet(*arguments: Any, **named: Any) -> Any:
            self._reach(range(self._engine.config.num_ranks), 0)
            result = self._enter[name](*arguments, **named)
            self._tell()
            return result

        return meet

    def _telling(self, name: str) -> Callable[..., Any]:
        def block(*arguments: Any, **named: Any) -> Any:
            result = self._enter[name](*arguments, **named)
            self._tell()
            return result

        return block

    def _reach(self, peers: Sequence[int], plane: int) -> None:
        """Let time pass until all peers can be reached. Raises LinkDownError after the last retry."""
        now = self._engine.now_ps
        ways = [peer for peer in peers if self._way(peer, plane)]
        found = [self._pass(now, peer, plane, 0, self._ladder) for peer in ways]
        last = max((each.start_ps for each in found), default=now)
        self._unsaid += [(p, e.start_ps) for p, e in zip(ways, found, strict=True) if e.failed]
        if last > now:
            self._compute(last - now, 0, True)
        self._tell()

    def _tell(self) -> None:
        """Raise what was given up by now and nobody was told of."""
        now = self._engine.now_ps
        due = [entry for entry in self._unsaid if entry[1] <= now]
        if due:
            self._unsaid = [entry for entry in self._unsaid if entry[1] > now]
            peers, rank = sorted({peer for peer, _ in due}), self._engine.rank
            raise LinkDownError(
                f"no answer from ranks {peers} after {len(self._ladder)} retries (rank {rank}, {now} ps)",
                rank=rank, now_ps=now, peers=peers, given_up_ps=min(ps for _, ps in due),
            )  # fmt: skip


def _logged(row: Posts, log: LogRef | None, kind: int) -> Posts:
    """The post with what `Engine.put` and `get` say of its bytes."""
    if log is not None:
        for name, value in zip(("file_id", "file_offset", "offset", "real_bytes", "op_id"), log, strict=True):
            row[name] = value
        row["log_kind"] = kind
    return row
