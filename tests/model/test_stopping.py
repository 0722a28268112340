"""What ends an answer, as a function of its outputs."""

import numpy as np
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from serving.model.sampling_params import SamplingParams
from serving.model.stopping import Finish, TokenBytes, finish_of

PIECES = [b"a", b"b", b"ab", b"ba", b"aab", b"\xe4\xbd", b"\xa0", b"<eos>", b""]
TABLE = TokenBytes.of(PIECES, frozenset({7}))
EOS = 7


def ends(params: SamplingParams, outputs: list[int], most: int = 100) -> tuple[int, Finish] | None:
    """The first output that ends an answer, and how."""
    for count in range(1, len(outputs) + 1):
        found = finish_of(params, outputs[:count], most, TABLE)
        if found is not None:
            return count, found
    return None


def test_tokens_come_before_length() -> None:
    params = SamplingParams(eos_token_ids=(EOS,), stop_token_ids=(3,))
    assert ends(params, [0, 0, EOS], 3) == (3, Finish("stop"))
    assert ends(params, [0, 3], 9) == (2, Finish("stop", 3))
    assert ends(params, [0, 0, 0], 3) == (3, Finish("length"))
    assert ends(SamplingParams(eos_token_ids=(EOS,), ignore_eos=True), [EOS, EOS], 2) == (2, Finish("length"))


def test_nothing_but_length_ends_it_before_min_tokens() -> None:
    params = SamplingParams(eos_token_ids=(EOS,), stop_token_ids=(1,), stop=["a"], min_tokens=3)
    assert ends(params, [1, 0, 0, 1]) == (4, Finish("stop", 1))
    assert ends(params, [1, 1, EOS, 0]) == (4, Finish("stop", "a"))


def test_a_stop_string_crosses_tokens_and_characters() -> None:
    assert ends(SamplingParams(stop=["bab"]), [0, 1, 0, 1]) == (4, Finish("stop", "bab"))
    assert ends(SamplingParams(stop=["\u4f60"]), [0, 5, 6]) == (3, Finish("stop", "\u4f60"))
    assert ends(SamplingParams(stop=["x", "ab"]), [0, 0, 1]) == (3, Finish("stop", "ab"))


def test_special_tokens_have_text_only_where_asked_for() -> None:
    assert ends(SamplingParams(stop=["<eos>"]), [0, EOS]) is None
    assert ends(SamplingParams(stop=["<eos>"], skip_special_tokens=False), [0, EOS]) == (
        2,
        Finish("stop", "<eos>"),
    )


@seed(20261130)
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=12), st.sampled_from(["ab", "aab", "bb", "abab", "aaba"])
)
def test_it_ends_at_the_first_token_that_completes_the_string(tokens: list[int], stop: str) -> None:
    """Mutation: `len(last) - len(text) + 1` without the + 1, or `most` one short."""
    texts = [b"".join(PIECES[t] for t in tokens[: i + 1]).decode() for i in range(len(tokens))]
    wanted = next((i + 1 for i, text in enumerate(texts) if stop in text), None)
    found = ends(SamplingParams(stop=[stop]), tokens)
    assert (found[0] if found else None) == wanted


def test_the_table_survives_its_files(tmp_path) -> None:  # type: ignore[no-untyped-def]
    TABLE.write(tmp_path)
    again = TokenBytes.read(tmp_path)
    assert again is not None
    assert [again.piece(i, False) for i in range(-1, 10)] == [b"", *PIECES, b""]
    assert again.piece(7, True) == b"" and TokenBytes.read(tmp_path / "none") is None
    assert np.load(tmp_path / "token_ends.npy").shape == (9, 2)
