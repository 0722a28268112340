"""A checkpoint's tokenizer, chat template, EOS tokens and default parameters, read as `transformers` reads
them but without it: `tokenizers` and `jinja2` only.

Files (all but `config.json` optional): `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`,
`chat_template.jinja`, `generation_config.json`. A directory without `tokenizer.json` has no tokenizer: then
prompts are token ids, and texts are token ids with blanks between.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from emulator.errors import UsageError
from serving.api.chat_template import ChatTemplate

_GENERATION_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class GenerationDefaults:
    """What `generation_config.json` says: EOS ids (with those of `config.json`), and sampling parameters that
    hold where a request gives none. max_new_tokens: of a request that gives none; None: as many as fit."""

    eos_token_ids: tuple[int, ...] = ()
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    max_new_tokens: int | None = None

    @staticmethod
    def read(directory: str | Path) -> GenerationDefaults:
        """Read them; a missing file says nothing. Raises UsageError: not JSON, or values of another kind."""
        generation = read_json(Path(directory) / "generation_config.json")
        config = read_json(Path(directory) / "config.json")
        eos = generation.get("eos_token_id", config.get("eos_token_id"))
        ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise UsageError(f"{directory}: eos_token_id must be token ids, not {eos!r}")
        sampling = {k: generation[k] for k in _GENERATION_KEYS if generation.get(k) is not None}
        if generation.get("do_sample") is False:
            sampling = {"temperature": 0.0}
        return GenerationDefaults(tuple(ids), sampling, generation.get("max_new_tokens"))


class Tokenizer:
    """Text to token ids and back, as the checkpoint's own tokenizer in `transformers` does it.

    Attributes:
        fast: the `tokenizers` object. template: how messages become one prompt; None where there is none.
        special_ids: ids `skip_special_tokens` leaves out. named: texts of bos_token, eos_token, …
    """

    def __init__(self, directory: str | Path) -> None:
        path = Path(directory)
        try:
            self.fast = FastTokenizer.from_file(str(path / "tokenizer.json"))
        except Exception as error:
            raise UsageError(f"{path / 'tokenizer.json'}: no tokenizer that can be read: {error}") from None
        self.fast.no_padding()
        self.fast.no_truncation()
        config = read_json(path / "tokenizer_config.json")
        self.named = _named_tokens(config, read_json(path / "special_tokens_map.json"))
        added = self.fast.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._clean = config.get("clean_up_tokenization_spaces") is True
        self.template = ChatTemplate.read(path, config, self.named)

    @property
    def vocabulary(self) -> int:
        """Ids, those of added tokens included."""
        size: int = self.fast.get_vocab_size(with_added_tokens=True)
        return size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens around it are those of the post-processor in `tokenizer.json`
        (what `add_bos_token` says counts for nothing beside it, as in transformers 5)."""
        ids: list[int] = list(self.fast.encode(text, add_special_tokens=add_special_tokens).ids)
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; ids beyond the vocabulary give nothing."""
        text: str = self.fast.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return _without_spare_blanks(text) if self._clean else text

    def piece(self, token: int) -> str:
        """A token as the vocabulary spells it; empty for an unknown id."""
        found: str | None = self.fast.id_to_token(token)
        return found or ""

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """One prompt of a conversation.

        Raises:
            UsageError: no chat template, or it refuses these messages.
        """
        if self.template is None:
            raise UsageError("this model has no chat template; use /v1/completions")
        return self.template.render(messages, **options)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no file. Raises UsageError: anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: expected a JSON object")
    return value


def load_tokenizer(directory: str | Path) -> Tokenizer | None:
    """The tokenizer of a checkpoint; None where it has none."""
    return Tokenizer(directory) if (Path(directory) / "tokenizer.json").exists() else None


def _named_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    """Texts of the named special tokens; a token is a string, or an object with its content."""
    named: dict[str, str] = {}
    for name in _NAMED_TOKENS:
        for source in sources:
            token = source.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                named.setdefault(name, text)
    return named


def _without_spare_blanks(text: str) -> str:
    """As `clean_up_tokenization` of transformers."""
    pairs: Iterable[tuple[str, str]] = (
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    )
    for old, new in pairs:
        text = text.replace(old, new)
    return text
