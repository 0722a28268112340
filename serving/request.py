"""One request: its prompt, its counters and the virtual times at which its tokens came out.

Two lengths, never mixed up: *functional* tokens are computed, *priced* tokens are charged. Prompt token i
stands for priced tokens i*S up to (i+1)*S, S being the token scale; a generated token is one of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from serving.model.sampling import SamplingParams


@dataclass(frozen=True)
class RequestSpec:
    """What is asked for; the same on every rank.

    prompt: int64[ceil(priced_prompt / scale)] functional token ids. At most `max_output` tokens are
    generated (end-of-sequence tokens of a trace's requests are ignored, as vLLM's `--ignore-eos` does);
    `truncated` says that the trace asked for more. `seed` feeds the sampler of this request, `choice` tells
    parallel answers to one prompt apart; `params` are its own sampling parameters, None: the job's. A lower
    `priority` is served first. From `abort_ps` on nobody wants the answer any more; None: it is wanted.
    """

    request_id: int
    arrival_ps: int
    prompt: NDArray[np.int64]
    priced_prompt: int
    scale: int
    max_output: int
    truncated: bool
    seed: int
    params: SamplingParams | None = None
    choice: int = 0
    priority: int = 0
    abort_ps: int | None = None

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
    again as they are. Of these, the logits of the first `answered` are not asked for again.

    Attributes:
        finish: why it ended: "length", "stop", "abort" or "error". stop_reason: the token or text that did.
        preemptions: how often its KV was given up and computed again.
        cached: priced tokens of its prompt that were found in the cache when it first ran.
    """

    spec: RequestSpec
    num_computed: int = 0
    outputs: list[int] = field(default_factory=list)
    token_times_ps: list[int] = field(default_factory=list)
    error: str | None = None
    num_ends: int = 0
    replayed: int = 0
    answered: int = 0
    finish: str | None = None
    stop_reason: int | str | None = None
    preemptions: int = 0
    cached: int = 0
    drafts: list[int] = field(default_factory=list)
    """Guesses of the outputs that follow, fed with the last one (`serving.speculation`)."""

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
        known = [*self.outputs, *self.drafts] if self.drafts else self.outputs
        outputs = np.asarray(known[first : end - self.spec.prompt_tokens], dtype=np.int64)
        return np.concatenate([prompt, outputs]) if len(prompt) else outputs

    def all_tokens(self) -> NDArray[np.int64]:
        """The prompt and every output so far: int64."""
        return np.concatenate([self.spec.prompt, np.asarray(self.outputs, dtype=np.int64)])

    def append_output(self, token: int, time_ps: int) -> None:
        """Record an output token; the last one asked for ends the request."""
        self.outputs.append(token)
        self.token_times_ps.append(time_ps)
        if len(self.outputs) == self.spec.max_output:
            self._end("length")

    def stop(self, reason: int | str | None) -> None:
        """End it because its last output said so, even if that was the last one asked for."""
        if not self.is_done:
            self.num_ends += 1
        self.finish, self.stop_reason = "stop", reason

    def fail(self, reason: str) -> None:
        self.error = reason
        self._end("error")

    def abort(self) -> None:
        """End it because nobody wants the answer any more."""
        self._end("abort")

    def mark(self) -> Mark:
        """How far its answer is."""
        return Mark(len(self.outputs), self.error, self.num_ends, self.finish, self.stop_reason)

    def return_to(self, mark: Mark) -> None:
        """Forget what its answer has come to since."""
        del self.outputs[mark.num_outputs :], self.token_times_ps[mark.num_outputs :]
        self.error, self.num_ends = mark.error, mark.num_ends
        self.finish, self.stop_reason = mark.finish, mark.stop_reason

    def _end(self, why: str) -> None:
        self.finish = why
        self.num_ends += 1


class Mark(NamedTuple):
    """How far an answer is: outputs, and how it ended if it has."""

    num_outputs: int
    error: str | None
    num_ends: int
    finish: str | None
    stop_reason: int | str | None
