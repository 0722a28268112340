"""One program over both transports and both engines: equal bytes, values, virtual times and hashes.

Under `rma` every movement is a real MPI Put, Get, Fetch_and_op or Compare_and_swap; the project checks each
atomic's answer against what the apply log says.
"""

import itertools

import pytest
from ranks import run_ranks

from emulator.engine import core_available

ENGINES = ["python"] + ["c"] * core_available()
TRANSPORTS = ["shared", "rma"]

MIXED = """
import numpy as np
import emulator
from emulator.engine.api import ADD, ATOMIC_ADD, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR, CAS, GE, SET, SWAP
from emulator.engine.posts import K_PUT, new_posts
from emulator.transport import Area
d = emulator.init()
n, me = d.num_ranks, d.rank
base, word, _ = d.symmetric.carve(Area.HEAP, 4096, "mixed", words=4)
rng = np.random.default_rng(me)
seen = []
for turn in range(6):
    to = (me + 1 + turn) % n
    data = rng.integers(0, 256, 33 + turn, dtype=np.uint8)
    d.put(to, base + 64 * me, data, data.size, word, ADD, 1)
    shape = d.fabric.put(d.fabric.link_class(me, to), 24, "dma")
    posts = new_posts(3, kind=K_PUT, peer=to, nbytes=8, offset=base + 1024 + 64 * me + 8 * np.arange(3),
                      **shape._asdict())
    d.post(posts, [rng.integers(0, 256, 8, dtype=np.uint8) for _ in range(3)])
    for operation, width in ((ATOMIC_ADD, 8), (ATOMIC_XOR, 4), (SWAP, 4), (ATOMIC_OR, 8), (ATOMIC_AND, 4)):
        handle = d.start_rmw(to, base + 2048 + 8 * (operation % 3), operation, width, 0x0123456789abcdef + me)
        seen.append(d.wait_get(handle).tolist())
    handle = d.start_rmw((me + turn) % n, base + 3072, CAS, 8, me + 1, compare=turn)
    seen.append(d.wait_get(handle).tolist())
    d.quiet()
    seen.append(d.get(to, base + 64 * me, 33, 33).tolist())
d.wait([(word, GE, 6)])
d.barrier()
report(seen=seen, heap=d.heap[base : base + 4096].tolist(), now=d.now_ps)
"""

CONTENDED = """
import numpy as np
import emulator
from emulator.engine.api import ATOMIC_ADD
from emulator.transport import Area
d = emulator.init()
base, _, _ = d.symmetric.carve(Area.HEAP, 64, "counter")
old = [int(d.wait_get(d.start_rmw(0, base, ATOMIC_ADD, WIDTH, 1)).view("<iWIDTH")[0]) for _ in range(COUNT)]
d.barrier()
report(old=old, now=d.now_ps, end=int(d.heap[base : base + WIDTH].view("<iWIDTH")[0]))
"""


@pytest.fixture(scope="module")
def mixed():
    return {
        (transport, engine, delivery): run_ranks(
            4, MIXED, transport=transport, engine=engine, delivery=delivery, seed=3
        )
        for transport, engine, delivery in itertools.product(TRANSPORTS, ENGINES, ["natural", "adversarial"])
    }


@pytest.mark.parametrize("delivery", ["natural", "adversarial"])
def test_transports_and_engines_agree(mixed, delivery: str) -> None:
    runs = [ran for (_, _, how), ran in mixed.items() if how == delivery]
    assert len({ran.sha for ran in runs}) == 1
    assert all(ran.reports == runs[0].reports for ran in runs)


def test_adversarial_delivery_takes_its_time(mixed) -> None:
    key = ("shared", ENGINES[-1])
    natural, adversarial = (mixed[*key, how] for how in ("natural", "adversarial"))
    assert adversarial.result["virtual_ps"] > natural.result["virtual_ps"]


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_contended_atomics_give_each_value_once(transport: str, width: int) -> None:
    """A hundred from each of four ranks; a jitter of the host and the other engine change nothing."""
    text = CONTENDED.replace("WIDTH", str(width)).replace("COUNT", "100")
    one = run_ranks(4, text, transport=transport, engine=ENGINES[-1])
    two = run_ranks(4, text, transport=transport, engine=ENGINES[0], env={"SUPERPOD_JITTER": "0.05,300,7"})
    assert one.reports == two.reports and one.sha == two.sha
    assert sorted(v for r in one.reports.values() for v in r["old"]) == list(range(400))
    assert one.reports[0]["end"] == 400


LOST = """
import numpy as np
import emulator
from emulator.engine.api import ATOMIC_ADD
from emulator.transport import Area
d = emulator.init()
base, _, _ = d.symmetric.carve(Area.HEAP, 64, "counter")
if d.rank == 0:
    d.transport.atomic = lambda *a: np.full(8, 9, np.uint8)  # an MPI in which something else is
    d.wait_get(d.start_rmw(0, base, ATOMIC_ADD, 8, 1))
d.barrier()
"""


def test_an_mpi_atomic_that_disagrees_with_the_log_ends_the_run() -> None:
    ran = run_ranks(2, LOST, transport="rma", check=False)
    assert ran.code != 0
    assert "found 0909090909090909, the apply log says 0000000000000000" in ran.stderr + ran.stdout
