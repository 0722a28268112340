"""The compiled exchange of one number each is the exchange: same times, same trace, the sum of the tags."""

import pytest
from ranks import run_ranks

PROGRAM = """
import sys
import numpy as np
import emulator
from emulator.errors import UsageError

device = emulator.init()
n, me = device.num_ranks, device.rank

def plain(channel, sizes, tag):
    scalar = isinstance(sizes, int)
    meta, record = (sizes, None) if scalar else (0, sizes)
    return int(device.exchange(channel, None, 0, meta, tag=tag, record_bytes=record).tags.sum())

call = plain if sys.argv[1] == "plain" else device.exchange_tags
group = np.arange(me % 2, n, 2, dtype=np.int32)
device.open_group(1, group)
told = []
for k, (channel, sizes, tag) in enumerate((
    (0, 64, me + 1),
    (1, 0, 10 + me),
    (0, np.arange(n, dtype=np.int64) * 100, 2**62),
    (1, np.full(group.size, 7, np.int64), -5),
)):
    device.compute(1000 * me * k)
    told.append((call(channel, sizes, tag), device.now_ps))
try:
    call(2 if n > 2 else 0, -1, 0)
except UsageError as error:
    told.append(str(error).split(",")[0])
report(told=told, group=group.tolist())
"""


@pytest.mark.multirank
def test_equals_the_exchange():
    """(Mutations: the sum over all ranks instead of the group's; sizes forgotten.)"""
    plain, tags = (run_ranks(5, PROGRAM, args=(way,)) for way in ("plain", "tags"))
    assert plain.sha == tags.sha
    for rank, told in tags.reports.items():
        assert told == plain.reports[rank]
        total, group, wrapped, same = (value for value, _ in told["told"][:4])
        wide = (5 * 2**62 + 2**63) % 2**64 - 2**63
        assert (total, wrapped, same) == (15, wide, -5 * len(told["group"]))
        assert group == sum(10 + r for r in told["group"])
        assert "meta_bytes is -1" in told["told"][4]
