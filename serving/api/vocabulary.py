"""The bytes of every token of a tokenizer, for processes that look for stop strings without one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serving.api.tokenizer import Tokenizer, load_tokenizer
from serving.model.stopping import TokenBytes

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def token_bytes(tokenizer: Tokenizer, vocabulary: int) -> TokenBytes:
    """Bytes each id adds to a text: uint8 pieces for ids 0 to `vocabulary` - 1 (those the tokenizer lacks add
    nothing).

    Exact for byte-level and for sentencepiece tokenizers (with byte fallback); for others what a token adds
    after another one.
    """
    added = tokenizer.fast.get_added_tokens_decoder()
    of = _speller(tokenizer)
    pieces = [added[i].content.encode() if i in added else of(i) for i in range(vocabulary)]
    return TokenBytes.of(pieces, frozenset(i for i in tokenizer.special_ids if i < vocabulary))


def write_table(model_dir: str | Path, vocabulary: int, directory: str | Path) -> TokenBytes | None:
    """Write what the ranks of a job look for stop strings in; None where the model has no tokenizer."""
    tokenizer = load_tokenizer(model_dir)
    if tokenizer is None:
        return None
    table = token_bytes(tokenizer, vocabulary)
    table.write(directory)
    return table


def _speller(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    kinds = _decoder_kinds(json.loads(tokenizer.fast.to_str()).get("decoder"))
    if "ByteLevel" in kinds:
        table = {character: byte for byte, character in byte_characters().items()}
        return lambda token: bytes(table[c] for c in tokenizer.piece(token) if c in table)
    if kinds & {"Metaspace", "ByteFallback"}:
        return lambda token: _sentencepiece(tokenizer.piece(token))
    first = min(i for i in range(tokenizer.vocabulary) if i not in tokenizer.special_ids)
    alone = tokenizer.decode([first])

    def beside(token: int) -> bytes:
        return tokenizer.decode([first, token])[len(alone) :].encode() if tokenizer.piece(token) else b""

    return beside


def _decoder_kinds(decoder: Any) -> set[str]:
    if not isinstance(decoder, dict):
        return set()
    kinds = {str(decoder.get("type"))}
    for part in decoder.get("decoders", []):
        kinds |= _decoder_kinds(part)
    return kinds


def _sentencepiece(piece: str) -> bytes:
    found = _BYTE.fullmatch(piece)
    return bytes([int(found[1], 16)]) if found else piece.replace("\u2581", " ").encode()


def byte_characters() -> dict[int, str]:
    """The printable character that stands for each byte in a byte-level vocabulary (source: GPT-2's
    `encoder.py`): printable bytes stand for themselves, the others for U+0100 onwards."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (chr(0x100 + i) for i in range(256))
    return {byte: chr(byte) if byte in plain else next(others) for byte in range(256)}
