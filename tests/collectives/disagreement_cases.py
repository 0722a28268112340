# ruff: noqa: E501  (one row a case)
"""Operations and ways in which one rank calls them otherwise, for `test_disagreement`.

A case is a program whose `body()` one rank (`odd`) runs differently, who must raise, and what all of them
must say: the odd rank's number and a word on what differs. Of expert parallelism's schemes see
`tests/ep/test_reports.py`.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Case(NamedTuple):
    """ranks: how many. raises: ranks that must raise (the odd one, where it has ended, does not). words: all
    in every error. dead: the odd rank dies."""

    setup: str
    body: str
    raises: tuple[int, ...] = (0, 1, 2, 3)
    words: tuple[str, ...] = ("rank 2",)
    ranks: int = 4
    dead: bool = False


TAIL = """
import os, signal
def die():
    device.engine.flush()
    os.kill(os.getpid(), signal.SIGKILL)
def body():
    BODY
try:
    body()
    report(kind="", text="nothing was raised")
except BaseException as error:
    report(kind=type(error).__name__, text=str(error))
    raise SystemExit(0)
"""

COLL = """
import numpy as np, emulator
from collectives import coll
from collectives.groups import Group
device = emulator.init()
world, n, me = Group.world(device), device.num_ranks, device.rank
odd = me == 2
f = lambda k: np.arange(k, dtype=np.float32)
z = lambda k, t=np.float32: np.zeros(k, t)
"""
_CALLS = {
    "broadcast": "coll.broadcast(world, f(N).astype(D), ROOT)",
    "reduce": "coll.reduce(world, f(N).astype(D), z(N, D), OP, ROOT)",
    "all_reduce": "coll.all_reduce(world, f(N).astype(D), z(N, D), OP)",
    "all_gather": "coll.all_gather(world, f(N).astype(D), z(N * n, D))",
    "all_gather_v": "coll.all_gather_v(world, f(N).astype(D), z(12 + N, D), [4, 4, N, 4])",
    "reduce_scatter": "coll.reduce_scatter(world, f(N * n).astype(D), z(N, D), OP)",
    "reduce_scatter_v": "coll.reduce_scatter_v(world, f(12 + N).astype(D), z(N, D), [4, 4, N, 4], OP)",
    "all_to_all": "coll.all_to_all(world, f(N * n).astype(D), z(N * n, D))",
    "all_to_all_v": "coll.all_to_all_v(world, f(4 * N).astype(D), [N] * 4, z(16, D), [4] * 4)",
    "gather": "coll.gather(world, f(N).astype(D), z(N * n, D), ROOT)",
    "gather_v": "coll.gather_v(world, f(N).astype(D), z(16, D), [4] * 4 if me == ROOT else None, root=ROOT)",
    "scatter": "coll.scatter(world, f(N * n).astype(D), z(N, D), ROOT)",
    "scatter_v": "coll.scatter_v(world, f(16).astype(D), [4] * 4 if me == ROOT else None, z(N, D), root=ROOT)",
    "barrier": "coll.barrier(world)",
}
_PLAIN = {"N": "4", "ROOT": "1", "OP": "'sum'", "D": "np.float32"}
_WAYS: dict[str, tuple[dict[str, str], str, tuple[str, ...]]] = {
    "size": ({"N": "(5 if odd else 4)"}, "", ("rank 2",)),
    "dtype": ({"D": "(np.int32 if odd else np.float32)"}, "", ("rank 2", "int32", "float32")),
    "op": ({"OP": "('max' if odd else 'sum')"}, "", ("rank 2: max",)),
    "root": ({"ROOT": "(3 if odd else 1)"}, "", ("root: ranks 0-1, 3: 1; rank 2: 3",)),
    "order": ({}, "if odd: OTHER\n    ", ("rank 2: ", "operation")),
    "absent": ({}, "if odd: return\n    ", ("rank 2 never entered",)),
    "refused": ({"D": "(np.dtype('V4') if odd else np.float32)"}, "", ("cannot be sent",)),
    "dead": ({}, "coll.barrier(world)\n    if odd: die()\n    ", ("[2]",)),
}


def _coll(call: str, text: str, way: str) -> Case:
    given, before, words = _WAYS[way]
    for name, value in {**_PLAIN, **given}.items():
        text = re.sub(rf"\b{name}\b", value, text)
    other = "coll.all_reduce(world, f(4), z(4))" if call == "barrier" else "coll.barrier(world)"
    raises = (0, 1, 3) if way in ("absent", "dead") else (0, 1, 2, 3)
    return Case(COLL, before.replace("OTHER", other) + text, raises, words, dead=way == "dead")


CASES = {
    f"{call}-{way}": _coll(call, text, way)
    for call, text in _CALLS.items()
    for way in _WAYS
    if way in ("order", "absent", "dead")
    or (call != "barrier" and (way not in ("op", "root") or way.upper() in text))
}

MOE = """
import numpy as np, emulator
from collectives import EpCosts, ExpertExchange, IdleStep
device = emulator.init()
n, me = device.num_ranks, device.rank
odd = me == 2
K, H, S, T = 2, 16, 2, 4
cost = EpCosts(4 * H)
make = lambda **k: ExpertExchange(device, **{**dict(slots=S, hidden=H, max_tokens=T, topk=K), **k})
x = lambda t=T, h=H, kind=np.float32: np.full((t, h), me, kind)
ids = lambda t=T, k=K: (np.arange(t * k).reshape(t, k) + me) % (n * S)
w = np.ones((T, K), np.float32)
def both(e, rows=None, slots=None, **k):
    h = e.dispatch(x() if rows is None else rows, ids() if slots is None else slots, **k)
    return e.combine(h, h.rows, w[:h.tokens])
"""
_MOE = {
    "tokens": ("both(make(), x(T + odd), ids(T + odd))", "rank 2: dispatch: 5 rows"),
    "hidden": ("both(make(), x(T, H + odd))", "rank 2: dispatch: x must"),
    "dtype": ("both(make(), x(kind=np.float64 if odd else np.float32))", "rank 2: dispatch: x must"),
    "topk": ("both(make(), x(), ids(k=K + odd))", "rank 2: dispatch: slot_ids"),
    "slot": ("both(make(), x(), ids() + (99 if odd else 0))", "rank 2: dispatch: pair 0 names slot"),
    "post": ("e = make(); e.finish_dispatch(e.post_dispatch(x(T + odd), ids(T + odd)))", "rank 2: dispatch: 5"),
    "overflow": ("both(make(max_rows=8), x(), np.full((T, K), 5))", "rank 2: dispatch: rank 2 gets 32 rows"),
    "y": ("e = make(); h = e.dispatch(x(), ids()); e.combine(h, h.rows[odd:], w)", "rank 2: combine: y"),
    "weights": ("e = make(); h = e.dispatch(x(), ids()); e.combine(h, h.rows, w[odd:])", "rank 2: combine: w"),
    "old handle": (
        "e = make(); o = e.dispatch(x(1), ids(1)); h = e.dispatch(x(), ids())\n"
        "    e.combine(*((o, o.rows, w[:1]) if odd else (h, h.rows, w)))", "of another dispatch"),
    "batch": ("both(make(micro_batches=2), micro_batch=int(odd))", "rank 2: in dispatch of micro-batch 1"),
    "no such batch": ("both(make(micro_batches=2), micro_batch=2 if odd else 1)", "no micro-batch 2"),
    "order": (
        "e = make(); h = e.dispatch(x(), ids())\n"
        "    e.dispatch(x(), ids()) if odd else e.combine(h, h.rows, w)", "rank 2: in dispatch"),
    "order, posted": (
        "e = make(); h = e.dispatch(x(), ids())\n"
        "    e.finish_dispatch(e.post_dispatch(x(), ids())) if odd else e.finish_combine(e.post_combine("
        "h, h.rows, w))", "rank 2: in dispatch"),
    "idle": (
        "e = make()\n    if me == 1: return e.idle([IdleStep(False, cost), IdleStep(True, cost)])\n"
        "    both(e, x(T + odd), np.zeros((T + odd, K), np.int64))", "rank 2: dispatch: 5 rows"),
    "idle, combine": (
        "e = make()\n    if me == 1: return e.idle([IdleStep(False, cost), IdleStep(True, cost)])\n"
        "    h = e.dispatch(x(), np.zeros((T, K), np.int64)); e.combine(h, h.rows[odd:] if not odd else "
        "np.empty((3, H), np.float32), w)", "rank 2: combine: y"),
    "idle, order": (
        "e = make()\n    if odd: return e.idle([IdleStep(True, cost), IdleStep(False, cost)])\n"
        "    both(e)", "rank 2: in combine"),
    "made: tokens": ("make(max_tokens=T + odd)", "5 tokens to 2"),
    "made: hidden": ("make(hidden=H + odd)", "2x17"),
    "made: kind": ("make(quant='int8' if odd else None)", "of int8"),
    "made: rows": ("make(max_rows=9 + odd)", "at most 10 rows"),
    "made: batches": ("make(micro_batches=1 + odd)", "x 2"),
    "made: none": ("make(slots=0 if odd else S)", "slots must be at least 1"),
}  # fmt: skip
CASES |= {f"expert exchange-{name}": Case(MOE, body, words=(text,)) for name, (body, text) in _MOE.items()}
CASES |= {
    "expert exchange-absent": Case(MOE, "e = make()\n    if odd: return\n    both(e)", (0, 1, 3)),
    "expert exchange-dead": Case(
        MOE, "e = make(); both(e)\n    if odd: die()\n    both(e)", (0, 1, 3), ("[2]",), dead=True
    ),
}

A2E = """
import numpy as np, emulator
from collectives.xccl import A2E
device = emulator.init()
n, me = device.num_ranks, device.rank
K, H, S, T = 2, 16, 2, 4
ATT, EXP = range(2), range(2, 6)
odd, oddx = me == 1, me == 4
make = lambda **k: A2E(device, **{**dict(attention=ATT, experts=EXP, slots=S, hidden=H, max_tokens=T, topk=K), **k})
x = lambda t=T, h=H, kind=np.float32: np.full((t, h), me, kind)
ids = lambda t=T, k=K: (np.arange(t * k).reshape(t, k) + me) % (4 * S)
w = np.ones((T, K), np.float32)
def both(e, xx=None, ii=None, y=lambda r: r, **k):
    if me < 2:
        return e.e2a_receive(e.a2e_send(x() if xx is None else xx, ids() if ii is None else ii, **k), w)
    got = e.a2e_receive(**k)
    e.e2a_send(got, y(got.rows))
"""
_ALL6 = tuple(range(6))
_A2E: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "tokens": ("both(make(), x(T + odd), ids(T + odd))", "rank 1: a2e: 5 rows", _ALL6),
    "hidden": ("both(make(), x(T, H + odd))", "rank 1: a2e: x must", _ALL6),
    "slot": ("both(make(), None, ids() + (99 if odd else 0))", "rank 1: a2e: slot 100", _ALL6),
    "slot, direct": ("both(make(mode='direct'), None, ids() + 99 * odd)", "rank 1: a2e: slot 100", _ALL6),
    "overflow": ("both(make(max_rows=3), None, np.full((T, K), 7))", "rank 3: a2e: rank 3 gets 16", (0, 1, 3, 5)),
    "overflow, direct": ("both(make(max_rows=3, mode='direct'), None, np.full((T, K), 7))",
                         "rank 5: a2e: rank 5 gets 16", (0, 1, 5)),
    "outputs": ("both(make(), y=lambda r: r[:, :3] if oddx else r)", "rank 4: e2a: y must", (0, 1, 2, 4)),
    "batch": ("both(make(micro_batches=2), micro_batch=int(odd))", "rank 1: in e2a_receive of micro-batch 1", _ALL6),
    "role": ("e = make(); e.a2e_receive() if odd else both(e)", "rank 1 is attention", _ALL6),
    "absent": ("e = make()\n    if not odd: both(e)", "rank 1: in no call of it", (0, 2, 3, 4, 5)),
    "made: tokens": ("make(max_tokens=T + odd)", "5 tokens to 2", _ALL6),
    "made: sets": ("make(attention=range(1) if odd else ATT)", "range(0, 1):range(2, 6)", _ALL6),
    "made: mode": ("make(mode='direct' if odd else 'trampoline')", "direct by mte", _ALL6),
    "made: engine": ("make(engine='urma' if odd else 'mte')", "by urma", _ALL6),
    "made: rows": ("make(max_rows=7 + odd)", "at most 8 rows", _ALL6),
    "made: none": ("make(slots=0 if odd else S)", "rank 1: refused", (0, 2, 3, 4, 5)),
}  # fmt: skip
CASES |= {f"a2e-{name}": Case(A2E, body, who, (text,), 6) for name, (body, text, who) in _A2E.items()}
CASES |= {
    f"a2e-dead {who}": Case(
        A2E, f"e = make(); both(e)\n    if {who}: die()\n    both(e)",
        tuple(r for r in range(6) if r != rank), (str(rank),), 6, True,
    )
    for who, rank in (("odd", 1), ("oddx", 4))
}  # fmt: skip
