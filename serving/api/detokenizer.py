"""Tokens to text as they come: what has been given out never changes, and all of it together is the text.

A token may end inside a character, and some decoders write a token differently at the beginning of a text. So
a piece is what the new token adds to the decoding of a short window, less what may still be half a character
(after vllm `transformers_utils/detokenizer_utils.py`). Stop strings are cut off the text here; that an answer
ends is the engine's decision (`serving.model.stopping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_CONTEXT, _WINDOW = 8, 24
"""Tokens a window begins with (they are given out already), and the most it grows to."""
_HALF, _MOST_HALVES = "\ufffd", 3
"""What bytes that are no character decode to; the most of them at the end that may become one."""


class Decoder(Protocol):
    """What is needed of a tokenizer."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...


class IdText:
    """The text of a model without tokenizer: token ids with blanks between."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(f"{token} " for token in ids)


class Detokenizer:
    """Text of one answer.

    Args:
        decoder: the tokenizer.
        prompt: the tokens before the answer (the last few are enough).
        stop: strings that end it; `include_stop`: they are part of it.
        skip_special: leave special tokens out.
        min_tokens: the first so many tokens complete no stop string.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt: Sequence[int] = (),
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._protected = min_tokens
        self._whole: list[int] = []  # lengths of the window at which all of it had been read
        self._decoder, self._skip = decoder, skip_special
        self._stop, self._include_stop = tuple(stop), include_stop
        self._window = list(prompt[-_CONTEXT:])
        self._base = len(decoder.decode(self._window, skip_special)) if self._window else 0
        self._held = max((len(s) for s in stop), default=1) - 1 if not include_stop else 0
        self.text, self._given, self._ended = "", 0, False
        self.stopped_by: str | None = None

    def add(self, token: int, counts: bool = True) -> str:
        """Take the next token; returns the text that is certain now. `counts` false: a stop token, which
        ends the answer and is no part of its text."""
        if self._ended or not counts:
            return ""
        self._window.append(token)
        self._protected -= 1
        before = len(self.text)
        self.text += self._fresh(final=False)
        if self._protected < 0:
            self._cut(before)
        return self._certain(final=self._ended)

    def finish(self) -> str:
        """The answer has ended; returns the rest of its text."""
        if not self._ended:
            before = len(self.text)
            self.text += self._fresh(final=True)
            if self._protected < 0:
                self._cut(before)
        self._ended = True
        return self._certain(final=True)

    def _fresh(self, final: bool) -> str:
        """What the window says beyond what has been read of it, less what may be half a character."""
        decoded = self._decoder.decode(self._window, self._skip)
        stable = len(decoded) if final else self._stable(decoded)
        piece = decoded[self._base : stable]
        self._base = max(self._base, stable)
        if self._base == len(decoded):
            self._whole.append(len(self._window))
        if len(self._window) > _WINDOW:
            self._shorten(len(decoded) - self._base)
        return piece

    def _shorten(self, unread: int) -> None:
        """Forget what is far behind: up to where a character ended, or anywhere if none has."""
        most = len(self._window) - _CONTEXT
        cut = max((place for place in self._whole if place <= most), default=0)
        if not cut and len(self._window) > 4 * _WINDOW:
            cut = most
        del self._window[:cut]
        self._whole = [place - cut for place in self._whole if place > cut]
        self._base = len(self._decoder.decode(self._window, self._skip)) - unread

    def _cut(self, before: int) -> None:
        """End the text at the first stop string (in order of `stop`) that reaches into what is new."""
        for stop in self._stop:
            found = self.text.find(stop, max(0, before - len(stop) + 1))
            if found >= 0:
                self.text = self.text[: found + len(stop) if self._include_stop else found]
                self.stopped_by, self._ended = stop, True
                return

    def _certain(self, final: bool) -> str:
        """Text not yet given out; the end of it is held back while it may be the beginning of a stop
        string."""
        end = len(self.text) if final else max(self._given, len(self.text) - self._held)
        piece = self.text[self._given : end]
        self._given = max(self._given, end)
        return piece

    def _stable(self, decoded: str) -> int:
        """Characters that further tokens cannot change. (Some decoders spell a whole run of bytes anew while
        its last character is not complete: nothing is certain before more tokens than a character has bytes.)
        """
        halves = len(decoded) - len(decoded.rstrip(_HALF))
        pending = len(self._window) - (self._whole[-1] if self._whole else 0)
        if halves and pending <= _MOST_HALVES:
            return self._base
        return len(decoded) - min(_MOST_HALVES, halves)
