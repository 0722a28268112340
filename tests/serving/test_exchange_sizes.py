"""Buffers of an exchange are sized so that a record can name every row, or the token budget is refused."""

import pytest

from collectives.blocks import LARGEST_SEND, Block, most_capacity
from emulator.errors import UsageError
from emulator.rows import RowFormat
from launch.recovery_options import recovery_times
from serving.job import ReplayJob
from serving.limits import exchange_sizes, job_limits, job_placement
from serving.model import preset_config
from serving.workload import WorkloadOptions, builtin_trace, make_requests

_CONFIG = preset_config("mini")
_SPECS = make_requests(builtin_trace(32, 0), WorkloadOptions(vocab=97))


def _sizes(**options):
    job = ReplayJob("m", 32, "deepseek-r1", "cloudmatrix384", {}, **options)
    limits = job_limits(job, _CONFIG, 1 << 40, _SPECS)
    return exchange_sizes(job, limits, job_placement(job, _CONFIG), _CONFIG.num_experts_per_tok, _SPECS)


@pytest.mark.parametrize("batched_tokens", [2048, 4096, 5792])
@pytest.mark.parametrize("times", [None, recovery_times("in-place")])
def test_blocks_of_a_replay_exist(batched_tokens, times):
    """`replay -n 32 --recovery in-place` of whole prompts died on its ranks: 151,360 rows where a record can
    name 131,063. Fails without `most_capacity` in `exchange_sizes`."""
    sizes = _sizes(batched_tokens=batched_tokens, recovery=times)
    sent = sizes.max_tokens * _CONFIG.num_experts_per_tok
    for capacity in (sent, sizes.max_rows):
        Block(capacity, RowFormat(16, 4), sent)


def test_a_budget_that_no_record_can_name_is_refused():
    with pytest.raises(UsageError, match="--max-num-batched-tokens 5793.*takes 5792"):
        _sizes(batched_tokens=5793)


def test_the_largest_block_is_the_last_that_fits():
    assert most_capacity(LARGEST_SEND) >= LARGEST_SEND > most_capacity(LARGEST_SEND + 1) - 2
    with pytest.raises(UsageError, match="32-bit"):
        Block(most_capacity(8) + 1, RowFormat(16, 4), 8)
