"""Litmus programs with signals, atomics, completions and messages; see `litmus`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memsem.litmus_ops import Barrier, Fetch, Litmus, Load, Outcome, Put, Quiet, Recv, Reset, Send, Wait
from memsem.litmus_parts import FENCE, Ops, equals, put, some_zero


def _chunked() -> Iterator[Litmus]:
    loads: Ops = (Load("r0", "d0"), Load("r1", "d1"), Load("r2", "d2"))
    homes = {"d0": "C", "d1": "C", "d2": "C", "f": "C"}
    bits: Ops = (put("d0", 1), put("d1", 1))
    last = Put((("d2", 1),), signal=("f", "set", 1))
    rails = Put((("d0", 1), ("d1", 1), ("d2", 1)), signal=("f", "set", 1))

    def row(name: str, verdict: Any, writer: Ops, shows: Any) -> Litmus:
        threads: dict[str, Ops] = {"P0": writer, "C": (Wait("f", 1), *loads)}
        return Litmus(f"chunked+{name}", threads, homes, shows, verdict, frozenset("f"))

    yield row("earlier", "weak", (*bits, last), some_zero("r0", "r1"))
    yield row("own", "forbidden", (*bits, last), some_zero("r2"))
    yield row("fence", "forbidden", (*bits, *FENCE, last), some_zero("r0", "r1", "r2"))
    yield row("rails", "forbidden", (rails,), some_zero("r0", "r1", "r2"))
    words = [f"f{k}" for k in range(3)]
    writer = tuple(Put(((f"d{k}", 1),), signal=(f"f{k}", "set", 1)) for k in range(3))
    owner = (*(Wait(word, 1) for word in words), *loads)
    homes = {**homes, **dict.fromkeys(words, "C")}
    del homes["f"]
    shows = some_zero("r0", "r1", "r2")
    yield Litmus("chunked+own-words", {"P0": writer, "C": owner}, homes, shows, "forbidden", frozenset(words))


def _final_below_three(outcome: Outcome) -> bool:
    return outcome["f"] < 3


def _counter() -> Iterator[Litmus]:
    homes = {"d0": "C", "d1": "C", "d2": "C", "f": "C"}
    loads = tuple(Load(f"r{k}", f"d{k}") for k in range(3))

    def row(name: str, verdict: Any, shows: Any, owner: Ops, op: str = "add", between: Ops = ()) -> Litmus:
        writer: Ops = ()
        for k in range(3):
            value = 1 if op == "add" else k + 1
            writer += (*(between if k else ()), Put(((f"d{k}", 1),), signal=("f", op, value)))
        return Litmus(f"counter+{name}", {"P0": writer, "C": owner}, homes, shows, verdict, frozenset("f"))

    yield row("first", "weak", equals(r0=0), (Wait("f", 1), loads[0]))
    yield row("all", "forbidden", some_zero("r0", "r1", "r2"), (Wait("f", 3), *loads))
    yield row("set", "forbidden", equals(r0=0), (Wait("f", 1, "eq"), loads[0]), "set")
    yield row("set+final", "weak", _final_below_three, (), "set")
    yield row("set+final+fence", "forbidden", _final_below_three, (), "set", FENCE)


def _reset() -> Iterator[Litmus]:
    first, second = (Put((("d", k),), signal=("f", "set", 1)) for k in (1, 2))
    resets: Ops = (Wait("f", 1), Reset("f"))
    end: Ops = (Barrier(), Load("r", "f"))
    homes = {"d": "C", "f": "C"}
    threads: dict[str, Ops] = {"P0": (first, second, Barrier()), "C": (*resets, *end)}
    yield Litmus("reset+plain", threads, homes, equals(r=0), "allowed", frozenset("f"))
    told = Put(signal=("a", "set", 1))
    threads = {"P0": (first, Wait("a", 1), second, Barrier()), "C": (*resets, told, *end)}
    yield Litmus("reset+ack", threads, {**homes, "a": "P0"}, equals(r=0), "forbidden", frozenset("fa"))
    later = Put((("d", 2),), signal=("f", "set", 2))
    threads = {"P0": (first, *FENCE, later), "C": (Wait("f", 1), Wait("f", 2))}
    yield Litmus("reset+epochs", threads, homes, equals(stuck=1), "forbidden", frozenset("f"))


def _zero() -> Iterator[Litmus]:
    def row(name: str, verdict: Any, writer: Ops, shows: Any) -> Litmus:
        threads: dict[str, Ops] = {"P0": writer, "C": (Wait("f", 1), Load("r", "d"))}
        return Litmus(f"zero+{name}", threads, {"d": "C", "f": "C"}, shows, verdict, frozenset("f"))

    notify = Put(signal=("f", "set", 1))
    strong = Put(signal=("f", "set", 1), order="strong")
    yield row("none", "weak", (put("d", 1), notify), equals(r=0))
    yield row("fence", "forbidden", (put("d", 1), *FENCE, notify), equals(r=0))
    yield row("strong", "forbidden", (put("d", 1, order="relaxed"), strong), equals(r=0))
    yield row("arrives", "forbidden", (put("d", 1), notify), equals(stuck=1))


# --- atomics, completions, messages ------------------------------------------------------------------------


def _not_permutation(outcome: Outcome) -> bool:
    return sorted(outcome[f"r{k}"] for k in range(6)) != list(range(6))


def _not_one_winner(outcome: Outcome) -> bool:
    return sum(outcome[f"r{k}"] == 0 for k in range(3)) != 1


def _atomics() -> Iterator[Litmus]:
    threads: dict[str, Ops] = {
        f"P{t}": tuple(Fetch(f"r{2 * t + k}", "x", "add", 1) for k in range(2)) for t in range(3)
    }
    yield Litmus("atomic+permutation", threads, {"x": "C"}, _not_permutation, "forbidden")
    threads = {f"P{t}": (Fetch(f"r{t}", "x", "cas", t + 1),) for t in range(3)}
    yield Litmus("atomic+one-winner", threads, {"x": "C"}, _not_one_winner, "forbidden")
    add = Fetch("r", "x", "add", 1)
    yield Litmus("atomic+put", {"P0": (put("x", 10), add)}, {"x": "C"}, equals(r=0), "weak")
    threads = {"P0": (put("x", 10), *FENCE, add)}
    yield Litmus("atomic+put+fence", threads, {"x": "C"}, equals(r=0), "forbidden")


def _swapped(outcome: Outcome) -> bool:
    return outcome["a"] > outcome["b"]


def _completions() -> Iterator[Litmus]:
    def row(name: str, verdict: Any, path: Any, homes: dict[str, str], *flags: dict[str, Any]) -> Litmus:
        writes = (put("x", 1, tell="a", **flags[0]), put("y", 1, tell="b", **flags[1]), Quiet())
        return Litmus(f"completion+{name}", {"P0": writes}, homes, _swapped, verdict, path=path)

    one, two = {"x": "C", "y": "C"}, {"x": "C", "y": "D"}
    yield row("rc", "forbidden", "verbs", one, {"queue": "a"}, {"queue": "a"})
    yield row("two-qps", "weak", "verbs", one, {"queue": "a"}, {"queue": "b"})
    yield row("rm", "weak", "urma", two, {}, {})
    yield row("rm+order", "forbidden", "urma", two, {"complete": True}, {"complete": True})


def _messages() -> Iterator[Litmus]:
    def row(name: str, verdict: Any, path: Any, threads: dict[str, Ops]) -> Litmus:
        return Litmus(f"message+{name}", threads, {}, equals(r1=2, r2=1), verdict, path=path)

    receives: Ops = (Recv("r1", "P0"), Recv("r2", "P0"))
    yield row("order", "forbidden", "message", {"P0": (Send("P1", 1), Send("P1", 2)), "P1": receives})
    anybody: Ops = (Recv("r1"), Recv("r2"))
    threads: dict[str, Ops] = {"P0": (Send("P2", 1),), "P1": (Send("P2", 2),), "P2": anybody}
    yield row("wildcard", "allowed", "message", threads)
    sends: Ops = (Send("P1", 1, "ud"), Send("P1", 2, "ud"))
    datagrams: Ops = (Recv("r1", how="ud"), Recv("r2", how="ud"))
    yield row("ud", "weak", "verbs", {"P0": sends, "P1": datagrams})


SIGNAL_FAMILIES = (_chunked, _counter, _reset, _zero, _atomics, _completions, _messages)
