"""Names as pyverbs has them, attribute values, completions made from records, ownership: without ranks."""

import importlib

import pytest

from emulator.posting import InboxRecord
from memsem.verbs import enums
from memsem.verbs.completion import SendEntry
from memsem.verbs.enums import (
    IBV_QP_ACCESS_FLAGS,
    IBV_QP_AV,
    IBV_QP_MIN_RNR_TIMER,
    IBV_QP_RNR_RETRY,
    IBV_QP_TIMEOUT,
    IBV_WC_RDMA_READ,
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_READ,
    mtu_bytes,
)
from memsem.verbs.qp_attr import FIELDS, apply_attributes, bad_values
from memsem.verbs.qpcap import AHAttr, QPAttr
from memsem.verbs.resource import Resource
from memsem.verbs.slots import Slots
from memsem.verbs.users import Message, message_tag
from memsem.verbs.verbs_error import PyverbsUserError
from memsem.verbs.wcs import receive_wc, send_wc
from memsem.verbs.wr import SGE, RecvWR, SendWR, total_bytes

PYVERBS = {
    "device": ["Context"], "pd": ["PD"], "mr": ["MR"], "cq": ["CQ", "CompChannel"], "addr": ["AH", "AHAttr"],
    "qp": ["QP", "QPCap", "QPInitAttr", "QPAttr"], "wr": ["SGE", "SendWR", "RecvWR"],
    "srq": ["SRQ", "SrqAttr", "SrqInitAttr"],
}  # fmt: skip


@pytest.mark.parametrize("module", PYVERBS)
def test_modules_and_classes_are_called_as_in_pyverbs(module):
    found = importlib.import_module(f"memsem.verbs.{module}")
    assert [name for name in PYVERBS[module] if not hasattr(found, name)] == []


@pytest.mark.parametrize("name, value", [
    ("IBV_WR_RDMA_WRITE", 0), ("IBV_WR_SEND", 2), ("IBV_WR_ATOMIC_FETCH_AND_ADD", 6), ("IBV_QPT_RC", 2),
    ("IBV_QPT_UD", 4), ("IBV_QPS_ERR", 6), ("IBV_WC_WR_FLUSH_ERR", 5), ("IBV_WC_RNR_RETRY_EXC_ERR", 13),
    ("IBV_WC_GENERAL_ERR", 21), ("IBV_WC_RECV", 128), ("IBV_ACCESS_REMOTE_ATOMIC", 8),
    ("IBV_SEND_INLINE", 8), ("IBV_QP_DEST_QPN", 1 << 20), ("IBV_EVENT_SRQ_LIMIT_REACHED", 15),
])  # fmt: skip
def test_values_are_those_of_the_header(name, value):
    assert getattr(enums, name) == value


def test_impossible_values_are_named():
    bad = QPAttr(timeout=32, rnr_retry=8, min_rnr_timer=-1, qp_access_flags=16, ah_attr=AHAttr(5))
    mask = IBV_QP_TIMEOUT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER | IBV_QP_ACCESS_FLAGS | IBV_QP_AV
    assert len(bad_values(bad, mask, num_ranks=4)) == 5
    assert bad_values(bad, IBV_QP_TIMEOUT, 4) == ["timeout 32"]
    assert bad_values(bad, IBV_QP_AV, num_ranks=5) == [] and bad_values(bad, 0, 1) == []


def test_only_what_the_mask_names_changes():
    current = QPAttr()
    apply_attributes(current, QPAttr(timeout=9, rnr_retry=3), IBV_QP_TIMEOUT)
    assert (current.timeout, current.rnr_retry) == (9, 0)
    assert all(hasattr(current, name) for name in FIELDS.values())


def record(**fields):
    return InboxRecord(**{**dict.fromkeys(InboxRecord._fields, 0), **fields})


def test_completion_of_a_write_with_immediate():
    user = Message(5, 6, has_imm=True, is_write=True).encode()
    made = receive_wc(3, 6, record(value=user, nbytes=10, tag=message_tag(77, 0), rank=2, time_ps=8), 0)
    assert (made.wr_id, made.opcode, made.byte_len) == (3, IBV_WC_RECV_RDMA_WITH_IMM, 10)
    assert (made.imm_data, made.src_qp, made.slid, made.time_ps) == (77, 5, 3, 8)
    assert receive_wc(3, 6, record(value=user, nbytes=10), 40).byte_len == 50


def test_after_a_failure_nothing_else_is_set():
    entry = SendEntry(1, 9, IBV_WR_RDMA_READ, True, nbytes=64)
    failed = send_wc(entry, IBV_WC_WR_FLUSH_ERR, 4, record(status=4))
    assert (failed.wr_id, failed.qp_num, failed.vendor_err) == (9, 4, 4)
    assert failed.byte_len == failed.opcode == failed.imm_data == 0
    done = send_wc(entry, IBV_WC_SUCCESS, 4, record())
    assert (done.opcode, done.byte_len) == (IBV_WC_RDMA_READ, 64)


def test_work_requests():
    chain = SendWR(1, next_wr=SendWR(2, next_wr=SendWR(3)))
    assert [wr.wr_id for wr in chain] == [1, 2, 3] and [wr.wr_id for wr in RecvWR(4)] == [4]
    sg = [SGE(0, 3, 1), SGE(8, 4, 1)]
    assert SendWR(num_sge=1, sg=sg).sg == sg[:1] and total_bytes(sg) == 7
    with pytest.raises(PyverbsUserError, match="num_sge 3"):
        SendWR(num_sge=3, sg=sg)
    assert mtu_bytes(5) == 4096 and mtu_bytes(1) == 256


def test_children_are_closed_first_and_once():
    closed = []

    class Thing(Resource):
        def __init__(self, name, *parents):
            super().__init__(*parents)
            self.name = name

        def _close(self):
            closed.append(self.name)

    with Thing("context") as context:
        first = Thing("pd", context)
        Thing("qp", first, context)
        Thing("mr", first)
    context.close()
    assert closed == ["qp", "mr", "pd", "context"]


def test_slots_count_their_lives():
    slots = Slots(2)
    assert slots.take("a") == (0, 0) and slots.take("b") == (1, 0) and slots.take("c") is None
    slots.give(0)
    assert slots.take("c") == (0, 1) and slots.get(0) == "c" and len(slots) == 2 and list(slots) == ["b", "c"]
