"""Every operation with one rank that calls it otherwise: an error on every rank that says who and in what.

Seen to fail: `give_up` of an expert exchange or of A2E that only raises (the others end with a deadlock
report that does not begin with the rank), a `what` without rows or pairs, elements carried as bytes ("mpi-…,
type"), a message without its kind, and a death told as a call that differs; docs/bug_reports.md has them as
broken builds.
"""

import disagreement_cases
import disagreement_faces
import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]
CASES = disagreement_cases.CASES | disagreement_faces.CASES
SAMPLE = (
    "gather_v-size", "expert exchange-tokens", "expert exchange-overflow", "expert exchange-idle, combine",
    "expert exchange-made: rows", "a2e-outputs", "a2e-batch", "xccl-event", "message-dtype",
    "mpi-Bcast, derived type", "mpi-communicators", "scheme('cann')-dead",
)  # fmt: skip
GENERAL = [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.sweep) for name in CASES]


@pytest.mark.parametrize("name", GENERAL)
def test_one_rank_calls_it_otherwise(name):
    """Whoever cannot get a right result raises; nobody waits for ever."""
    case = CASES[name]
    program = case.setup + disagreement_cases.TAIL.replace("BODY", case.body)
    ran = run_ranks(case.ranks, program, check=False, keep_going=case.dead)
    assert set(ran.reports) >= set(case.raises), ran.stderr
    for rank in case.raises:
        text = ran.reports[rank]["text"]
        kind = ran.reports[rank]["kind"]
        assert kind and all(word in text for word in case.words), (rank, text)
        assert not case.dead or kind in ("RankLostError", "MembershipChanged"), (rank, kind, text)
