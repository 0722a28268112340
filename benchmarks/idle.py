"""What waiting costs the host: superpod run -n 64 benchmarks/idle.py

First all ranks but 0 wait for a signal that rank 0, asleep on the host, sends after 10 s: CPU seconds of all
ranks meanwhile. Then they poll, `while not window.test(...)`: wake-ups a rank, and the virtual time at which
each one sees its signal, compared with the closed form.
"""

import argparse
import json
import resource
import time

import numpy as np

import emulator
from memsem import Window

COMPUTE_PS = 1_000_000_000


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def blocked(dev: emulator.Device, window: Window, seconds: float) -> float:
    """CPU seconds of this rank while all but rank 0 wait."""
    dev.barrier()
    begin = cpu_s()
    if dev.rank == 0:
        time.sleep(seconds)
        for peer in range(1, dev.num_ranks):
            window.put_signal(peer, np.zeros(0), 0, signal=0, value=1)
    else:
        window.signal_wait_until(0, "eq", 1)
    return cpu_s() - begin


def polling(dev: emulator.Device, window: Window) -> int:
    """Wake-ups of this rank while all but rank 0 poll; their times are checked."""
    dev.barrier()
    dev.sleep_ps(-(-dev.now_ps // COMPUTE_PS) * COMPUTE_PS + COMPUTE_PS - dev.now_ps)
    begin_ps, before = dev.now_ps, int(dev.engine.statistics().wake_ups[dev.rank])
    if dev.rank == 0:
        dev.compute(COMPUTE_PS)
        for peer in range(1, dev.num_ranks):
            window.put_signal(peer, np.zeros(1), 0, signal=1, value=1)
        return 0
    while not window.test(1, "eq", 1):
        pass
    wake_ups = int(dev.engine.statistics().wake_ups[dev.rank]) - before
    assert dev.now_ps - begin_ps == seen_ps(dev), (dev.rank, dev.now_ps - begin_ps, seen_ps(dev))
    return wake_ups


def seen_ps(dev: emulator.Device) -> int:
    """When I see it, counted from when we all began.

    Rank 0 computes and posts one put of 8 bytes after the other; a call is longer than a put takes its port.
    I look every poll price; the look that succeeds is one call.
    """
    machine, me = dev.engine.config, dev.rank
    distance = int(dev.topology.link_class(0, me))
    call, poll, rate = machine.call_price_ps, machine.poll_price_ps, machine.write_bytes_per_s[distance]
    posted = COMPUTE_PS + call * (1 + me)
    delivered = posted + machine.put_latency_ps[distance] + -(-8 * 10**12 // rate)
    return call + -(-(delivered - call) // poll) * poll + call


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    dev = emulator.init()
    window, figures = Window.create(1, np.float64), Window.create((dev.num_ranks, 2), np.float64)
    used = blocked(dev, window, args.seconds)
    figures.put(0, np.array([used, polling(dev, window)]), 2 * dev.rank)
    dev.barrier()
    if dev.rank == 0:
        cpu, wake_ups = figures.load().reshape(-1, 2).T
        result = {
            "ranks": dev.num_ranks,
            "blocked_s": args.seconds,
            "blocked_cpu_s": round(float(cpu.sum()), 4),
        }
        print(json.dumps(result | {"polling_wake_ups_most": int(wake_ups.max())}))


if __name__ == "__main__":
    main()
