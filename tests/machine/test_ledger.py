"""Ledgers count what they are told and add up over ranks."""

import numpy as np
import pytest

from emulator.fabric import Plane, Transaction
from emulator.ledger import LEDGER_SIZE, Ledger, total


def test_an_unused_ledger_says_so() -> None:
    assert Ledger().as_dict() == {"wire_bytes": {}}


def test_ranks_add_up() -> None:
    rows = np.zeros((3, LEDGER_SIZE), np.int64)
    for rank, row in enumerate(rows):
        ledger = Ledger(row)
        ledger.add("verbs", Transaction.DOORBELL, 2)
        ledger.add("mpi", Transaction.MATCH, 1, 64)
        ledger.call("mpi", rank)
        ledger.moved(Plane.RDMA, 5 << 32)
    assert total(rows).as_dict() == {
        "verbs": {"calls": 0, "doorbell": {"count": 6, "bytes": 0}},
        "mpi": {"calls": 3, "match": {"count": 3, "bytes": 192}},
        "wire_bytes": {"rdma": 15 << 32},
    }
    assert rows.sum() == 6 + 3 + 192 + 3 + (15 << 32)


def test_an_unknown_path_is_a_mistake() -> None:
    with pytest.raises(KeyError, match="tcp"):
        Ledger().add("tcp", Transaction.COPY)
