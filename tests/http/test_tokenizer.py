"""Tokenizer, chat template and defaults of a checkpoint: equal to `transformers` on the same directory."""

import json
from pathlib import Path

import numpy as np
import pytest
import transformers
from tokenizers_made import TEXT, byte_level

from emulator.errors import UsageError
from serving.api.detokenizer import Detokenizer, IdText
from serving.api.made_tokenizer import make_tokenizer
from serving.api.tokenizer import GenerationDefaults, Tokenizer, load_tokenizer
from serving.api.vocabulary import token_bytes

SEED = 20261130
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <there> & é"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "1 + 1"},
]
TEMPLATE = """{{ bos_token }}{% for m in messages %}
{% if m.role == 'user' %}<user>{{ m.content | trim }}{% elif m.role == 'system' %}{{ m.content | tojson }}
{% else %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}
{% if loop.last %}{% break %}{% endif %}
{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


def theirs(directory: Path) -> transformers.PreTrainedTokenizerFast:
    return transformers.AutoTokenizer.from_pretrained(str(directory))  # type: ignore[no-any-return]


def test_text_to_tokens_and_back(directory: Path) -> None:
    ours, reference = Tokenizer(directory), theirs(directory)
    for text in (*TEXT, "<user>hello<eos><think>", ""):
        for special in (True, False):
            ids = ours.encode(text, special)
            assert ids == reference.encode(text, add_special_tokens=special), (text, special)
            for skip in (True, False):
                assert ours.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)


def test_pieces_together_are_the_whole_text(directory: Path) -> None:
    """Random tokens too: half characters, special tokens, blanks at the start."""
    ours, rng = Tokenizer(directory), np.random.default_rng(SEED)
    texts = [ours.encode(text, False) for text in TEXT]
    first = 257 if directory.name == "sentencepiece" else 0  # its bytes that are no text change others
    noise = [rng.integers(first, ours.vocabulary, 80).tolist() for _ in range(40)]
    for ids in [*texts, *noise]:
        for skip in (True, False):
            detokenizer = Detokenizer(ours, skip_special=skip)
            pieces = [detokenizer.add(token) for token in ids] + [detokenizer.finish()]
            assert "".join(pieces) == detokenizer.text == ours.decode(ids, skip), (SEED, ids)


def test_an_answer_goes_on_from_its_prompt(directory: Path) -> None:
    """The blank before the first word of an answer is not lost, though a text alone would not have it."""
    ours = Tokenizer(directory)
    prompt, answer = "The quick", " brown fox"
    ids, first = ours.encode(prompt + answer, False), len(ours.encode(prompt, False))
    detokenizer = Detokenizer(ours, ids[:first])
    text = "".join(detokenizer.add(token) for token in ids[first:]) + detokenizer.finish()
    assert ours.decode(ids[:first]) + text == ours.decode(ids)


def test_bytes_of_tokens_are_those_of_texts(directory: Path) -> None:
    ours = Tokenizer(directory)
    table = token_bytes(ours, ours.vocabulary + 5)
    assert table.piece(ours.vocabulary + 4, False) == b""
    for text in TEXT:
        ids = ours.encode(text, False)
        joined = b"".join(table.piece(token, True) for token in ids).decode()
        assert joined.strip() == ours.decode(ids).strip()


def test_stop_strings_are_cut_and_never_half_given() -> None:
    detokenizer = Detokenizer(IdText(), stop=["3 4 ", "9 "])
    pieces = [detokenizer.add(token) for token in (1, 2, 3, 5, 3, 4, 8)]
    assert ("".join(pieces), detokenizer.stopped_by) == ("1 2 3 5 ", "3 4 ")
    assert pieces[2] == "2 "[:1] or "3" not in pieces[2]
    kept = Detokenizer(IdText(), stop=["9 "], include_stop=True)
    assert "".join(kept.add(token) for token in (1, 9, 9)) == "1 9 "
    late = Detokenizer(IdText(), stop=["1 "], min_tokens=2)
    assert "".join(late.add(token) for token in (1, 1, 1)) == "1 1 "


def test_garbage_stays_cheap_and_right(tmp_path: Path) -> None:
    """A model of noise: bytes that are no character, for ever."""
    ours = Tokenizer(byte_level(tmp_path / "b"))
    bad = ours.fast.token_to_id(pre_byte(0x80))
    detokenizer = Detokenizer(ours)
    text = "".join(detokenizer.add(bad) for _ in range(2000)) + detokenizer.finish()
    assert text == ours.decode([bad] * 2000) and len(detokenizer._window) < 100


def pre_byte(byte: int) -> str:
    from serving.api.vocabulary import byte_characters

    return byte_characters()[byte]


@pytest.mark.parametrize("in_file", [False, True])
def test_chat_template(tmp_path: Path, in_file: bool) -> None:
    path = byte_level(tmp_path / "b", **({} if in_file else {"chat_template": TEMPLATE}))
    if in_file:
        (path / "chat_template.jinja").write_text(TEMPLATE)
    ours, reference = Tokenizer(path), theirs(path)
    for add in (True, False):
        wanted = reference.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=add)
        assert ours.apply_chat_template(CHAT, add_generation_prompt=add) == wanted


def test_what_a_template_may_not_do(tmp_path: Path) -> None:
    for number, (template, word) in enumerate(
        [
            ("{{ raise_exception('only one system message') }}", "only one system message"),
            ("{{ messages.append(1) }}", "refuses"),
            ("{{ ''.__class__.__mro__ }}", "refuses"),
            ("{{ 1 / 0 }}", "refuses"),
        ]
    ):
        ours = Tokenizer(byte_level(tmp_path / str(number), chat_template=template))
        with pytest.raises(UsageError, match=word):
            ours.apply_chat_template(CHAT)
    with pytest.raises(UsageError, match="not valid"):
        Tokenizer(byte_level(tmp_path / "x", chat_template="{% if %}"))
    with pytest.raises(UsageError, match="no chat template"):
        Tokenizer(byte_level(tmp_path / "y")).apply_chat_template(CHAT)


def test_a_directory_without_tokenizer_has_none(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_generation_defaults(tmp_path: Path) -> None:
    assert GenerationDefaults.read(tmp_path) == GenerationDefaults()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 3}))
    assert GenerationDefaults.read(tmp_path).eos_token_ids == (3,)
    generation = {"eos_token_id": [1, 2], "temperature": 0.6, "top_p": 0.95, "max_new_tokens": 9}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    found = GenerationDefaults.read(tmp_path)
    assert found == GenerationDefaults((1, 2), {"temperature": 0.6, "top_p": 0.95}, 9)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(UsageError, match="eos_token_id"):
        GenerationDefaults.read(tmp_path)


def test_the_made_tokenizer_is_one_transformers_reads(tmp_path: Path) -> None:
    make_tokenizer(tmp_path, 512)
    ours, reference = Tokenizer(tmp_path), theirs(tmp_path)
    for text in TEXT:
        assert ours.encode(text) == reference.encode(text)
        assert ours.decode(ours.encode(text)) == text
    assert ours.apply_chat_template(CHAT) == reference.apply_chat_template(
        CHAT, tokenize=False, add_generation_prompt=True
    )
    assert GenerationDefaults.read(tmp_path).eos_token_ids == (ours.fast.token_to_id("<eos>"),)
    with pytest.raises(UsageError, match="260"):
        make_tokenizer(tmp_path, 64)
