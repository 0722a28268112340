"""The open source: what is written comes to every rank alike, the leader waits outside the engine, and a
recording gives the same commands at the same exchanges.

Mutations seen to fail here: the position not doubled by parity; a close that is not recorded; the leader that
does not look at hold.
"""

import threading
from pathlib import Path

import numpy as np
import pytest

from emulator.errors import UsageError
from serving.feed import (
    Abort,
    Add,
    Feed,
    FeedRequest,
    OpenSource,
    RecordedSource,
    is_recording,
    read_recording,
)
from serving.model.sampling import SamplingParams
from serving.outputs import OutputEvent, OutputReader, OutputSender, StatsEvent
from serving.request import Request, RequestSpec


def a_request(request_id: int, arrival_ps: int | None = None) -> FeedRequest:
    return FeedRequest(request_id, [1, 2, 3], 4, SamplingParams(temperature=0.5), 7, arrival_ps=arrival_ps)


def told(commands: list) -> list[tuple[str, int]]:
    return [("add", c.spec.request_id) if isinstance(c, Add) else ("abort", c.request_id) for c in commands]


def test_ranks_read_alike_even_one_exchange_apart_and_the_recording_reads_the_same(tmp_path: Path) -> None:
    feed = Feed.create(tmp_path)
    record = tmp_path / "record"
    leader = OpenSource(tmp_path, 0, str(record), {"job": {}})
    follower = OpenSource(tmp_path, 1)
    feed.add(a_request(0))
    leader.announce(False, 10)
    feed.add(a_request(1, arrival_ps=99))
    feed.abort(0)
    first = leader.take(10)
    leader.announce(False, 20)  # before the follower has looked at the first
    later = follower.take(10)
    assert told(first) == told(later) == [("add", 0)]
    assert told(leader.take(20)) == told(follower.take(20)) == [("add", 1), ("abort", 0)]
    feed.close()
    leader.announce(True, 30)
    assert leader.take(30) == follower.take(30) == []
    assert leader.closed and follower.closed and feed.now_ps == 30
    spec = first[0].spec
    assert (spec.arrival_ps, spec.prompt.tolist(), spec.max_output, spec.seed) == (10, [1, 2, 3], 4, 7)
    assert spec.params == SamplingParams(temperature=0.5)
    again = RecordedSource(record)
    assert is_recording(record) and read_recording(record)[0]["job"] == {}
    assert read_recording(record)[1][-1] == {"exchange": 2, "close": True}
    taken = []
    for now_ps in (10, 20, 30):
        again.announce(True, now_ps)
        taken.append(told(again.take(now_ps)))
    assert taken == [[("add", 0)], [("add", 1), ("abort", 0)], []] and again.closed


def test_an_idle_or_held_leader_waits_until_there_is_something(tmp_path: Path) -> None:
    feed = Feed.create(tmp_path)
    leader = OpenSource(tmp_path, 0)
    feed.hold()
    feed.add(a_request(0))
    passed = threading.Event()

    def wait() -> None:
        leader.announce(True, 5)
        passed.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not passed.wait(0.05)
    feed.release()
    assert passed.wait(60)
    thread.join()
    assert told(leader.take(5)) == [("add", 0)]


def test_a_writer_that_dies_has_closed(tmp_path: Path) -> None:
    feed = Feed.create(tmp_path)
    leader, follower = OpenSource(tmp_path, 0), OpenSource(tmp_path, 1)
    feed.add(a_request(0))
    leader.announce(True, 0)
    leader.take(0)
    follower.take(0)
    feed.forget()
    leader.announce(True, 0)
    assert leader.take(0) == follower.take(0) == []
    assert leader.closed and follower.closed


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "died"])
def test_a_writer_that_has_gone_before_the_leader_looks(closes: bool, tmp_path: Path) -> None:
    """Ctrl-C while ranks start. Mutation: a bell opened as pipes are, which waits for a writer for ever."""
    feed = Feed.create(tmp_path)
    if closes:
        feed.close()
    feed.forget()
    sources: list[OpenSource] = []
    thread = threading.Thread(target=lambda: sources.append(OpenSource(tmp_path, 0)), daemon=True)
    thread.start()
    thread.join(60)
    assert sources, "the leader waits for a writer"
    sources[0].announce(True, 5)
    assert sources[0].take(5) == [] and sources[0].closed


def test_a_broken_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text('{"format": "other"}\n')
    assert not is_recording(path)
    with pytest.raises(UsageError, match="superpod-recording-1"):
        read_recording(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_recording(tmp_path / "none")


def test_events_come_in_order_once_and_in_several_datagrams(tmp_path: Path) -> None:
    reader = OutputReader.bind(tmp_path)
    sender = OutputSender(tmp_path, 3)
    assert reader.read() == []
    requests = []
    for i in range(2):
        spec = RequestSpec(i, 9, np.arange(2), 2, 1, 2, False, 0)
        requests.append(Request(spec))
    stats = StatsEvent(3, 50, 0, 2, 10, 100, 0, 0, 0)
    for step in range(2):
        for request in requests:
            request.append_output(5 + step, 100 * step)
            sender.token(request, (5, -0.5, [(5, -0.5)]) if request.spec.request_id else None)
            if request.is_done:
                sender.ended(request)
        sender.flush(lambda: stats)
    sender.flush(lambda: stats)  # nothing new: nothing is sent
    events = reader.read()
    outputs = [event for event in events if isinstance(event, OutputEvent)]
    assert [(e.request_id, e.tokens, e.times_ps, e.finish) for e in outputs] == [
        (0, [5], [0], None),
        (1, [5], [0], None),
        (0, [6], [100], "length"),
        (1, [6], [100], "length"),
    ]
    assert outputs[0].logprobs is None and outputs[1].logprobs == [(5, -0.5, [(5, -0.5)])]
    assert [event for event in events if isinstance(event, StatsEvent)] == [stats] * 2
    reader.close()
    requests[0].num_ends = 0
    sender.ended(requests[0])
    sender.flush(lambda: stats)  # nobody reads any more


def test_an_abort_is_a_command() -> None:
    assert told([Abort(4)]) == [("abort", 4)]
