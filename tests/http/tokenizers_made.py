"""Small tokenizers of three kinds, made here: `transformers`, loading the same directory, is the truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece
from tokenizers.trainers import BpeTrainer, WordPieceTrainer

TEXT = [
    "The quick brown fox jumps over the lazy dog. 1234567890",
    "中文字符和表情 😀👍🏽 über naïve café — “quotes”",
    "def f(x):\n    return x  # comment\n\n\ttabs",
    " leading and trailing blanks  ",
]


def byte_level(path: Path, **config: Any) -> Path:
    """Like DeepSeek's: byte-level BPE, a bos token put in front."""
    fast = Tokenizer(BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False)
    fast.train_from_iterator(TEXT, trainer)
    return _save(path, fast, **config)


def sentencepiece(path: Path) -> Path:
    """Like Llama's: blanks as U+2581, unknown bytes by `<0x..>`."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    fast = Tokenizer(BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    trainer = BpeTrainer(vocab_size=420, special_tokens=["<unk>"], initial_alphabet=[], show_progress=False)
    fast.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    fast.train_from_iterator([TEXT[0], TEXT[2]], trainer)
    model = json.loads(fast.to_str())["model"]
    vocab = {piece: i for i, piece in enumerate(["<unk>", *pieces])}
    for piece in sorted(model["vocab"], key=model["vocab"].__getitem__):
        vocab.setdefault(piece, len(vocab))
    merges = [tuple(pair) for pair in model["merges"]]
    fast.model = BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    steps = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    fast.decoder = decoders.Sequence(steps)
    return _save(path, fast, unk_token="<unk>")


def wordpiece(path: Path) -> Path:
    """Like BERT's: no byte says where a blank was."""
    fast = Tokenizer(WordPiece(unk_token="[UNK]"))
    fast.normalizer = normalizers.BertNormalizer()
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece(cleanup=False)
    fast.train_from_iterator(
        TEXT, WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    )
    return _save(path, fast, unk_token="[UNK]")


def _save(path: Path, fast: Tokenizer, **config: Any) -> Path:
    path.mkdir(parents=True)
    special = [AddedToken(text, special=True, normalized=False) for text in ("<bos>", "<eos>", "<user>")]
    fast.add_special_tokens(special)
    fast.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    bos = fast.token_to_id("<bos>")
    fast.post_processor = processors.TemplateProcessing("<bos> $A", "<bos> $A $B", [("<bos>", bos)])
    fast.save(str(path / "tokenizer.json"))
    names = {"bos_token": "<bos>", "eos_token": "<eos>", "clean_up_tokenization_spaces": False}
    whole = {"tokenizer_class": "PreTrainedTokenizerFast", **names, **config}
    (path / "tokenizer_config.json").write_text(json.dumps(whole))
    return path
