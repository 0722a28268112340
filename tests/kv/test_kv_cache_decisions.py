"""The cache's decisions alone: no block lost, prefixes found, tiers in order, bytes by formula.

Mutations seen to fail here: a kept block not taken out of the index when it is evicted; `share` without
counting; the loads of a match not held in DRAM while room is made; `match` one block too long; a hash that
does not cover what is before it.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.errors import InternalError, UsageError
from emulator.profile import load_profile
from serving.kv.blocks import BlockPool
from serving.kv.cache import KVCache, Match, Move, Transfer
from serving.kv.formats import GroupedFormat, LatentFormat
from serving.kv.prefix import block_hashes
from serving.kv.tiers import TierPrices, read_prices

SIZE = 4


def cache(blocks: int = 8, dram: int = 0, reuse: bool = True, size: int = SIZE) -> KVCache:
    pool = BlockPool(dram, dram * size) if dram else None
    return KVCache(size, BlockPool(blocks, blocks * size), pool, reuse)


def tokens(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def serve(kv: KVCache, name: object, ids: np.ndarray, most: int | None = None) -> int:
    """Open, compute and end one sequence; tokens found."""
    match = kv.match(kv.hashes(ids), len(ids) - 1 if most is None else most)
    assert kv.open(name, ids, match, len(ids))
    kv.commit(name, len(ids))
    kv.free(name)
    return match.num_tokens


def test_a_prefix_is_found_in_whole_blocks_and_never_the_last_token() -> None:
    kv = cache()
    ids = np.arange(12)
    assert serve(kv, "a", ids) == 0
    assert serve(kv, "b", ids) == 8  # the last of 12 tokens is always computed
    assert serve(kv, "c", np.concatenate([ids, [7]])) == 12
    assert serve(kv, "d", np.concatenate([ids[:7], [9, 9]])) == 4
    assert serve(kv, "e", ids[1:]) == 0
    kv.check_integrity(idle=True)


def test_two_sequences_share_blocks_and_the_last_to_end_gives_them_back() -> None:
    kv = cache()
    ids = np.arange(9)
    assert kv.open("a", ids, Match(), 9)
    kv.commit("a", 9)
    match = kv.match(kv.hashes(ids), 8)
    assert kv.open("b", ids, match, 9)
    assert kv.tables["a"][:2] == kv.tables["b"][:2]
    assert kv.tables["a"][2] != kv.tables["b"][2]
    kv.free("a")
    assert kv.hbm.num_held == 3 and kv.hbm.num_kept == 0
    kv.free("b")
    assert kv.hbm.num_held == 0 and kv.hbm.num_kept == 2
    assert kv.hbm.allocated == kv.hbm.freed
    kv.check_integrity(idle=True)


def test_what_nobody_holds_goes_oldest_first_and_the_end_of_a_path_before_its_beginning() -> None:
    kv = cache(blocks=4)
    serve(kv, "old", tokens(*range(8)))
    serve(kv, "new", tokens(*range(50, 58)))
    assert kv.open("big", tokens(*range(90, 98)), Match(), 8)
    assert kv.match(kv.hashes(tokens(*range(8))), 8).num_tokens == 0
    assert kv.match(kv.hashes(tokens(*range(50, 58))), 8).num_tokens == 8
    assert kv.grow("big", 9)
    assert kv.match(kv.hashes(tokens(*range(50, 58))), 8).num_tokens == 4
    assert not kv.grow("big", 17)
    kv.check_integrity()


def test_without_room_nothing_is_changed() -> None:
    kv = cache(blocks=3)
    assert kv.open("a", np.arange(8), Match(), 8)
    before = list(kv.tables["a"])
    assert not kv.open("b", np.arange(40, 60), Match(), 20)
    assert not kv.grow("a", 17)
    assert kv.tables == {"a": before}
    kv.check_integrity()


def test_evicted_blocks_go_to_dram_and_come_back_in_order() -> None:
    kv = cache(blocks=3, dram=4)
    ids = np.arange(12)
    serve(kv, "a", ids)
    assert kv.open("b", np.arange(60, 72), Match(), 12)
    stores = kv.take_transfers()
    assert [t.move for t in stores] == [Move.STORE] * 3
    kv.free("b")
    match = kv.match(kv.hashes(ids), 11)
    assert (match.num_tokens, match.num_in_dram) == (8, 2)
    assert kv.open("c", ids, match, 12)
    loads = kv.take_transfers()
    assert [(t.move, t.target) for t in loads] == [(Move.LOAD, b) for b in kv.tables["c"][:2]]
    assert [t.source for t in loads] == [stores[2].target, stores[1].target]
    assert sum(t.charge for t in loads) == 8
    kv.free("c")
    kv.check_integrity(idle=True)


def test_loads_survive_the_evictions_they_cause() -> None:
    """Room for the loads is made by storing others into a DRAM pool that is full of what is loaded."""
    kv = cache(blocks=2, dram=2)
    wanted = np.arange(9)
    serve(kv, "a", wanted[:8])
    serve(kv, "b", np.arange(70, 78))
    kv.take_transfers()
    match = kv.match(kv.hashes(wanted), 8)
    assert match.num_in_dram == 2
    assert kv.open("c", wanted[:8], match, 8)
    loads = [t for t in kv.take_transfers() if t.move is Move.LOAD]
    assert len(loads) == 2 and len({t.source for t in loads}) == 2
    kv.free("c")
    kv.check_integrity(idle=True)


def test_a_fork_shares_full_blocks_and_copies_the_rest() -> None:
    kv = cache()
    assert kv.open("a", np.arange(10), Match(), 10)
    assert kv.fork("a", "b", 10)
    (copy,) = kv.take_transfers()
    assert copy == Transfer(Move.COPY, kv.tables["a"][2], kv.tables["b"][2], 4)
    assert kv.tables["a"][:2] == kv.tables["b"][:2]
    kv.free("a")
    kv.free("b")
    kv.check_integrity(idle=True)


def test_names_find_what_was_named() -> None:
    kv = cache()
    ids = np.arange(8)
    assert kv.open("a", ids, Match(), 8)
    kv.commit("a", 8)
    kv.name("session", "a")
    kv.free("a")
    assert kv.match_name("session").num_tokens == 8
    assert kv.match_name("nobody").num_tokens == 0
    kv.forget([kv.match_name("session").nodes[1].hbm or 0])
    assert kv.match_name("session").num_tokens == 4
    kv.check_integrity(idle=True)


def test_hashes_cover_everything_before_and_what_a_token_stands_for() -> None:
    a = block_hashes(np.arange(8), 4)
    assert block_hashes(np.arange(4, 8), 4, a[0]) == a[1:]
    assert block_hashes(np.arange(4, 8), 4)[0] != a[1]
    assert block_hashes(np.arange(4), 4, spans=[256])[0] != block_hashes(np.arange(4), 4, spans=[4])[0]


def test_what_is_broken_is_found() -> None:
    kv = cache()
    assert kv.open("a", np.arange(8), Match(), 8)
    with pytest.raises(InternalError, match="are held though nothing"):
        kv.check_integrity(idle=True)
    kv.tables["a"].pop()
    with pytest.raises(InternalError, match="disagree"):
        kv.check_integrity()
    with pytest.raises(UsageError, match="--enable-prefix-caching"):
        KVCache(4, BlockPool(1, 4), BlockPool(1, 4), reuse=False)


@pytest.mark.parametrize(
    ("fmt", "per_token"),
    [
        (LatentFormat(61, 512, 64), 70_272),  # DeepSeek-V3, 16 bit
        (LatentFormat(61, 512, 64, latent_bytes=1), 39_040),  # INT8 but for the rotated part
        (LatentFormat(1, 512, 64, latent_bytes=1, scale_bytes=4), 644),
        (GroupedFormat(94, 4, 128), 192_512),  # Qwen3-235B
        (GroupedFormat(32, 32, 128), 524_288),  # MHA
    ],
)
def test_bytes_of_a_token_follow_the_formulas(fmt: LatentFormat | GroupedFormat, per_token: int) -> None:
    assert fmt.bytes_per_token == per_token


def test_a_steps_loads_cost_one_latency_and_their_bytes() -> None:
    loads = [Transfer(Move.LOAD, i, i, 128) for i in range(3)]
    prices = TierPrices("ub", 1_000_000, 10**11, 5 * 10**10, 70_272, copies=4)
    size = 3 * 128 * 70_272 * 4
    assert prices.load_ps(loads) == 1_000_000 + size * 10
    assert prices.store_ps([Transfer(Move.STORE, 1, 1, 128)]) == 1_000_000 + 128 * 70_272 * 20
    assert prices.load_ps([]) == prices.load_ps([Transfer(Move.COPY, 1, 2, 128)]) == 0
    profile = load_profile("cloudmatrix384", None)
    assert read_prices("vpc", profile, 1).load_bytes_per_s == 3_125_000_000
    assert read_prices("ub", profile, 1).load_bytes_per_s == 110_200_000_000
    with pytest.raises(UsageError, match="choose ub or vpc"):
        read_prices("pcie", profile, 1)


@st.composite
def lives(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Opens, growths and ends of sequences over few distinct prompts, so that they share."""
    kinds = st.sampled_from(["open", "grow", "end", "fork", "forget"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, 5), st.integers(1, 20)), max_size=60))


@settings(max_examples=120, deadline=None)
@given(lives(), st.integers(3, 9), st.sampled_from([0, 2, 6]), st.booleans())
def test_random_lives_lose_no_block_and_load_what_was_stored(
    steps: list[tuple[str, int, int]], blocks: int, dram: int, reuse: bool
) -> None:
    """The bytes are played along: every block holds what its place in the sequence says, whatever moved."""
    kv = cache(blocks, dram if reuse else 0, reuse)
    hbm: dict[int, tuple[int, ...]] = {}
    host: dict[int, tuple[int, ...]] = {}
    texts: dict[object, np.ndarray] = {}
    count = itertools.count()

    def settle() -> None:
        for t in kv.take_transfers():
            if t.move is Move.STORE:
                host[t.target] = hbm[t.source]
            else:
                hbm[t.target] = (host if t.move is Move.LOAD else hbm)[t.source]

    def compute(name: object, start: int) -> None:
        ids = texts[name]
        for position in range(start - start % SIZE, len(ids), SIZE):
            hbm[kv.tables[name][position // SIZE]] = tuple(ids[: position + SIZE].tolist())
        kv.commit(name, len(ids))

    for kind, which, number in steps:
        names = list(texts)
        if kind == "open":
            ids = np.array([which] * 3 + list(range(number)), np.int64)
            match = kv.match(kv.hashes(ids), len(ids) - 1)
            name = next(count)
            if kv.open(name, ids, match, len(ids)):
                settle()
                texts[name] = ids
                for place in range(match.num_tokens // SIZE):
                    assert hbm[kv.tables[name][place]] == tuple(ids[: (place + 1) * SIZE].tolist())
                compute(name, match.num_tokens)
        elif names and kind == "grow":
            name = names[which % len(names)]
            more = np.concatenate([texts[name], np.arange(number, number + 3)])
            kv.extend(name, more)
            if kv.grow(name, len(more)):
                settle()
                start, texts[name] = len(texts[name]), more
                compute(name, start)
            else:
                kv.extend(name, texts[name])
        elif names and kind == "fork":
            name, child = names[which % len(names)], next(count)
            if kv.fork(name, child, len(texts[name])):
                settle()
                texts[child] = texts[name]
        elif names and kind == "forget" and number > 15:
            kv.forget(kv.tables[names[which % len(names)]][:1])
        elif names and kind == "end":
            name = names[which % len(names)]
            kv.free(name)
            del texts[name]
        kv.check_integrity()
        for name, ids in texts.items():
            for place in range(len(ids) // SIZE):
                assert hbm[kv.tables[name][place]] == tuple(ids[: (place + 1) * SIZE].tolist())
    for name in texts:
        kv.free(name)
    kv.take_transfers()
    kv.check_integrity(idle=True)
