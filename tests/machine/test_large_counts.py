"""Counts beyond 2**31 (open-mpi/ompi #5383: a collective overflows above 2 GB): charged to the byte.

Mutation: a count kept in 32 bits anywhere (`nbytes & 0xFFFFFFFF` in `new_posts`, int32 in the ledger)
fails each of these.
"""

import numpy as np
import pytest

from emulator.engine import core_available
from emulator.engine.posts import K_GET, K_PUT, new_posts
from emulator.solo import solo_device

HUGE = 5 * 2**30 + 7
KINDS = ["python"] + ["c"] * core_available()


@pytest.mark.parametrize("engine", KINDS)
@pytest.mark.parametrize("recorded", [False, True])
def test_five_gigabytes_take_their_time_and_are_counted(engine: str, recorded: bool) -> None:
    device = solo_device(engine=engine)
    if recorded:
        device.post(new_posts(1, kind=K_PUT, nbytes=HUGE))
        device.quiet()
        device.wait_get(device.post(new_posts(1, kind=K_GET, nbytes=HUGE)))
    else:
        device.put(0, 0, np.zeros(0, np.uint8), HUGE)
        device.quiet()
        device.get(0, 0, 0, HUGE)
    config = device.engine.config
    once = -(-HUGE * 10**12 // config.write_bytes_per_s[0])
    latencies = config.put_latency_ps[0] + config.ack_latency_ps[0]
    latencies += config.request_latency_ps[0] + config.response_latency_ps[0]
    assert device.now_ps == 2 * config.call_price_ps + latencies + 2 * once  # the waits overlap
    assert device.ledger.as_dict()["wire_bytes"] == {"ub": 2 * HUGE}
    assert device.engine.statistics().bytes_by_class[0].tolist() == [2 * HUGE, 0, 0, 0]
