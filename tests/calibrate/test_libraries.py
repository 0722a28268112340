"""Price lists of libraries: what an operation is charged, and what the files may hold."""

from __future__ import annotations

import tomllib
from importlib import resources

import pytest

from collectives.libraries import LIBRARIES, charges, load_library
from collectives.libraries.library import OWN
from emulator.errors import UsageError
from emulator.npu import ceil_ps
from emulator.profile import load_profile

HIDDEN, TOPK = 7168, 8


def cost(name: str, operation: str, **sizes: int | str | bool):
    given = {"ranks": 8, "hidden": HIDDEN, "topk": TOPK, **sizes}
    library = load_library(name)
    return charges(library, load_profile(library.machine), operation, **given)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_has_at_most_three_numbers_of_its_own_and_no_table(name: str) -> None:
    """Shared numbers stand in the machine's profile; nothing names a published row or a number of ranks. The
    sizes of XCCL's buffers are no prices."""
    table = tomllib.loads((resources.files("collectives.libraries") / f"{name}.toml").read_text())
    assert set(table) == {"own", "format"} | ({"ring"} if name == "xccl" else set())
    assert {f"own.{key}" for key in table["own"]} == set(OWN) and len(OWN) == 3
    assert set(table["format"]) == {"record_bytes", "scale_bytes"}


def test_a_pulled_dispatch_quantises_all_rows_before_its_records_and_polls_one_a_rank() -> None:
    """Fails if quantising is left out, done for the first round alone, or polling forgets a rank."""
    library, shared = load_library("xccl"), load_profile()
    found = cost("xccl", "dispatch", ranks=128, tokens=300)
    quantise = ceil_ps(300 * TOPK * 2 * HIDDEN, shared.per_s("vector.quantise_gb_per_s"))
    assert found.start_ps == library.ps("start") + library.ps("layout") + quantise
    assert found.pull_start_ps == 128 * library.ps("rank") and found.record_ps == library.ps("rank")
    assert (found.row_bytes, found.meta_bytes) == (7680, 32)


def test_a_pushed_operation_pays_for_its_peers_in_every_round_of_128_tokens() -> None:
    """Fails if a round is forgotten: 4,096 tokens are 32 rounds."""
    library = load_library("deepep-ascend")
    small, large = (cost("deepep-ascend", "dispatch", ranks=16, tokens=tokens) for tokens in (128, 4096))
    assert small.start_ps == large.start_ps
    assert large.pull_start_ps == 32 * small.pull_start_ps == 32 * 16 * library.ps("rank")


def test_combine_adds_rows_up_before_xccl_announces_them_and_after_the_others_have_them() -> None:
    shared = load_profile()
    copied = ceil_ps(128 * TOPK * 2 * HIDDEN, shared.per_s("vector.copy_gb_per_s"))
    assert cost("xccl", "combine").start_ps == load_library("xccl").ps("start") + copied
    ranks = 8 * load_library("cann").ps("rank")
    assert cost("cann", "combine").pull_start_ps == ranks + copied


def test_where_copies_overlap_only_one_round_of_them_shows() -> None:
    one, many = (cost("deepep-legacy", "combine", tokens=tokens).pull_start_ps for tokens in (128, 4096))
    rank = 8 * load_library("deepep-legacy").ps("rank")
    assert one - rank == many - 32 * rank > 0


def test_rows_of_each_type() -> None:
    assert [cost("cann", "dispatch", dtype=t).row_bytes for t in ("int8", "bf16")] == [7680, 14336]
    assert cost("deepep", "dispatch").row_bytes == 7168 + 4 * 56 + 16
    assert cost("deepep", "dispatch", dtype="bf16").start_ps < cost("deepep", "dispatch").start_ps


def test_in_situ_is_one_overhead_whatever_the_operation() -> None:
    more = {
        cost("xccl", op, in_situ=True).pull_start_ps - cost("xccl", op).pull_start_ps
        for op in ("dispatch", "combine")
    }
    assert more == {load_profile().ps("exchange.in_situ_us")}


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("operation", ["dispatch", "combine"])
def test_more_ranks_or_tokens_never_cost_less(name: str, operation: str) -> None:
    def total(ranks: int, tokens: int) -> int:
        found = cost(name, operation, ranks=ranks, tokens=tokens)
        return found.start_ps + found.pull_start_ps

    times = [total(ranks, tokens) for ranks in (2, 8, 100, 384) for tokens in (0, 1, 128, 129, 5000)]
    assert all(total(r, 128) <= total(2 * r, 128) for r in (2, 50, 192))
    assert all(a <= b for a, b in zip(times[:4], times[1:5], strict=True))
    assert min(times) >= 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("cann", "dispach", {}), "did you mean 'dispatch'"),
        (("canm", "dispatch", {}), "no library 'canm'; did you mean 'cann'"),
        (("cann", "dispatch", {"dtype": "int4"}), "did you mean 'int8'"),
        (("cann", "dispatch", {"ranks": 0}), "ranks must be at least 1, got 0"),
        (("cann", "dispatch", {"tokens": -1}), "tokens must be at least 0, got -1"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, str, dict], text: str) -> None:
    name, operation, sizes = arguments
    with pytest.raises(UsageError, match=text) as error:
        cost(name, operation, **sizes)
    assert "\n" not in str(error.value)


def test_a_number_can_be_overridden_and_says_so() -> None:
    library = load_library("cann", {"own.rank_us": 1})
    assert library.ps("rank") == 10**6 and library.numbers.labels()["own.rank_us"] == "override"
    with pytest.raises(UsageError, match="no such key"):
        load_library("cann", {"own.row_us": 1})
