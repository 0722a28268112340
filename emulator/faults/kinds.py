"""What can go wrong: one row a kind, with its fields, who carries it out, and how it is undone."""

from __future__ import annotations

from typing import NamedTuple

STATES = ("queued", "prefill", "dispatch", "combine", "decode", "sampling", "finishing")
"""States of a request, in the order it goes through them; dispatch and combine lie inside the others."""
SERVING_STATES = ("abort", "preemption", "move", "draft")
"""States only some pods have: a request is aborted, its KV is given up for another, an expert's weights move
beside it, drafts of it are verified."""
ALL_STATES = (*STATES, *SERVING_STATES)
COMMON = ("kind", "at_ps", "at_op", "at_request", "within_ps", "duration_ps")
"""Fields every kind has."""


class Kind(NamedTuple):
    """A kind of fault.

    Attributes:
        owner: the layer that carries it out.
        place: the field that says where, "rank" or "link" or "" (no place).
        fields: its own fields; `needed` of them have no default.
        lasts: it has a duration, and an undo at its end.
        undo: what the end, or the recovery, is.
    """

    owner: str
    place: str
    fields: tuple[str, ...]
    needed: tuple[str, ...]
    lasts: bool
    undo: str


KINDS: dict[str, Kind] = {
    "kill": Kind("injector", "rank", (), (), False, "none; the others recover"),
    "kill_in_lock": Kind("injector", "rank", (), (), False, "the lock's next holder repairs it"),
    "freeze": Kind("injector", "rank", (), ("duration_ps",), True, "the rank acts again"),
    "slow": Kind("injector", "rank", ("factor",), ("factor",), True, "compute has its price again"),
    "gc_pause": Kind("injector", "rank", (), ("duration_ps",), True, "the rank acts again"),
    "page_fault": Kind("serving", "rank", ("blocks",), (), False, "touched requests are recomputed"),
    "link_down": Kind("fabric", "link", (), (), True, "the link is up"),
    "link_degraded": Kind("fabric", "link", ("factor",), ("factor",), True, "the link has its rate again"),
    "link_flap": Kind("fabric", "link", ("period_ps",), ("period_ps",), True, "the link stays up"),
    "loss": Kind("fabric", "link", ("rate",), ("rate",), True, "no packet is lost"),
    "corruption": Kind("fabric", "link", ("rate",), ("rate",), True, "no packet is damaged"),
    "qp_error": Kind("verbs", "rank", (), (), False, "the queue pair is reset and connected anew"),
    "completion_lost": Kind("verbs", "rank", (), (), False, "the poster times out and asks again"),
    "completion_duplicated": Kind("verbs", "rank", (), (), False, "the second one is dropped"),
    "completion_late": Kind("verbs", "rank", ("delay_ps",), ("delay_ps",), False, "it arrives"),
    "nic_down": Kind("verbs", "rank", (), (), True, "the NIC is up"),
    "stale_heartbeat": Kind("control", "rank", (), (), True, "beats are sent again"),
    "control_death": Kind("control", "", (), (), False, "a standby takes over"),
    "full_ring": Kind("verbs", "rank", (), (), True, "the ring is drained"),
    "leave": Kind("membership", "rank", (), (), True, "the rank joins again"),
    "join": Kind("membership", "rank", (), (), False, "none; a rank that was out serves"),
}
"""Every kind by its name."""
KILLS = ("kill", "kill_in_lock")
DEADLY = (*KILLS, "control_death")
"""Kinds that end a rank's process by SIGKILL."""


def fields_of(kind: str) -> tuple[str, ...]:
    """Return the fields a fault of this kind may have."""
    row = KINDS[kind]
    return (*COMMON, *((row.place,) if row.place else ()), *row.fields)
