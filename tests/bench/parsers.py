"""Parsers for benchmark text, written from the real tools' documented headers and from nothing of ours.

Sources: linux-rdma/perftest README and `perftest_parameters.h` (result headers); OSU micro-benchmarks README
(one-sided and point-to-point tests, `osu_mbw_mr`).
"""

from __future__ import annotations

import re

PERFTEST_BW = "#bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps]"
PERFTEST_LAT = (
    "#bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec] "
    "99% percentile[usec] 99.9% percentile[usec]"
)
BW_KEYS = ("MsgSize", "n_iterations", "BW_peak", "BW_average", "MsgRate")
LAT_KEYS = ("MsgSize", "n_iterations", "t_min", "t_max", "t_typical", "t_avg", "t_stdev", "t_99", "t_999")


def perftest(text: str) -> tuple[str, list[dict[str, float]]]:
    """(test name, rows) of a perftest output."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    titles = [line for line in lines if line.endswith((" BW Test", " Latency Test"))]
    keys = BW_KEYS if PERFTEST_BW in lines else LAT_KEYS
    start = lines.index(PERFTEST_BW if keys is BW_KEYS else PERFTEST_LAT)
    end = next(i for i in range(start, len(lines)) if set(lines[i]) == {"-"})
    rows = [dict(zip(keys, map(float, line.split()), strict=True)) for line in lines[start + 1 : end]]
    return titles[0], rows


def osu(text: str) -> tuple[str, list[dict[str, float]]]:
    """(test name, rows by column title) of an OSU output; one-sided tests must say how they synchronise."""
    comments = [line[1:].strip() for line in text.splitlines() if line.startswith("#")]
    found = re.fullmatch(r"OSU (\S+|MPI Multiple) (.+) Test v\S+", comments[0])
    assert found, comments[0]
    if found[1].startswith("MPI_"):
        assert comments[1].startswith("Window creation: ") and comments[2].startswith("Synchronization: ")
    header = re.split(r"\s{2,}", comments[-1])
    assert header[0] == "Size", header
    body = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return comments[0], [dict(zip(header, map(float, row), strict=True)) for row in body]
