"""How the tokens of a request are chosen and what ends it: vLLM's names, defaults and bounds.

Plain data, frozen, JSON by `dataclasses.asdict`: it goes from the command or the HTTP server to every rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from emulator.errors import UsageError

MOST_CHOICES = 1024
"""Most parallel answers of one request."""
MOST_LOGPROBS = 20
"""Most alternatives a token is reported with (source: vLLM's `--max-logprobs` default)."""
MOST_STOPS = 64
"""Most stop strings of a request: each is looked for after every token."""
_MOST_SEED = (1 << 63) - 1
_BIAS = 100.0


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens, and when to stop (source: vllm `sampling_params.py`).

    Attributes:
        temperature: 0 is greedy (then top_k, top_p and min_p have no effect).
        top_k: keep the k likeliest tokens; 0 (or -1) keeps all.
        top_p: of those, keep the likeliest whose probabilities first reach this sum; 1 keeps all.
        min_p: drop tokens less likely than this share of the likeliest one; 0 keeps all.
        n: parallel answers. seed: of the sampler; None: given by the engine.
        presence_penalty, frequency_penalty: subtracted for tokens among the outputs, once or by count.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen, prompt included.
        stop: strings that end an answer; they are no part of it unless `include_stop_str_in_output`.
        stop_token_ids: tokens that end an answer. ignore_eos: the end-of-sequence token does not.
        max_tokens: None: as many as fit. min_tokens: before that many no end but max_tokens.
        logprobs: alternatives reported per token; 0: the chosen one only; None: nothing.
        logit_bias: (token, value in [-100, 100]) pairs, or a mapping.
        skip_special_tokens: leave them out of the text.
        eos_token_ids: set by the engine from the checkpoint, not by the caller.

    Raises:
        UsageError: a value out of its bounds, named with the bound.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    n: int = 1
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._normalise()
        self._check_types()
        _check_range("temperature", self.temperature, 0)
        _check_range("top_k", self.top_k, -1, note=" (0 keeps all)")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p must be in (0, 1], got {self.top_p}")
        _check_range("min_p", self.min_p, 0, 1)
        _check_range("n", self.n, 1, MOST_CHOICES)
        _check_range("presence_penalty", self.presence_penalty, -2, 2)
        _check_range("frequency_penalty", self.frequency_penalty, -2, 2)
        if not 0 < self.repetition_penalty < math.inf:
            raise UsageError(f"repetition_penalty must be above 0 and finite, got {self.repetition_penalty}")
        self._check_ends()
        if self.logprobs is not None:
            _check_range("logprobs", self.logprobs, -1, MOST_LOGPROBS)
        if self.n > 1 and self.temperature == 0:
            raise UsageError(f"n must be 1 when sampling greedily (temperature 0), got {self.n}")

    def _normalise(self) -> None:
        """Lists become tuples, one string a tuple of one, a mapping of biases pairs in order of token."""

        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        stop: Any = self.stop
        put("stop", (stop,) if isinstance(stop, str) else tuple(stop or ()))
        for name in ("stop_token_ids", "eos_token_ids"):
            put(name, tuple(dict.fromkeys(getattr(self, name) or ())))
        bias: Any = self.logit_bias
        put(
            "logit_bias",
            tuple(sorted(_bias_pairs(bias.items() if isinstance(bias, Mapping) else bias or ()))),
        )
        if self.top_k == -1:
            put("top_k", 0)

    def _check_types(self) -> None:
        for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"):
            _check_number(name, getattr(self, name))
        _check_number("repetition_penalty", self.repetition_penalty)
        for name in ("top_k", "n", "min_tokens", "seed", "max_tokens", "logprobs"):
            value = getattr(self, name)
            optional = name in ("seed", "max_tokens", "logprobs") and value is None
            if not optional and not _is_int(value):
                raise UsageError(f"{name} must be a whole number, got {value!r}")
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} must be true or false, got {getattr(self, name)!r}")

    def _check_ends(self) -> None:
        if len(self.stop) > MOST_STOPS:
            raise UsageError(f"stop must be at most {MOST_STOPS} strings, got {len(self.stop)}")
        if any(not isinstance(s, str) or not s for s in self.stop):
            raise UsageError(f"stop must be strings that are not empty, got {list(self.stop)!r}")
        if any(not _is_int(t) or t < 0 for t in self.stop_token_ids):
            raise UsageError(
                f"stop_token_ids must be token ids of at least 0, got {list(self.stop_token_ids)!r}"
            )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max_tokens must be at least 1, got {self.max_tokens}")
        _check_range("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UsageError(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}"
            )
        if self.seed is not None and not -_MOST_SEED - 1 <= self.seed <= _MOST_SEED:
            raise UsageError(f"seed must fit into 64 bits, got {self.seed}")

    def changes_logits(self, num_outputs: int) -> bool:
        """Whether the logits that follow so many outputs are changed before anything is chosen."""
        penalised = self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1
        return bool(penalised or self.logit_bias or num_outputs < self.min_tokens)


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} must be a number, got {value!r}")


def _check_range(name: str, value: float, least: float, most: float = math.inf, note: str = "") -> None:
    if math.isinf(value) or not least <= value <= most:
        bounds = f"at least {least}{note}" if most == math.inf else f"in [{least}, {most}]"
        raise UsageError(f"{name} must be finite and {bounds}, got {value}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bias_pairs(pairs: Iterable[Any]) -> Iterable[tuple[int, float]]:
    for pair in pairs:
        try:
            token, value = pair
            token, value = int(token), float(value)
        except (TypeError, ValueError):
            raise UsageError(f"logit_bias must map token ids to numbers, got {pair!r}") from None
        if token < 0 or not -_BIAS <= value <= _BIAS:
            raise UsageError(f"logit_bias must map token ids to values in [-100, 100], got {token}: {value}")
        yield token, value


GREEDY = SamplingParams(temperature=0.0)
"""The likeliest token always."""
