"""Guards, word operations and inbox records in plain Python: what an operation does at one rank."""

from typing import Any

from emulator.engine import api
from emulator.engine.codes import DEAD, EXITED, FATAL_INBOX, FATAL_LOG
from emulator.engine.config import wrap
from emulator.engine.posts import IN_NOTE, ST_LOST, ST_OK, ST_REGION
from emulator.engine.twin_events import Op
from emulator.engine.twin_exchange import Exchanges

File = tuple[int, int, int]
NOWHERE: File = (-1, 0, 0)


def file_of(op: Op) -> File:
    """Where the operation's payload is staged: file, offset, bytes."""
    return op.post.file_id, op.post.file_offset, op.post.real_bytes


def combine(operation: int, old: int, value: int, compare: int) -> int:
    """What an atomic makes of a word."""
    if operation == api.ATOMIC_ADD:
        return wrap(old + value)
    if operation == api.SWAP:
        return value
    if operation == api.CAS:
        return value if old == compare else old
    if operation == api.ATOMIC_AND:
        return old & value
    return old | value if operation == api.ATOMIC_OR else old ^ value


class Inboxes(Exchanges):
    """Things at one rank. `key` is that of the event under way; `fresh` are ranks with a new record in it."""

    key: int
    fresh: set[int]
    planes: list[Any]  # of `PlaneConfig`'s fields; plane 0 is the configuration itself

    # ---- records
    def record(
        self,
        p: int,
        t: int,
        kind: int,
        rank: int,
        status: int,
        who: Op,
        value: int,
        nbytes: int,
        what: Op,
        file: File,
    ) -> None:
        """Append to p's inbox: `who` gives sequence number and user fields, `what` tag and context."""
        m, cfg = self.m, self.cfg
        if m.state[p] in (EXITED, DEAD):
            return
        if m.inbox_head[p] - m.inbox_tail[p] >= cfg.inbox_entries:
            self.fail(FATAL_INBOX, p)
            return
        about, user = what.post, who.post
        low = (about.context + (1 << 31)) % (1 << 32) - (1 << 31)
        m.inboxes[p, m.inbox_head[p] % cfg.inbox_entries] = (
            (t, self.key, who.seq, value, nbytes, about.tag, about.context, user.user_a, user.user_b)
            + (*file, kind, rank, status, low)
        )  # fmt: skip
        m.inbox_head[p] += 1
        m.words[m.word_at(p, cfg.words_per_rank)] = m.inbox_head[p]
        self.fresh.add(p)

    def tell(self, p: int, t: int, word: int = -1) -> None:
        """All that an event changed at p is in place: is p's wait decided? `word` changed."""
        self.evaluate(p, t, word)
        if p in self.fresh:
            self.fresh.discard(p)
            self.evaluate(p, t, self.cfg.words_per_rank)

    def notice(self, p: int, t: int, op: Op, status: int) -> None:
        self.record(p, t, IN_NOTE, op.poster, status, op, op.value, op.nbytes, op, file_of(op))

    # ---- words
    def apply_word(self, p: int, op: Op) -> int:
        """SET or ADD on a word of p; returns the word, -1 for none."""
        if not op.op:
            return -1
        words, i = self.m.words, self.m.word_at(p, op.word)
        words[i] = op.value if op.op == api.SET else wrap(words[i] + op.value)
        return int(op.word)

    def append_log(self, p: int, op: Op, t: int, key: int, kind: int, a: int = 0, b: int = 0) -> None:
        ref: Any = op.ref
        if kind == api.LOG_DROP:
            a, b = op.kind, op.log_kind
            ref = ref if op.log_kind else ref._replace(offset=-1)
        if not self.m.append_log(p, (t, kind, op.poster, *ref, key, a, b)):
            self.fail(FATAL_LOG, p)

    # ---- guards
    def guards(self, p: int, op: Op) -> int:
        """May this operation act at p? ST_OK, ST_LOST (nobody answers) or ST_REGION."""
        post = op.post
        if post.state_word >= 0:
            status = self.guard_state(p, post)
            if status:
                return status
        return self.guard_region(p, post) if post.region_word >= 0 else ST_OK

    def guard_state(self, p: int, post: Any) -> int:
        if post.state_word >= self.cfg.words_per_rank:
            return ST_LOST
        state = self.m.words[self.m.word_at(p, post.state_word)] & 63
        if not post.state_mask >> state & 1:
            return ST_LOST
        return ST_REGION if post.deny_mask >> state & 1 else ST_OK

    def guard_region(self, p: int, post: Any) -> int:
        if post.region_word > self.cfg.words_per_rank - 4:
            return ST_REGION
        at = self.m.word_at(p, post.region_word)
        tag, base, length, access = (self.m.words[at + i] for i in range(4))
        begin, end = post.region_offset, post.region_offset + post.region_bytes
        inside = post.region_bytes >= 0 and begin >= base and end <= base + length
        open_ = tag == post.region_tag and inside and access & post.region_need == post.region_need
        return ST_OK if open_ else ST_REGION
