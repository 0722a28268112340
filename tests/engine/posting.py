"""Small machines and records by name, for tests of posts in closed form."""

from emulator.engine import EngineConfig
from emulator.engine.api import PlaneConfig
from emulator.engine.posts import INBOX_DTYPE

PUT, REQUEST, RESPONSE, ACK = 100, 40, 60, 30
"""Latencies of every class of `machine`; a byte takes 1 ps, a call 1 ps."""
SLOW = PlaneConfig((700,) * 4, (700,) * 4, (700,) * 4, (700,) * 4, (10**11,) * 4, (10**11,) * 4)
"""A plane where a byte takes 10 ps."""


def machine(num_ranks: int = 2, planes=(), **more) -> EngineConfig:
    return EngineConfig(
        num_ranks=num_ranks,
        dies_per_chip=1,
        dies_per_node=16,
        put_latency_ps=(PUT,) * 4,
        request_latency_ps=(REQUEST,) * 4,
        response_latency_ps=(RESPONSE,) * 4,
        ack_latency_ps=(ACK,) * 4,
        write_bytes_per_s=(10**12,) * 4,
        read_bytes_per_s=(10**12,) * 4,
        planes=tuple(planes),
        words_per_rank=16,
        wall_deadline_s=20,
        **more,
    )


class Record(dict):
    """A record of an inbox, fields as attributes."""

    __getattr__ = dict.__getitem__


def records(log) -> list[Record]:
    """Everything a program took from its inbox."""
    return [
        Record(zip(INBOX_DTYPE.names, row, strict=True))
        for step in log
        if step.call == "inbox"
        for row in step.value
    ]


def times(log, **wanted) -> list[int]:
    """When the records came whose fields are as wanted."""
    return [r.time_ps for r in records(log) if all(r[name] == value for name, value in wanted.items())]


def post(*rows, step=0):
    """A program's post of rows of fields."""
    return "post", {"posts": rows, "step": step}


def sleep(ps):
    return "compute", {"ps": ps}


def until(ps):
    """Wait asleep and see everything up to then, then take the records."""
    yield sleep(ps)
    yield "observe", {}
    yield "inbox", {}


def poster(*rows, before=0, ps=20_000):
    """A rank that posts rows at once and looks at what came of them."""
    if before:  # the first row is posted at before + 2
        yield sleep(before)
    yield post(*rows)
    yield from until(ps)


def idle(ps=20_000):
    """A rank that only looks at the end."""
    yield from until(ps)
