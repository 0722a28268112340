"""From work requests to engine rows: which kind, guards, order and prices, without an engine."""

import pytest

from emulator.engine.api import LOG_PUT, LOG_SNAPSHOT
from emulator.engine.posts import (
    DONE_ALWAYS,
    DONE_ON_ERROR,
    DONE_SENT,
    K_GET,
    K_LOCAL,
    K_PUT,
    K_SEND,
    K_WORD,
    ORD_STREAM,
    POST_DTYPE,
)
from emulator.fabric import Shape
from memsem.verbs import rows
from memsem.verbs.enums import (
    IBV_SEND_FENCE,
    IBV_SEND_SIGNALED,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    ibv_wr_opcode,
)
from memsem.verbs.keys import Layout, QPNumber, encode_key, state_value, timeout_ps
from memsem.verbs.qpcap import QPAttr
from memsem.verbs.users import decode_message
from memsem.verbs.wr import SendWR

LAYOUT = Layout(0, 8, 8)
PEER = QPNumber(3, -1, 2).encode()
ATTR = QPAttr(timeout=4, retry_cnt=5, rnr_retry=6, max_rd_atomic=3)
PATH = rows.Path(7, PEER, QPNumber(1, -1, 0).encode(), 11, ATTR)
SHAPE = Shape(1, 1, 2, 3, 4, 1)


def row(opcode, nbytes=8, flags=IBV_SEND_SIGNALED, path=PATH, rkey=None, addr=4096, **kwargs):
    wr = SendWR(1, opcode, imm_data=0xABCD, send_flags=flags)
    rkey = encode_key(2, 1) if rkey is None else rkey
    if opcode in (IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD):
        wr.set_wr_atomic(rkey, addr, (1 << 64) - 1, 9)
    else:
        wr.set_wr_rdma(rkey, addr)
    return rows.build(wr, nbytes, bool(flags & IBV_SEND_SIGNALED), path, LAYOUT, SHAPE, **kwargs)


@pytest.mark.parametrize("opcode", list(ibv_wr_opcode))
def test_what_all_have_in_common(opcode):
    post = row(opcode)
    assert set(post) <= set(POST_DTYPE.names)
    assert post["peer"] == 7 and post["stream"] == 11 and post["order"] == ORD_STREAM
    assert (post["lost_ps"], post["lost_retries"]) == (timeout_ps(4), 5)
    ready = state_value(2, True, 14, 0)
    assert post["state_word"] == LAYOUT.qp_word(3) and post["state_mask"] >> ready & 1
    assert not post["deny_mask"] >> ready & 1 and post["note"] == 2
    assert [post[name] for name in SHAPE._fields] == list(SHAPE)


@pytest.mark.parametrize("opcode, kind, log", [
    (IBV_WR_SEND, K_SEND, None), (IBV_WR_SEND_WITH_IMM, K_SEND, None), (IBV_WR_RDMA_WRITE, K_PUT, LOG_PUT),
    (IBV_WR_RDMA_WRITE_WITH_IMM, K_SEND, LOG_PUT), (IBV_WR_RDMA_READ, K_GET, LOG_SNAPSHOT),
])  # fmt: skip
def test_kinds(opcode, kind, log):
    post = row(opcode)
    assert post["kind"] == kind and post.get("log_kind") == log
    guarded = opcode not in (IBV_WR_SEND, IBV_WR_SEND_WITH_IMM)
    assert ("region_word" in post) == guarded
    if guarded:
        assert (post["region_offset"], post["region_bytes"]) == (4096, 8) and post["region_need"] > 0
    assert ("rd_below" in post) == (kind == K_GET)
    empty = row(opcode, nbytes=0)
    assert "region_word" not in empty and "log_kind" not in empty  # zero bytes, no key


def test_completions_are_asked_for_as_signalled():
    assert row(IBV_WR_SEND)["done"] == DONE_ALWAYS and row(IBV_WR_SEND, flags=0)["done"] == DONE_ON_ERROR
    assert row(IBV_WR_RDMA_READ, flags=0)["done"] == DONE_ALWAYS  # its bytes have to land


def test_reads_are_limited_and_fences_wait_for_all():
    assert row(IBV_WR_RDMA_READ)["rd_below"] == 3
    assert row(IBV_WR_RDMA_READ, flags=IBV_SEND_FENCE)["rd_below"] == 1
    assert row(IBV_WR_SEND, flags=IBV_SEND_FENCE)["rd_below"] == 1


def test_operands():
    add, swap = row(IBV_WR_ATOMIC_FETCH_AND_ADD), row(IBV_WR_ATOMIC_CMP_AND_SWP)
    assert (add["log_a"], add["log_b"]) == (-1, 0) and (swap["log_a"], swap["log_b"]) == (9, -1)
    assert add["log_kind"] != swap["log_kind"]


def test_what_no_region_can_hold_is_refused_by_the_other_side():
    for post in (
        row(IBV_WR_RDMA_WRITE, rkey=0), row(IBV_WR_RDMA_WRITE, addr=-1),
        row(IBV_WR_RDMA_READ, addr=(1 << 64) - 1), row(IBV_WR_RDMA_WRITE, closed=True),
    ):  # fmt: skip
        assert (post["region_word"], post["region_tag"]) == LAYOUT.closed


def test_immediate_and_message():
    assert row(IBV_WR_SEND_WITH_IMM)["tag"] == 0xABCD and row(IBV_WR_SEND)["tag"] == 0
    message = decode_message(row(IBV_WR_RDMA_WRITE_WITH_IMM)["user_a"])
    assert message.has_imm and message.is_write and message.dest_qp == PEER
    assert row(IBV_WR_SEND)["rnr_retries"] == 6


def test_watched_writes_are_noted_and_dead_peers_never_ready():
    assert row(IBV_WR_RDMA_WRITE, watched=True)["note"] == 3 and row(IBV_WR_SEND, watched=True)["note"] == 2
    dead = rows.Path(7, PEER, 2, 11, ATTR, reachable=False)
    assert row(IBV_WR_RDMA_WRITE, path=dead)["state_mask"] == 0


def test_refused_and_datagrams():
    bad = rows.refused(PATH, LAYOUT)
    assert bad["kind"] == K_WORD and (bad["region_word"], bad["region_tag"]) == LAYOUT.closed
    assert bad["stream"] == 11 and bad["order"] == ORD_STREAM and bad["done"] == DONE_ALWAYS
    assert rows.local()["kind"] == K_LOCAL
    wr = SendWR(1, IBV_WR_SEND)
    wr.remote.qkey = 5
    post = rows.datagram(wr, 8, PATH, LAYOUT, SHAPE)
    assert (post["kind"], post["done"], post["stream"], post["order"]) == (K_SEND, DONE_SENT, 0, 0)
    assert post["rnr_retries"] == post["lost_retries"] == 0 and post["tag"] == 5 << 32
