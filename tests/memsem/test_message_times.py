"""When messages arrive: closed forms of eager and rendezvous, to the picosecond, on every plane."""

import re

import pytest
from ranks import ROOT, run_ranks

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(300)]

ONE = """
import numpy as np
from memsem import mpi as MPI

comm = MPI.COMM_WORLD
me, last = comm.Get_rank(), comm.Get_size() - 1
device = comm.endpoint.device
AT, LATE = 10**8, 10**8 + 5 * 10**7
took, price = {}, device.engine.config.call_price_ps
for step, size in enumerate(SIZES):
    start = AT * (step + 1) * 4
    into = np.zeros(size, np.uint8)
    if me == last:
        if POSTED_FIRST:
            device.sleep_ps(start - 10**7 - device.now_ps)
            request = comm.Irecv(into, 0)
            request.Wait()
        else:
            device.sleep_ps(start + LATE - AT - price - device.now_ps)
            comm.Recv(into, 0)
        assert (into == 7).all()
    elif me == 0:
        device.sleep_ps(start - price - device.now_ps)
        (comm.Ssend if SYNCHRONOUS else comm.Send)(np.full(size, 7, np.uint8), last)
    took[size] = device.now_ps - start
profile, config = device.profile, device.engine.config
cls = device.engine.link_class(0 if me == last else last)
planes = {"ub": config, "rdma": config.planes[0], "vpc": config.planes[1]}
plane = planes[device.config.mpi_over]
ps = {name: profile.ps(f"message.{name}_us") for name in ("send", "isend", "recv", "match")}
ps |= {name: profile.ps(f"rdma.{name}_us") for name in ("fetch", "pcie", "cqe", "gap")}
report(took=took, price=config.call_price_ps, ps=ps, copy=profile.per_s("message.copy_gb_per_s"),
       control=profile.integer("message.control_bytes"), put=plane.put_latency_ps[cls],
       ack=plane.ack_latency_ps[cls], get=plane.request_latency_ps[cls] + plane.response_latency_ps[cls],
       write=plane.write_bytes_per_s[cls], read=plane.read_bytes_per_s[cls], ledger=device.ledger.as_dict())
"""
NODE = 3  # ranks 0 and 2 are on two chips of a node
EAGER, LONGER = [0, 8, 1024, 8191, 8192], [8193, 65536, 1 << 20]


def run(sizes, posted_first=True, synchronous=False, **config):
    text = f"SIZES, POSTED_FIRST, SYNCHRONOUS = {sizes}, {posted_first}, {synchronous}\n" + ONE
    ran = run_ranks(NODE, text, **config)
    facts, took = ran.reports[2], [ran.reports[r]["took"] for r in (0, 2)]
    return facts, {int(n): t for n, t in took[0].items()}, {int(n): t for n, t in took[1].items()}


def up(nbytes, per_s):
    """Time of bytes at a rate, rounded up to a picosecond."""
    return -(-nbytes * 10**12 // per_s)


def match_ps(facts, charged, over="ub"):
    """From the call of a blocking send until its envelope is matched with a receive that waits."""
    ps = facts["ps"]
    start = facts["price"] + ps["send"]
    if over == "rdma":
        start += (ps["fetch"] + ps["pcie"] if charged > 220 else 0) + 0
    tail = ps["match"] + (ps["pcie"] + ps["cqe"] if over == "rdma" else 0)
    return start + facts["put"] + up(charged, facts["write"]) + tail


@pytest.mark.parametrize("over", ["ub", "rdma", "vpc"])
@pytest.mark.parametrize("engine", ["c", "python"])
def test_an_eager_message_that_is_waited_for(engine, over):
    """Latency, port, match; then the receiver's own copy and call."""
    facts, sender, receiver = run(EAGER, engine=engine, mpi_over=over)
    for n in EAGER:
        assert sender[n] == 2 * facts["price"] + facts["ps"]["send"]
        here = match_ps(facts, n + facts["control"], over)
        assert receiver[n] == here + facts["price"] + up(n, facts["copy"]) + facts["ps"]["recv"]
    ledger = facts["ledger"]["mpi"]
    assert ledger["match"]["count"] == ledger["copy"]["count"] == len(EAGER) and "handshake" not in ledger


@pytest.mark.parametrize("over", ["ub", "rdma", "vpc"])
def test_a_rendezvous_that_is_waited_for(over):
    """The envelope alone, then the receiver's side fetches the payload: a round trip more, no copy."""
    facts, sender, receiver = run(LONGER, mpi_over=over)
    for n in LONGER:
        here = match_ps(facts, facts["control"], over) + facts["get"] + up(n, facts["read"])
        assert receiver[n] == here + facts["price"] + facts["ps"]["recv"]
        assert sender[n] == here + facts["ack"] + (facts["ps"]["cqe"] if over == "rdma" else 0)
    assert facts["ledger"]["mpi"].keys() == {"calls", "match"}


def test_a_message_that_waits_is_received_at_once():
    """An unexpected one is there at the call; its rendezvous begins only then."""
    late = 5 * 10**7
    facts, _, receiver = run([8, 8192, 8193], posted_first=False)
    for n in (8, 8192):
        assert receiver[n] == late + 3 * facts["price"] + up(n, facts["copy"]) + facts["ps"]["recv"]
    fetched = facts["get"] + up(8193, facts["read"])
    assert receiver[8193] == late + facts["price"] + fetched + facts["price"] + facts["ps"]["recv"]


def test_a_synchronous_send_is_a_rendezvous_of_any_size():
    facts, sender, _ = run([0, 8, 9000], synchronous=True)
    for n in (0, 8, 9000):
        here = match_ps(facts, facts["control"]) + facts["get"] + up(max(n, 1), facts["read"])
        assert sender[n] == here + facts["ack"]


@pytest.mark.parametrize("over", ["ub", "rdma", "vpc"])
def test_longer_takes_longer_and_one_step_is_at_the_eager_limit(over):
    """Printed with -s: the table of sizes; the only jump is where the copy becomes a round trip."""
    sizes = sorted({*range(0, 8192, 512), 8191, 8192, 8193, *(8192 * k for k in range(2, 12)), 1 << 20})
    facts, _, receiver = run(sizes, mpi_over=over)
    times = [receiver[n] for n in sizes]
    print(*(f"{over} {n:8} B {t:12} ps" for n, t in zip(sizes, times, strict=True)), sep="\n")
    assert times == sorted(times) and len(set(times)) == len(times)
    jumps = {n: b - a for n, a, b in zip(sizes[1:], times, times[1:], strict=False)}
    more = {n: n - m for m, n in zip(sizes, sizes[1:], strict=False)}
    slowest = min(facts["read"], facts["write"])
    saved = up(8192, facts["copy"]) + up(8192, facts["write"])
    saved += facts["ps"]["fetch"] + facts["ps"]["pcie"] if over == "rdma" else 0  # the envelope is inline
    assert jumps[8193] == facts["get"] + up(8193, facts["read"]) - saved
    smooth = {n: up(more[n], slowest) + up(more[n], facts["copy"]) for n in more if n not in (512, 8193)}
    assert all(jumps[n] <= most for n, most in smooth.items())


def test_the_example_prints_times_that_each_plane_has_of_its_own():
    texts = [
        run_ranks(2, ROOT / "examples" / "mpi_pingpong.py", mpi_over=over).stdout
        for over in ("ub", "rdma", "vpc")
    ]
    times = [[float(us) for us in re.findall(r"B +([\d.]+) us", text)] for text in texts]
    assert [len(row) for row in times] == [7, 7, 7]
    assert all(a < b < c for a, b, c in zip(*times, strict=True))
