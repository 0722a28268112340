"""Only mpirun's notice of an exit status that a line of ours explains is left out."""

import os

import pytest

from launch.notices import NoticeFilter, StderrRelay

RULE = b"-" * 74 + b"\n"
STUBS = b"superpod-rank: the fork server ended before this rank did\n"
OURS = b"superpod: error: app.py, line 3: no rank 99\n"


def notice(code: int) -> bytes:
    head = b"prterun detected that one or more processes exited with non-zero status,\nthus causing the job"
    return RULE + head + b"\n\n   Process name: [x,1]\n   Exit code:    %d\n" % code + RULE


KILLED = RULE + b"prterun noticed that process rank 1 with PID 7 on node vm exited on\nsignal 9.\n" + RULE
CASES = [
    (OURS + notice(2), OURS),
    (b"a\n" + OURS + b"b\n" + notice(2) + b"c\n", b"a\n" + OURS + b"b\nc\n"),
    (notice(2), notice(2)),
    (OURS + notice(1), OURS + notice(1)),
    (STUBS + notice(1), STUBS),
    (STUBS + notice(2), STUBS + notice(2)),
    (STUBS + OURS + notice(1) + notice(2), STUBS + OURS),
    (OURS + notice(21), OURS + notice(21)),
    (OURS + KILLED, OURS + KILLED),
    (b"not " + OURS + notice(2), b"not " + OURS + notice(2)),
    (OURS + b"x" + notice(2), OURS + b"x" + notice(2)),
    (OURS + notice(2)[:100], OURS + notice(2)[:100]),
    (RULE + b"mine\n", RULE + b"mine\n"),
]


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize(("given", "shown"), CASES)
def test_what_is_shown_in_whatever_pieces_it_comes(given: bytes, shown: bytes, step: int) -> None:
    notices = NoticeFilter()
    pieces = [notices.feed(given[i : i + step]) for i in range(0, len(given), step)]
    assert b"".join(pieces) + notices.end() == shown


def test_text_without_an_end_of_line_is_shown_at_once() -> None:
    notices = NoticeFilter()
    assert [notices.feed(b"ready? "), notices.feed(b"yes\n"), notices.feed(b"--")] == [
        b"ready? ",
        b"yes\n",
        b"",
    ]
    assert notices.feed(b"!\n") == b"--!\n"


def test_the_relay_ends_with_the_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    relay = StderrRelay()
    child_end = os.dup(relay.fd)
    relay.start()
    os.write(child_end, OURS + notice(2) + b"end")
    os.close(child_end)
    relay.finish(10)
    assert capfd.readouterr().err == OURS.decode() + "end"
