"""A full queue: the next request goes out as soon as a completion is taken. Pure.

So perftest measures bandwidth (linux-rdma/perftest `src/perftest_resources.c`, `run_iter_bw`): `--tx-depth`
requests under way from the first to the last, at most 16 completions a poll. Its figures (`print_report_bw`):
average, from the first post to the last completion; peak, the best run of requests from the post of its first
to the completion of its last. Here a run consists of whole batches of `depth` requests.

Waiting for a whole batch before the next one, as OSU does, adds the first request's start-up and the last
one's way to every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

POLL_BATCH = 16
"""Most completions that one call takes (perftest: CTX_POLL_BATCH)."""


def slide(
    post: Callable[[], None], take: Callable[[int], int], now: Callable[[], float], depth: int, batches: int
) -> tuple[list[float], list[float]]:
    """Run `batches * depth` requests with `depth` under way.

    Args:
        post: hands over one request. take: sleeps until completions are there, takes at most so many of them
            and returns how many. now: the clock, ps.

    Returns: when each batch's first request was posted, and when its last completion was taken, ps.
    """
    starts: list[float] = []
    ends: list[float] = []
    posted = done = 0
    while done < batches * depth:
        while posted < batches * depth and posted - done < depth:
            if posted % depth == 0:
                starts.append(now())
            post()
            posted += 1
        done += take(min(POLL_BATCH, posted - done))
        ends += [now()] * (done // depth - len(ends))
    return starts, ends


def intervals(starts: Sequence[float], ends: Sequence[float]) -> list[float]:
    """Time of each batch, ps, without gaps: from the end of the one before, the first from its first post."""
    return [end - before for before, end in zip([*starts[:1], *ends[:-1]], ends, strict=True)]


def peak(starts: Sequence[float], ends: Sequence[float]) -> float:
    """Shortest time of a batch, ps: the best mean over a run of batches, first post to last completion."""
    counts = np.arange(1, len(ends) + 1)
    means = (((np.array(ends[i:]) - start) / counts[: len(ends) - i]).min() for i, start in enumerate(starts))
    return float(min(means, default=0))
