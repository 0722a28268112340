"""Which transitions a queue pair may make, and with which attributes: a table and a check, nothing else.

    RESET -> INIT -> RTR -> RTS <-> SQD        any state -> RESET        any state but RESET -> ERR
                             ^- SQE (UD: entered by a failed send, left by modify)

Source: InfiniBand specification 1.5, section 11.2.5.2 and table 91, as Linux writes it down in
drivers/infiniband/core/verbs.c (`qp_state_table`, `ib_modify_qp_is_ok`).
"""

from __future__ import annotations

from typing import NamedTuple

from memsem.verbs.enums import (
    IBV_QP_ACCESS_FLAGS,
    IBV_QP_ALT_PATH,
    IBV_QP_AV,
    IBV_QP_CAP,
    IBV_QP_CUR_STATE,
    IBV_QP_DEST_QPN,
    IBV_QP_EN_SQD_ASYNC_NOTIFY,
    IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER,
    IBV_QP_PATH_MIG_STATE,
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
    IBV_QPS_ERR,
    IBV_QPS_INIT,
    IBV_QPS_RESET,
    IBV_QPS_RTR,
    IBV_QPS_RTS,
    IBV_QPS_SQD,
    IBV_QPS_SQE,
    IBV_QPT_RC,
    IBV_QPT_UD,
    ibv_qp_attr_mask,
    ibv_qp_state,
)


class Attributes(NamedTuple):
    """Masks of `ibv_qp_attr_mask`: what a transition must name, and what else it may."""

    required: int = 0
    optional: int = 0


_ACCESS_OR_PORT = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
_QKEY_OR_PORT = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY
_TO_RTR = (
    IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER
)
_TO_RTS = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC
_IN_RTS = (
    IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_MIN_RNR_TIMER
)
_IN_SQD = (
    IBV_QP_PORT
    | IBV_QP_AV
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_MAX_QP_RD_ATOMIC
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_ALT_PATH
    | IBV_QP_ACCESS_FLAGS
    | IBV_QP_PKEY_INDEX
    | IBV_QP_MIN_RNR_TIMER
    | IBV_QP_PATH_MIG_STATE
)
_UD_IN_RTS = IBV_QP_CUR_STATE | IBV_QP_QKEY

_Table = dict[tuple[int, int], Attributes]
_RC: _Table = {
    (IBV_QPS_RESET, IBV_QPS_INIT): Attributes(_ACCESS_OR_PORT),
    (IBV_QPS_INIT, IBV_QPS_INIT): Attributes(0, _ACCESS_OR_PORT),
    (IBV_QPS_INIT, IBV_QPS_RTR): Attributes(
        _TO_RTR, IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX
    ),
    (IBV_QPS_RTR, IBV_QPS_RTS): Attributes(_TO_RTS, _IN_RTS),
    (IBV_QPS_RTS, IBV_QPS_RTS): Attributes(0, _IN_RTS),
    (IBV_QPS_RTS, IBV_QPS_SQD): Attributes(0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
    (IBV_QPS_SQD, IBV_QPS_RTS): Attributes(0, _IN_RTS),
    (IBV_QPS_SQD, IBV_QPS_SQD): Attributes(0, _IN_SQD),
}
_UD: _Table = {
    (IBV_QPS_RESET, IBV_QPS_INIT): Attributes(_QKEY_OR_PORT),
    (IBV_QPS_INIT, IBV_QPS_INIT): Attributes(0, _QKEY_OR_PORT),
    (IBV_QPS_INIT, IBV_QPS_RTR): Attributes(0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
    (IBV_QPS_RTR, IBV_QPS_RTS): Attributes(IBV_QP_SQ_PSN, _UD_IN_RTS),
    (IBV_QPS_RTS, IBV_QPS_RTS): Attributes(0, _UD_IN_RTS),
    (IBV_QPS_RTS, IBV_QPS_SQD): Attributes(0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
    (IBV_QPS_SQD, IBV_QPS_RTS): Attributes(0, _UD_IN_RTS),
    (IBV_QPS_SQD, IBV_QPS_SQD): Attributes(0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
    (IBV_QPS_SQE, IBV_QPS_RTS): Attributes(0, _UD_IN_RTS),
}


def _with_exits(table: _Table) -> _Table:
    """Every state may go to RESET, every one but RESET to ERR; neither takes attributes."""
    exits: _Table = {(state, IBV_QPS_RESET): Attributes() for state in ibv_qp_state}
    exits |= {(state, IBV_QPS_ERR): Attributes() for state in ibv_qp_state if state != IBV_QPS_RESET}
    return {**table, **exits}


_TABLES: dict[int, _Table] = {IBV_QPT_RC: _with_exits(_RC), IBV_QPT_UD: _with_exits(_UD)}
_SENDING = (IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR)
_RECEIVING = (IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE)


def transitions(qp_type: int) -> dict[tuple[int, int], Attributes]:
    """Return the legal transitions of a type: (old state, new state) → attributes."""
    return dict(_TABLES[qp_type])


def check(qp_type: int, old: int, new: int, mask: int) -> str | None:
    """Return why a transition is refused, or None if it is legal.

    Args:
        qp_type, old, new: type of the queue pair, its state, and the state asked for.
        mask: `ibv_qp_attr_mask` of what the caller gives.
    """
    attributes = _TABLES[qp_type].get((old, new))
    if attributes is None:
        return f"no transition from {ibv_qp_state(old).name} to {ibv_qp_state(new).name}"
    if mask & IBV_QP_CAP:
        return "IBV_QP_CAP: the queues of a made queue pair cannot be resized"
    if missing := attributes.required & ~mask:
        return f"{_names(missing)} must be given"
    if excess := mask & ~(attributes.required | attributes.optional | IBV_QP_STATE):
        return f"{_names(excess)} must not be given"
    return None


def _names(mask: int) -> str:
    return "|".join(str(flag.name) for flag in ibv_qp_attr_mask if flag & mask) or hex(mask)


def required_mask(qp_type: int, old: int, new: int) -> int:
    """Return the attributes `to_init`, `to_rtr` and `to_rts` name: the required ones and the state."""
    return _TABLES[qp_type].get((old, new), Attributes()).required | IBV_QP_STATE


def may_post_send(state: int) -> bool:
    """A send may be posted: it is carried out in RTS, waits in SQD, is flushed in SQE and ERR."""
    return state in _SENDING


def may_post_recv(state: int) -> bool:
    """A receive may be posted in every state but RESET; it is flushed in ERR."""
    return state != IBV_QPS_RESET


def is_receiving(state: int) -> bool:
    """Messages that arrive are answered."""
    return state in _RECEIVING
