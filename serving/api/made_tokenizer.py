"""A small byte-level tokenizer for made checkpoints: the 256 bytes, some merges, and a chat template.

It has the form of DeepSeek's (byte-level BPE, `<bos>` before every text) at any vocabulary of 260 or more.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, decoders, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

from emulator.errors import UsageError
from serving.api.vocabulary import byte_characters

SPECIAL = ("<bos>", "<eos>", "<user>", "<assistant>")
_MERGED = ("th", "he", "in", "er", "an", " t", " a", "the", " the", "ing", "and", " and")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<user>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '<assistant>' + message['content'] + eos_token }}"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def make_tokenizer(directory: str | Path, vocabulary: int) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `generation_config.json` beside a model of at least
    `vocabulary` = 260 ids. Raises UsageError: fewer."""
    least = 256 + len(SPECIAL)
    if vocabulary < least:
        raise UsageError(f"a byte-level tokenizer needs a vocabulary of at least {least}, not {vocabulary}")
    table = byte_characters()
    vocab = {table[byte]: byte for byte in range(256)}
    merges: list[tuple[str, str]] = []
    for text in _MERGED[: vocabulary - least]:
        spelt = "".join(table[b] for b in text.encode())
        cut = max(i for i in range(1, len(spelt)) if spelt[:i] in vocab and spelt[i:] in vocab)
        merges.append((spelt[:cut], spelt[cut:]))
        vocab[spelt] = len(vocab)
    fast = FastTokenizer(BPE(vocab, merges))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    bos, eos = (fast.token_to_id(text) for text in SPECIAL[:2])
    fast.post_processor = processors.TemplateProcessing("<bos> $A", "<bos> $A $B", [(SPECIAL[0], bos)])
    path = Path(directory)
    fast.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[1],
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"bos_token_id": bos, "eos_token_id": eos}
    (path / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
