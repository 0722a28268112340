"""The table of transitions, read from the specification's table and not from the implementation."""

import itertools

import pytest

from memsem.verbs.enums import (
    IBV_QP_ACCESS_FLAGS,
    IBV_QP_AV,
    IBV_QP_CAP,
    IBV_QP_DEST_QPN,
    IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER,
    IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX,
    IBV_QP_PORT,
    IBV_QP_QKEY,
    IBV_QP_RETRY_CNT,
    IBV_QP_RNR_RETRY,
    IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN,
    IBV_QP_STATE,
    IBV_QP_TIMEOUT,
    IBV_QPT_RC,
    IBV_QPT_UD,
    ibv_qp_attr_mask,
    ibv_qp_state,
)
from memsem.verbs.qp_state import (
    check,
    is_receiving,
    may_post_recv,
    may_post_send,
    required_mask,
    transitions,
)

RESET, INIT, RTR, RTS, SQD, SQE, ERR = ibv_qp_state
LEGAL = {
    RESET: {RESET, INIT},
    INIT: {RESET, INIT, RTR, ERR},
    RTR: {RESET, RTS, ERR},
    RTS: {RESET, RTS, SQD, ERR},
    SQD: {RESET, RTS, SQD, ERR},
    SQE: {RESET, RTS, ERR},
    ERR: {RESET, ERR},
}
REQUIRED = {
    (IBV_QPT_RC, RESET, INIT): IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
    (IBV_QPT_UD, RESET, INIT): IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
    (IBV_QPT_RC, INIT, RTR): IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER,
    (IBV_QPT_RC, RTR, RTS): IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC,
    (IBV_QPT_UD, RTR, RTS): IBV_QP_SQ_PSN,
}


@pytest.mark.parametrize("kind", [IBV_QPT_RC, IBV_QPT_UD])
@pytest.mark.parametrize("old, new", list(itertools.product(ibv_qp_state, repeat=2)))
def test_every_pair_of_states(kind, old, new):
    legal = new in LEGAL[old] and not (kind == IBV_QPT_RC and (old, new) == (SQE, RTS))
    assert (check(kind, old, new, required_mask(kind, old, new)) is None) == legal
    assert ((old, new) in transitions(kind)) == legal


@pytest.mark.parametrize("kind, old, new", REQUIRED)
def test_each_required_attribute_is_missed(kind, old, new):
    required = REQUIRED[kind, old, new]
    assert required_mask(kind, old, new) == required | IBV_QP_STATE
    for flag in ibv_qp_attr_mask:
        if flag & required:
            assert flag.name in check(kind, old, new, (required | IBV_QP_STATE) & ~flag)


def test_what_a_transition_does_not_take_is_refused():
    base = REQUIRED[IBV_QPT_RC, RESET, INIT]
    assert "IBV_QP_TIMEOUT must not be given" in check(IBV_QPT_RC, RESET, INIT, base | IBV_QP_TIMEOUT)
    assert "IBV_QP_QKEY" in check(IBV_QPT_RC, RTS, RTS, IBV_QP_QKEY)
    assert "IBV_QP_ACCESS_FLAGS" in check(IBV_QPT_UD, RTS, RTS, IBV_QP_ACCESS_FLAGS)
    assert check(IBV_QPT_RC, RTS, RTS, IBV_QP_MIN_RNR_TIMER) is None
    assert "IBV_QP_PORT" in check(IBV_QPT_RC, RTS, ERR, IBV_QP_PORT)
    assert "resized" in check(IBV_QPT_RC, SQD, SQD, IBV_QP_CAP)


def test_what_may_be_posted_and_what_is_answered():
    assert [may_post_send(s) for s in ibv_qp_state] == [False, False, False, True, True, True, True]
    assert [may_post_recv(s) for s in ibv_qp_state] == [False] + [True] * 6
    assert [is_receiving(s) for s in ibv_qp_state] == [False, False, True, True, True, True, False]
