"""A checkpoint's Jinja chat template, rendered in a sandbox with what `transformers` gives a template.

Source: transformers `utils/chat_template_utils.py`: an immutable sandbox, `trim_blocks`, `lstrip_blocks`,
`raise_exception`, `strftime_now`, a `tojson` that keeps characters, loop controls, the `generation` tag.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from emulator.errors import UsageError


class _Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: what stands between is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        text: str = caller()
        return text


class ChatTemplate:
    """One compiled template; texts of the named special tokens are its variables.

    Raises:
        UsageError: the template is no valid Jinja.
    """

    def __init__(self, source: str, named_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._named = dict(named_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise UsageError(f"the chat template is not valid: {error}") from None

    @staticmethod
    def read(
        directory: Path, tokenizer_config: Mapping[str, Any], named_tokens: Mapping[str, str]
    ) -> ChatTemplate | None:
        """The template of a checkpoint: `chat_template.jinja`, else in `tokenizer_config.json`."""
        file = directory / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.exists() else tokenizer_config.get("chat_template")
        if isinstance(source, list):  # several by name
            named = {entry["name"]: entry["template"] for entry in source}
            source = named.get("default")
        return ChatTemplate(source, named_tokens) if isinstance(source, str) else None

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The prompt of a conversation; `add_generation_prompt` is true unless given.

        Raises:
            UsageError: the template refuses the messages, or fails on them.
        """
        values = {"add_generation_prompt": True, "tools": None, "documents": None, **self._named, **options}
        try:
            return self._template.render(messages=list(messages), **values)
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            AttributeError,
            LookupError,
            ArithmeticError,
        ) as error:
            raise UsageError(f"the chat template refuses these messages: {error}") from None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
