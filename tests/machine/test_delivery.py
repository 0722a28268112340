"""Adversarial delivery: what it may change and what it must leave, for many seeds."""

import itertools

import numpy as np
import pytest

from emulator.delivery import RAILS, REACH, Delivery, is_breakable
from emulator.engine.api import ADD, LOG_PUT, NO_OP, SET
from emulator.engine.posts import (
    DONE_ALWAYS,
    K_CLOSE,
    K_GET,
    K_LOCAL,
    K_PUT,
    K_RECV,
    K_SEND,
    K_WORD,
    ORD_FENCE,
    ORD_STREAM,
    ORD_STRONG,
    ORD_TRACK,
    POST_DTYPE,
    new_posts,
)

LATENCY = np.array([[100, 200, 1200], [10, 20, 120]], np.int64)
SEEDS = range(200)


def adversary(seed: int, rank: int = 0) -> Delivery:
    return Delivery.adversarial(seed, rank, LATENCY, itertools.count(1).__next__)


def put(**fields):
    usual = {"kind": K_PUT, "peer": 2, "nbytes": 100, "real_bytes": 100, "offset": 40, "log_kind": LOG_PUT}
    return new_posts(1, **{**usual, **fields})


def test_natural_delivery_changes_nothing() -> None:
    posts = put()
    same, first = Delivery.natural().disturb(posts)
    assert same is posts and first is None and not Delivery.natural().reorders


def test_equal_seeds_give_equal_posts_and_others_do_not() -> None:
    posts = np.concatenate([put(), put(offset=8), new_posts(1, kind=K_GET, peer=1)])
    one, two = (adversary(5).disturb(posts)[0].tobytes() for _ in range(2))
    assert one == two
    assert len({adversary(s, r).disturb(posts)[0].tobytes() for s in range(20) for r in range(3)}) == 60
    again = adversary(1)
    again.disturb(posts)
    again.reseed(5)
    assert again.disturb(posts)[0]["tail_ps"].tolist() == adversary(5).disturb(posts)[0]["tail_ps"].tolist()


def test_a_put_s_rails_cover_its_bytes_once_and_its_signal_waits_for_them() -> None:
    seen = set()
    for seed in SEEDS:
        out, first = adversary(seed).disturb(put(op=ADD, word=3, value=9, nbytes=250, order=ORD_TRACK))
        rails, signal = out[:-1], out[-1]
        seen.add(rails.size)
        assert first.tolist() == [0, out.size] and 1 <= rails.size <= RAILS
        ends = rails["offset"] + rails["real_bytes"]
        assert rails["offset"].tolist() == [40, *ends[:-1].tolist()] and ends[-1] == 140
        assert rails["nbytes"].sum() == 250 and (rails["op"] == NO_OP).all()
        assert (rails["order"] == ORD_TRACK).all() and len(set(out["stream"].tolist())) == 1 != 0
        assert signal["order"] == ORD_TRACK | ORD_STREAM and signal["log_kind"] == 0
        assert (signal["op"], signal["word"], signal["value"], signal["nbytes"]) == (ADD, 3, 9, 0)
    assert seen == {1, 2, 3, 4}


def test_delays_stay_within_reach_and_are_often_none() -> None:
    tails = [int(t) for s in SEEDS for t in adversary(s).disturb(put())[0]["tail_ps"]]
    assert 0.3 < tails.count(0) / len(tails) < 0.7
    assert max(tails) <= REACH * 1200 and max(tails) > REACH * 900


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": 4, "order": ORD_STREAM},
        {"done": DONE_ALWAYS},
        {"note": 1},
        {"region_word": 8},
        {"state_word": 8},
        {"rd_below": 1},
        {"real_bytes": 0},
        {"kind": K_SEND},
    ],
)
def test_what_somebody_could_tell_apart_is_not_cut(fields: dict) -> None:
    """rd_below: a stream of the rails would count only that stream's answers, and a put that waits for a get
    would not wait."""
    assert not is_breakable(put(**fields)[0])
    for seed in SEEDS:
        posts = put(op=SET, **fields)
        out, first = adversary(seed).disturb(posts)
        assert out.size == 1 and first.tolist() == [0, 1]
        for name in POST_DTYPE.names:
            assert out[name] == posts[name] or name in ("tail_ps", "done_ps")


@pytest.mark.parametrize(
    ("kind", "late"),
    [
        (K_PUT, {"tail_ps", "done_ps"}),
        (K_SEND, {"tail_ps", "done_ps"}),
        (K_GET, {"start_ps", "tail_ps", "done_ps"}),
        (K_WORD, {"start_ps", "done_ps"}),
        (K_LOCAL, set()),
        (K_RECV, set()),
        (K_CLOSE, set()),
    ],
)
def test_each_kind_is_late_where_it_may_be(kind: int, late: set) -> None:
    changed = set()
    posts = new_posts(1, kind=kind, peer=2, order=ORD_FENCE | ORD_STRONG, fence=3)
    for seed in SEEDS:
        out, _ = adversary(seed).disturb(posts)
        changed |= {name for name in POST_DTYPE.names if out[name] != posts[name]}
    assert changed == late
