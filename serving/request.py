"""One request: its prompt, its counters and the virtual times at which its tokens came out.

Two lengths, never mixed up: *functional* tokens are computed, *priced* tokens are charged. Prompt token i
stands for priced tokens i*S up to (i+1)*S, S being the token scale; a generated token is one of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RequestSpec:
    """What is asked for; the same on every rank.

    prompt: int64[ceil(priced_prompt / scale)] functional token ids. `max_output` tokens are generated
    (end-of-sequence tokens are ignored, as vLLM's `--ignore-eos` does); `truncated` says that the trace
    asked for more. `seed` feeds the sampler of this request.
    """

    request_id: int
    arrival_ps: int
    prompt: NDArray[np.int64]
    priced_prompt: int
    scale: int
    max_output: int
    truncated: bool
    seed: int

    @property
    def prompt_tokens(self) -> int:
        """Functional prompt tokens."""
        return len(self.prompt)

    @property
    def total_tokens(self) -> int:
        """Functional tokens whose KV is held at the end (the last output is never fed back)."""
        return self.prompt_tokens + self.max_output - 1

    @property
    def priced_total(self) -> int:
        """Priced tokens whose KV is held at the end."""
        return self.priced_prompt + self.max_output - 1

    def priced_position(self, position: int) -> int:
        """Priced tokens that precede functional position `position`."""
        if position <= self.prompt_tokens:
            return min(position * self.scale, self.priced_prompt)
        return self.priced_prompt + position - self.prompt_tokens


@dataclass
class Request:
    """A request being served on one rank.

    `num_computed` counts the functional tokens whose KV is in the cache. `token_times_ps[i]` is when output
    token i came out. A request ends exactly once: `finish` for success, `fail` with a reason. `replayed` of
    its outputs were given by another rank, which is gone: they are fed like prompt tokens, and must come out
    again as they are.
    """

    spec: RequestSpec
    num_computed: int = 0
    outputs: list[int] = field(default_factory=list)
    token_times_ps: list[int] = field(default_factory=list)
    error: str | None = None
    num_ends: int = 0
    replayed: int = 0

    @property
    def known_tokens(self) -> int:
        """Functional tokens that can be fed at once: the prompt, and what is replayed."""
        return self.spec.prompt_tokens + self.replayed

    @property
    def in_prefill(self) -> bool:
        return self.num_computed < self.known_tokens

    @property
    def is_done(self) -> bool:
        return self.num_ends > 0

    @property
    def outstanding(self) -> int:
        """Priced tokens still to be computed, the last output not counted (nobody feeds it back)."""
        return self.spec.priced_total - self.spec.priced_position(self.num_computed)

    def input_tokens(self, count: int) -> NDArray[np.int64]:
        """The next `count` tokens to feed: int64[count]."""
        start, end = self.num_computed, self.num_computed + count
        prompt = self.spec.prompt[start:end]
        if len(prompt) == count:
            return prompt
        first = max(0, start - self.spec.prompt_tokens)
        outputs = np.asarray(self.outputs[first : end - self.spec.prompt_tokens], dtype=np.int64)
        return np.concatenate([prompt, outputs]) if len(prompt) else outputs

    def append_output(self, token: int, time_ps: int) -> None:
        """Record an output token; the last one asked for ends the request."""
        self.outputs.append(token)
        self.token_times_ps.append(time_ps)
        if len(self.outputs) == self.spec.max_output:
            self.num_ends += 1

    def fail(self, reason: str) -> None:
        self.error = reason
        self.num_ends += 1
