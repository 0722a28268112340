"""The litmus programs of `docs/memory_model.md`, section 3, as data: one `Litmus` for each row there.

Programs are built from what a family shares (`_mp`, `_sb`, …), so that a row shows only what differs.
Signals, atomics, completions and messages are in `litmus_signals`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memsem.litmus_ops import Get, Litmus, Load, Local, Put, Recv, Send, Wait
from memsem.litmus_parts import FENCE, QUIET, Ops, equals, put, reads
from memsem.litmus_signals import SIGNAL_FAMILIES


def every_litmus() -> tuple[Litmus, ...]:
    """All rows, in the order of the docs."""
    families = (_mp, _mp_signals, _sb, _lb, _s, _r, _two_writes, _wrc, _iriw, *SIGNAL_FAMILIES)
    return tuple(row for family in families for row in family())


def by_name(name: str) -> Litmus:
    """The row of that name. Raises KeyError."""
    return {litmus.name: litmus for litmus in every_litmus()}[name]


# --- MP ----------------------------------------------------------------------------------------------------


def _mp() -> Iterator[Litmus]:
    shows = equals(r1=1, r2=0)
    reader = reads(("r1", "f"), ("r2", "d"))

    def row(name: str, verdict: Any, writer: Ops, flag_home: str = "C", reader: Ops = reader) -> Litmus:
        homes = {"d": "C", "f": flag_home}
        return Litmus(f"MP+{name}", {"P0": writer, "P1": reader}, homes, shows, verdict)

    def pair(first: dict[str, Any], second: dict[str, Any], between: Ops = ()) -> Ops:
        return (put("d", 1, **first), *between, put("f", 1, **second))

    relaxed, strong, complete = {"order": "relaxed"}, {"order": "strong"}, {"complete": True}
    yield row("none", "weak", pair({}, {}))
    yield row("relaxed", "weak", pair(relaxed, relaxed))
    yield row("relaxed+strong", "forbidden", pair(relaxed, strong))
    yield row("none+strong", "weak", pair({}, strong))
    yield row("strong+relaxed", "weak", pair(strong, relaxed))
    yield row("complete", "weak", pair(complete, complete))
    yield row("fence", "forbidden", pair({}, {}, FENCE))
    yield row("fence+two-homes", "weak", pair({}, {}, FENCE), "D")
    yield row("quiet", "forbidden", pair({}, {}, QUIET))
    yield row("quiet+two-homes", "forbidden", pair({}, {}, QUIET), "D")
    late = reads(("r1", "f"), ("r2", "d"), blocking=False)
    yield row("fence+nbi-readers", "weak", pair({}, {}, FENCE), reader=late)


def _mp_signals() -> Iterator[Litmus]:
    together: Ops = (Put((("d", 1),), signal=("f", "set", 1)),)
    apart: Ops = (put("d", 1), Put(signal=("f", "set", 1)))
    load: Ops = (Wait("f", 1), Load("r2", "d"))
    local: Ops = (Wait("f", 1), Local("r2", "d"))

    def row(name: str, verdict: Any, writer: Ops, owner: Ops) -> Litmus:
        threads, homes = {"P0": writer, "C": owner}, {"d": "C", "f": "C"}
        return Litmus(f"MP+{name}", threads, homes, equals(r2=0), verdict, frozenset("f"))

    yield row("put_signal", "forbidden", together, load)
    yield row("wait", "weak", apart, load)
    yield row("wait+fence", "forbidden", (apart[0], *FENCE, apart[1]), load)
    yield row("local", "weak", apart, local)
    yield row("local+put_signal", "forbidden", together, local)
    yield from _mp_verbs()


def _mp_verbs() -> Iterator[Litmus]:
    homes = {"d": "C", "f": "C"}
    polls: Ops = (Load("r1", "f"), Load("r2", "d"))
    imm: Ops = (Recv("r1", how="imm"), Load("r2", "d"))

    def row(name: str, verdict: Any, writer: Ops, owner: Ops = polls) -> Litmus:
        threads = {"P0": writer, "C": owner}
        return Litmus(f"MP+{name}", threads, homes, equals(r1=1, r2=0), verdict, path="verbs")

    yield row("rc", "forbidden", (put("d", 1, queue="a"), put("f", 1, queue="a")))
    yield row("rc+two-qps", "weak", (put("d", 1, queue="a"), put("f", 1, queue="b")))
    noticed = (put("d", 1, queue="a"), put("f", 1, queue="a", notice=1))
    yield row("rc+imm", "forbidden", noticed, imm)


# --- SB, LB, S, R, 2+2W ------------------------------------------------------------------------------------


def _sb() -> Iterator[Litmus]:
    def row(
        name: str, verdict: Any, between: Ops = (), y_home: str = "D", path: Any = "window", **flags: Any
    ) -> Litmus:
        queue = {"queue": flags["queue"]} if "queue" in flags else {}
        threads = {
            "P0": (put("x", 1, **flags), *between, Get("r1", "y", **queue)),
            "P1": (put("y", 1, **flags), *between, Get("r2", "x", **queue)),
        }
        homes = {"x": "C", "y": y_home}
        return Litmus(f"SB+{name}", threads, homes, equals(r1=0, r2=0), verdict, path=path)

    yield row("none", "weak")
    yield row("fence", "weak", FENCE)
    yield row("strong", "weak", order="strong")
    yield row("quiet", "forbidden", QUIET)
    yield row("rc", "forbidden", y_home="C", path="verbs", queue="a")


def _lb() -> Iterator[Litmus]:
    def row(name: str, verdict: Any, between: Ops = (), blocking: bool = False, **flags: Any) -> Litmus:
        threads = {
            "P0": (Get("r1", "x", blocking), *between, put("y", 1, **flags), *QUIET),
            "P1": (Get("r2", "y", blocking), *between, put("x", 1, **flags), *QUIET),
        }
        return Litmus(f"LB+{name}", threads, {"x": "C", "y": "D"}, equals(r1=1, r2=1), verdict)

    yield row("blocking", "forbidden", blocking=True)
    yield row("none", "weak")
    yield row("fence", "weak", FENCE)
    yield row("wr-fence", "forbidden", fence=True)
    yield row("quiet", "forbidden", QUIET)


def _s() -> Iterator[Litmus]:
    def row(
        name: str, verdict: Any, between: Ops = (), y_home: str = "C", orders: Any = ("none", "none")
    ) -> Litmus:
        threads = {
            "P0": (put("x", 2, order=orders[0]), *between, put("y", 1, order=orders[1])),
            "P1": (Get("r1", "y"), put("x", 1)),
        }
        return Litmus(f"S+{name}", threads, {"x": "C", "y": y_home}, equals(r1=1, x=2), verdict)

    yield row("none", "weak")
    yield row("relaxed+strong", "forbidden", orders=("relaxed", "strong"))
    yield row("fence", "forbidden", FENCE)
    yield row("fence+two-homes", "weak", FENCE, "D")
    yield row("quiet", "forbidden", QUIET)


def _r() -> Iterator[Litmus]:
    for first, second in (
        ("none", "none"),
        ("fence", "fence"),
        ("quiet", "none"),
        ("none", "quiet"),
        ("quiet", "quiet"),
    ):
        between: dict[str, Ops] = {"none": (), "fence": FENCE, "quiet": QUIET}
        threads = {
            "P0": (put("x", 1), *between[first], put("y", 1)),
            "P1": (put("y", 2), *between[second], Get("r1", "x")),
        }
        verdict: Any = "forbidden" if first == second == "quiet" else "weak"
        yield Litmus(f"R+{first}+{second}", threads, {"x": "C", "y": "D"}, equals(y=2, r1=0), verdict)


def _two_writes() -> Iterator[Litmus]:
    def row(
        name: str, verdict: Any, between: Ops = (), y_home: str = "C", orders: Any = ("none", "none")
    ) -> Litmus:
        threads = {
            "P0": (put("x", 1, order=orders[0]), *between, put("y", 2, order=orders[1])),
            "P1": (put("y", 1, order=orders[0]), *between, put("x", 2, order=orders[1])),
        }
        return Litmus(f"2+2W+{name}", threads, {"x": "C", "y": y_home}, equals(x=1, y=1), verdict)

    yield row("none", "weak")
    yield row("relaxed+strong", "forbidden", orders=("relaxed", "strong"))
    yield row("fence", "forbidden", FENCE)
    yield row("fence+two-homes", "weak", FENCE, "D")
    yield row("quiet", "forbidden", QUIET)
    cases: tuple[tuple[str, Any, Ops, Any], ...] = (
        ("none", "weak", (), "none"),
        ("fence", "forbidden", FENCE, "none"),
        ("strong", "forbidden", (), "strong"),
    )
    for same, verdict, between, order in cases:
        threads = {"P0": (put("x", 1, order=order), *between, put("x", 2, order=order))}
        yield Litmus(f"2W+{same}", threads, {"x": "C"}, equals(x=1), verdict)


# --- WRC, IRIW ---------------------------------------------------------------------------------------------


_READERS: tuple[tuple[str, Any, bool, Ops], ...] = (
    ("blocking", "forbidden", True, ()),
    ("nbi", "weak", False, ()),
    ("nbi+quiet", "forbidden", False, QUIET),
)


def _wrc() -> Iterator[Litmus]:
    for name, verdict, blocking, between in _READERS:
        threads: dict[str, Ops] = {
            "P0": (put("x", 1),),
            "P1": (Get("r1", "x"), put("y", 1)),
            "P2": reads(("r2", "y"), ("r3", "x"), between, blocking),
        }
        shows = equals(r1=1, r2=1, r3=0)
        yield Litmus(f"WRC+{name}", threads, {"x": "C", "y": "P0"}, shows, verdict)
    told: tuple[tuple[str, Any, Ops], ...] = (
        ("message", "weak", ()),
        ("message+fence", "weak", FENCE),
        ("message+quiet", "forbidden", QUIET),
    )
    for name, verdict, ops in told:
        threads = {"P0": (put("x", 1), *ops, Send("P1", 1)), "P1": (Recv("m", "P0"), Get("r1", "x"))}
        yield Litmus(f"WRC+{name}", threads, {"x": "C"}, equals(r1=0), verdict, path="message")


def _iriw() -> Iterator[Litmus]:
    for name, verdict, blocking, between in _READERS:
        threads: dict[str, Ops] = {
            "P0": (put("x", 1),),
            "P1": (put("y", 1),),
            "P2": reads(("r1", "x"), ("r2", "y"), between, blocking),
            "P3": reads(("r3", "y"), ("r4", "x"), between, blocking),
        }
        shows = equals(r1=1, r2=0, r3=1, r4=0)
        yield Litmus(f"IRIW+{name}", threads, {"x": "P1", "y": "P0"}, shows, verdict)
