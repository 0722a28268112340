"""What a rank makes of its records, against a match queue written from the standard's sentences alone."""

from dataclasses import dataclass

import numpy as np
import pytest

from emulator.engine.posts import IN_DONE, IN_MATCH, IN_UNEXPECTED, ST_FLUSH
from emulator.posting import OWNER_MESSAGES, InboxRecord
from memsem.endpoint import OWNER
from memsem.mailbox import Mailbox, Operation, packed
from memsem.mpi_errors import ERR_TRUNCATE, SUCCESS
from memsem.status import ANY_SOURCE, ANY_TAG

BLANK = InboxRecord(*[0] * len(InboxRecord._fields))
CONTEXT = OWNER_MESSAGES << 32


@dataclass
class Sent:
    source: int
    tag: int
    nbytes: int
    eager: bool


@dataclass
class Posted:
    number: int
    operation: Operation
    source: int
    tag: int


class Queue:
    """MPI-4 3.5: a receive takes the oldest message it fits, a message the oldest receive that fits it."""

    def __init__(self):
        self.mailbox, self.posted, self.unexpected = Mailbox(), [], []
        self.fetchable = []

    def tell(self, **fields):
        found = self.mailbox.take(BLANK._replace(context=CONTEXT, **fields))
        self.fetchable += [found] if found else []

    def arrive(self, sent):
        for receive in self.posted:
            if fits(receive, sent):
                self.posted.remove(receive)
                return self.match(receive, sent)
        self.unexpected.append(sent)
        return self.tell(kind=IN_UNEXPECTED, **fields_of(sent))

    def receive(self, operation, source, tag):
        receive = Posted(self.mailbox.open(operation), operation, source, tag)
        for sent in self.unexpected:
            if fits(receive, sent):
                self.unexpected.remove(sent)
                return self.match(receive, sent)
        return self.posted.append(receive)

    def match(self, receive, sent):
        operation = receive.operation
        self.tell(kind=IN_MATCH, user_b=OWNER | receive.number, **fields_of(sent))
        assert (operation.source, operation.tag, operation.nbytes) == (sent.source, sent.tag, sent.nbytes)
        assert operation.matched and operation.done == sent.eager
        if not sent.eager:
            self.tell(kind=IN_DONE, user_b=OWNER | receive.number)
        assert operation.done and self.fetchable.pop() is operation and not self.fetchable


def fits(receive, sent):
    return receive.source in (ANY_SOURCE, sent.source) and receive.tag in (ANY_TAG, sent.tag)


def fields_of(sent):
    return {"rank": sent.source, "tag": sent.tag, "value": packed(sent.nbytes, sent.eager)}


def follow(seed):
    """Random arrivals and receives with wildcards; after each step every probe gives the oldest that fits."""
    rng, queue = np.random.default_rng(seed), Queue()
    for _ in range(80):
        if rng.random() < 0.55:
            n = int(rng.choice([0, 8, 8, 1 << 33]))
            queue.arrive(Sent(int(rng.integers(3)), int(rng.integers(3)), n, bool(rng.random() < 0.5)))
        else:
            source, tag = int(rng.integers(-1, 3)), int(rng.integers(-1, 3))
            queue.receive(Operation("r", lambda data: None, 1 << 40), source, tag)
        for source in (ANY_SOURCE, 0, 1, 2):
            for tag in (ANY_TAG, 0, 1, 2):
                wanted = [s for s in queue.unexpected if fits(Posted(0, Operation(), source, tag), s)]
                found = queue.mailbox.find(CONTEXT, source, tag)
                assert (found and found[1:]) == (
                    (wanted[0].source, wanted[0].tag, wanted[0].nbytes) if wanted else None
                )
                assert queue.mailbox.find(CONTEXT + 2, source, tag) is None


@pytest.mark.parametrize("seed", range(60))
def test_what_can_be_probed_is_what_nobody_took(seed):
    follow(seed)


def newest(mailbox, context, source, tag):
    found = [e for e in mailbox._unexpected.get(context, []) if source in (-1, e[1]) and tag in (-1, e[2])]
    return found[-1] if found else None


@pytest.mark.parametrize(("part", "broken"), [("_forget", lambda *_: None), ("find", newest)])
def test_a_broken_mailbox_is_noticed(monkeypatch, part, broken):
    """Messages that stay findable after they were received; the newest found instead of the oldest."""
    monkeypatch.setattr(Mailbox, part, broken)
    with pytest.raises(AssertionError):
        for seed in range(5):
            follow(seed)


def test_a_send_ends_by_its_record_alone():
    mailbox, send = Mailbox(), Operation("Ssend(dest=1, tag=0)")
    number = mailbox.open(send)
    assert mailbox.under_way == ["Ssend(dest=1, tag=0)"] and not send.done
    assert mailbox.take(BLANK._replace(kind=IN_DONE, user_b=OWNER | number)) is None
    assert send.done and not mailbox.under_way


@pytest.mark.parametrize(
    ("room", "error"), [(7, ERR_TRUNCATE), (8, SUCCESS), (9, SUCCESS), (0, ERR_TRUNCATE)]
)
def test_truncation_is_judged_by_the_payload(room, error):
    queue, operation = Queue(), Operation("r", lambda data: None, room)
    queue.receive(operation, 0, 0)
    queue.arrive(Sent(0, 0, 8, True))
    assert operation.error == error and operation.nbytes == 8


def test_a_closed_receive_is_cancelled_and_has_nothing_to_fetch():
    mailbox, operation = Mailbox(), Operation("r", lambda data: None, 8)
    number = mailbox.open(operation)
    assert mailbox.take(BLANK._replace(kind=IN_DONE, status=ST_FLUSH, user_b=OWNER | number)) is None
    assert operation.done and operation.cancelled and not operation.matched
