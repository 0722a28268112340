"""Attributes of a queue pair: are the values possible, and which does a mask change."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from memsem.verbs.enums import (
    IBV_QP_ACCESS_FLAGS,
    IBV_QP_ALT_PATH,
    IBV_QP_AV,
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
    IBV_QP_TIMEOUT,
)
from memsem.verbs.numbers import is_whole
from memsem.verbs.qpcap import QPAttr

if TYPE_CHECKING:
    from memsem.verbs.context import Context

FIELDS: dict[int, str] = {
    IBV_QP_EN_SQD_ASYNC_NOTIFY: "en_sqd_async_notify",
    IBV_QP_ACCESS_FLAGS: "qp_access_flags",
    IBV_QP_PKEY_INDEX: "pkey_index",
    IBV_QP_PORT: "port_num",
    IBV_QP_QKEY: "qkey",
    IBV_QP_AV: "ah_attr",
    IBV_QP_PATH_MTU: "path_mtu",
    IBV_QP_TIMEOUT: "timeout",
    IBV_QP_RETRY_CNT: "retry_cnt",
    IBV_QP_RNR_RETRY: "rnr_retry",
    IBV_QP_RQ_PSN: "rq_psn",
    IBV_QP_MAX_QP_RD_ATOMIC: "max_rd_atomic",
    IBV_QP_ALT_PATH: "alt_ah_attr",
    IBV_QP_MIN_RNR_TIMER: "min_rnr_timer",
    IBV_QP_SQ_PSN: "sq_psn",
    IBV_QP_MAX_DEST_RD_ATOMIC: "max_dest_rd_atomic",
    IBV_QP_PATH_MIG_STATE: "path_mig_state",
    IBV_QP_DEST_QPN: "dest_qp_num",
}
"""What each bit of a mask is about."""
_MOST_READS = 16


def _within(low: int, high: int) -> Callable[[Any, int], bool]:
    return lambda value, _: is_whole(value) and low <= value <= high


_CHECKS: dict[int, Callable[[Any, int], bool]] = {
    IBV_QP_PORT: _within(1, 1),
    IBV_QP_PKEY_INDEX: _within(0, 0),
    IBV_QP_QKEY: _within(0, (1 << 32) - 1),
    IBV_QP_AV: lambda value, ranks: is_whole(getattr(value, "dlid", None)) and 1 <= value.dlid <= ranks,
    IBV_QP_PATH_MTU: _within(1, 5),
    IBV_QP_TIMEOUT: _within(0, 31),
    IBV_QP_RETRY_CNT: _within(0, 7),
    IBV_QP_RNR_RETRY: _within(0, 7),
    IBV_QP_MIN_RNR_TIMER: _within(0, 31),
    IBV_QP_MAX_QP_RD_ATOMIC: _within(0, _MOST_READS),
    IBV_QP_MAX_DEST_RD_ATOMIC: _within(0, _MOST_READS),
    IBV_QP_DEST_QPN: _within(0, (1 << 24) - 1),
    IBV_QP_ACCESS_FLAGS: _within(0, 15),
}


def bad_values(attr: QPAttr, mask: int, num_ranks: int) -> list[str]:
    """Return which of the attributes named by `mask` are impossible, "name value" each."""
    return [
        f"{FIELDS[bit]} {getattr(attr, FIELDS[bit])}"
        for bit, good in _CHECKS.items()
        if mask & bit and not good(getattr(attr, FIELDS[bit]), num_ranks)
    ]


def check_values(context: Context, attr: QPAttr, mask: int) -> None:
    """Refuse impossible values. Raises: PyverbsRDMAError (EINVAL)."""
    if bad := bad_values(attr, mask, context.num_ranks):
        raise context.refusal(f"modify: {', '.join(bad)} out of range", bad[0])


def apply_attributes(current: QPAttr, given: QPAttr, mask: int) -> None:
    """Take over what `mask` names."""
    for bit, name in FIELDS.items():
        if mask & bit:
            setattr(current, name, getattr(given, name))
