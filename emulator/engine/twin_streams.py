"""Streams and answers in plain Python: what a poster knows of its own operations.

Everything here happens at the poster: which operations are answered, who may start, the order of records of
a stream, what is flushed when one fails. No event at one rank asks what another one knows.
"""

from abc import abstractmethod

from emulator.engine.posts import (
    DONE_ALWAYS,
    DONE_ON_ERROR,
    DONE_SENT,
    IN_DONE,
    K_PUT,
    ST_FLUSH,
    ST_OK,
)
from emulator.engine.twin_events import S_START, Op, key_of
from emulator.engine.twin_inbox import Inboxes, file_of

Pair = tuple[int, int]  # (poster, target) or (poster, stream)


class Streams(Inboxes):
    """The poster's side of its operations.

    kept: by poster, operations that wait to start; {stream: in order}.
    streams: operations of a stream whose record is still to come, in order.
    dead: streams that failed, as the poster knows it.
    """

    kept: dict[int, dict[int, list[Op]]]
    streams: dict[Pair, list[Op]]
    dead: set[Pair]

    @abstractmethod
    def go_void(self, t: int, op: Op) -> None: ...

    def finish(self, t: int, op: Op, status: int, old: int = 0) -> None:
        """The operation has ended, as its poster learns at t; once."""
        if op.finished:
            return
        op.finished, op.status, op.old = True, status, old
        r = op.poster
        self.m.unacked[r] -= op.kind == K_PUT
        if self.gets.get(r, {}).pop(op.seq, None) is not None:
            self.go_on(t, r)
        if op.post.stream:
            self.report_stream(t, op)
        else:
            self.report(t, op)

    def report_stream(self, t: int, op: Op) -> None:
        """Records of a stream come in order; a rendezvous, which may take for ever, waits for nobody and
        nobody for it."""
        name = op.poster, op.post.stream
        waiting = self.streams[name]
        if op.is_rendezvous:
            waiting.remove(op)
            self.report(t, op)
        for x in waiting[:]:
            if x.finished:
                waiting.remove(x)
                self.report(t, x)
            elif not x.is_rendezvous:
                break
        if not waiting:
            del self.streams[name]

    def report(self, t: int, op: Op) -> None:
        done = op.post.done
        if op.silent or not (
            done in (DONE_ALWAYS, DONE_SENT) or (done == DONE_ON_ERROR and op.status != ST_OK)
        ):
            return
        self.record(op.poster, t, IN_DONE, op.peer, op.status, op, op.old, op.nbytes, op, file_of(op))

    def may_start(self, op: Op) -> bool:
        """Fewer than `rd_below` of the earlier gets and atomics (of its stream) are unanswered."""
        below, stream = op.post.rd_below, op.post.stream
        if not below:
            return True
        gets = self.gets.get(op.poster, {})
        return bool(sum(seq < op.seq and stream in (0, s) for seq, s in gets.items()) < below)

    def keep(self, op: Op) -> bool:
        """Must `op` wait to start? Then it does."""
        r, stream = op.poster, op.post.stream
        waiting = self.kept.get(r, {}).get(stream, [])
        behind = stream > 0 and any(x.seq < op.seq for x in waiting)
        if self.may_start(op) and not behind:
            return False
        waiting = self.kept.setdefault(r, {}).setdefault(stream, [])
        waiting.append(op)
        waiting.sort(key=lambda x: x.seq)
        return True

    def go_on(self, t: int, r: int) -> None:
        """An answer came to r: who may start now?"""
        for stream, waiting in self.kept.get(r, {}).items():
            for op in waiting[:]:
                if self.may_start(op):
                    waiting.remove(op)
                    self.push(r, t, key_of(r, op.seq, 0, S_START), r, op)
                elif stream:
                    break

    def end_stream(self, t: int, name: Pair, after: int, silent: bool = False) -> None:
        """The stream is dead: what was posted to it before t, with numbers above `after`, is flushed."""
        self.dead.add(name)
        late = [op for op in self.streams.get(name, ()) if op.seq > after and op.posted < t]
        for op in late:
            op.silent |= silent
        for op in late:
            self.flush(t, op)

    def flush(self, t: int, op: Op) -> None:
        self.finish(t, op, ST_FLUSH)
        waiting = self.kept.get(op.poster, {}).get(op.post.stream, [])
        if op in waiting:
            waiting.remove(op)
            self.go_void(t, op)

    def failure(self, t: int, op: Op, status: int) -> None:
        """S_FAIL: the poster learns that the operation failed."""
        self.finish(t, op, status)
        name = op.poster, op.post.stream
        if op.post.stream and name not in self.dead:
            self.end_stream(t, name, op.seq)
        self.tell(op.poster, t)
