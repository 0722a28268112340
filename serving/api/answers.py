"""Answers in OpenAI's form: one choice's text, tokens and log-probabilities as they come, and what is sent of
them, whole or in chunks.

Virtual time stands in the extension `superpod` of `usage` (and of every chunk): picoseconds of the engine's
clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.api.detokenizer import Decoder, Detokenizer
from serving.api.intake import Asked
from serving.api.tokenizer import Tokenizer
from serving.model.stopping import TokenBytes
from serving.outputs import OutputEvent, TokenLogprobs


@dataclass
class Piece:
    """What one event adds to an answer."""

    text: str
    tokens: list[int]
    times_ps: list[int]
    logprobs: list[TokenLogprobs]
    finish: str | None


@dataclass
class Answer:
    """One choice. arrival_ps: -1 until the engine has said it."""

    index: int
    detokenizer: Detokenizer
    stop_tokens: frozenset[int]
    include_stop: bool = False
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    times_ps: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: str | None = None
    stop_reason: int | str | None = None
    arrival_ps: int = -1
    cached_tokens: int = 0
    rank: int = -1

    def add(self, event: OutputEvent) -> Piece:
        """Take an event in."""
        self.arrival_ps, self.rank = event.arrival_ps, event.rank
        self.cached_tokens = max(self.cached_tokens, event.cached_tokens)
        text = ""
        for i, token in enumerate(event.tokens):
            last = event.finish == "stop" and i == len(event.tokens) - 1
            text += self.detokenizer.add(token, counts=not (last and self._is_stop(event, token)))
        if event.finish is not None:
            text += self.detokenizer.finish()
            self.finish, self.stop_reason = event.finish, event.stop_reason
        self.text += text
        self.tokens += event.tokens
        self.times_ps += event.times_ps
        logprobs = list(event.logprobs or [])
        self.logprobs += logprobs
        return Piece(text, list(event.tokens), list(event.times_ps), logprobs, event.finish)

    def _is_stop(self, event: OutputEvent, token: int) -> bool:
        """A token that ended the answer is no part of its text, unless asked for."""
        return token in self.stop_tokens and not isinstance(event.stop_reason, str) and not self.include_stop


def answers_of(asked: Asked, decoder: Decoder) -> list[Answer]:
    """The empty answers of a request, in order of index."""
    params = asked.params
    stops = frozenset((*params.eos_token_ids, *params.stop_token_ids))
    return [
        Answer(
            i,
            Detokenizer(
                decoder,
                asked.prompt_of(i),
                params.stop,
                params.include_stop_str_in_output,
                params.skip_special_tokens,
                params.min_tokens,
            ),
            stops,
            params.include_stop_str_in_output,
        )
        for i in range(len(asked.make))
    ]


def usage(asked: Asked, answers: Sequence[Answer], virtual: bool = True) -> dict[str, Any]:
    """OpenAI's usage, with virtual times."""
    prompt = sum(len(p) for p in asked.prompts)
    outputs = sum(len(answer.tokens) for answer in answers)
    cached = sum(answer.cached_tokens for answer in answers if answer.index % asked.params.n == 0)
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": outputs,
        "total_tokens": prompt + outputs,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    if virtual:
        found["superpod"] = virtual_times(answers)
    return found


def virtual_times(answers: Sequence[Answer]) -> dict[str, Any]:
    """When it arrived and ended, and every token's time by choice, in ps."""
    ends = [answer.times_ps[-1] for answer in answers if answer.times_ps]
    firsts = [answer.times_ps[0] for answer in answers if answer.times_ps]
    return {
        "arrival_ps": max((answer.arrival_ps for answer in answers), default=-1),
        "first_token_ps": min(firsts, default=None),
        "end_ps": max(ends, default=None),
        "token_times_ps": [answer.times_ps for answer in answers],
        "ranks": [answer.rank for answer in answers],
    }


class LogprobForm:
    """Log-probabilities as the two kinds of completion spell them."""

    def __init__(self, tokenizer: Tokenizer | None, table: TokenBytes | None = None) -> None:
        self._tokenizer, self._table = tokenizer, table

    def text(self, token: int) -> str:
        """A token alone as text."""
        return str(token) if self._tokenizer is None else self._tokenizer.decode([token], False)

    def completion(self, entries: Sequence[TokenLogprobs], offset: int) -> Mapping[str, Any]:
        """`/v1/completions`: parallel lists. `offset`: characters of the text before the first entry."""
        texts = [self.text(token) for token, _, _ in entries]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [value for _, value, _ in entries],
            "top_logprobs": [
                {self.text(t): v for t, v in (*top, (token, value))} for token, value, top in entries
            ],
            "text_offset": offsets,
        }

    def chat(self, entries: Sequence[TokenLogprobs]) -> Mapping[str, Any]:
        """`/v1/chat/completions`: a list of objects."""
        return {
            "content": [
                {**self._entry(token, value), "top_logprobs": [self._entry(t, v) for t, v in top]}
                for token, value, top in entries
            ]
        }

    def _entry(self, token: int, value: float) -> dict[str, Any]:
        text = self.text(token)
        raw = text.encode() if self._table is None else self._table.piece(token, skip_special=False)
        return {"token": text, "logprob": value, "bytes": list(raw)}
