"""From a checked body to requests of the engine: token ids, limits, one request a choice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from emulator.errors import UsageError
from serving.api.errors import ApiError, bad_request
from serving.api.protocol import Body, ChatBody, CompletionBody
from serving.api.settings import ServerSettings
from serving.api.tokenizer import GenerationDefaults, Tokenizer
from serving.feed import FeedRequest
from serving.model.sampling_params import SamplingParams

MOST_REQUESTS = 4096
"""Most answers one HTTP request may ask for: prompts times n."""
DEFAULT_MAX_TOKENS = 16
"""Of `/v1/completions` (source: OpenAI API reference)."""


@dataclass(frozen=True)
class Asked:
    """One HTTP request, ready for the engine: prompt i's choice c is make[i * n + c]."""

    prompts: list[list[int]]
    params: SamplingParams
    max_output: list[int]
    make: Sequence[Callable[[int], FeedRequest]]

    def prompt_of(self, index: int) -> list[int]:
        """The prompt of answer `index`."""
        return self.prompts[index // self.params.n]


class Intake:
    """Reads prompts as this model does.

    Args:
        tokenizer: None: prompts must be token ids.
        defaults: of the checkpoint.
    """

    def __init__(
        self, settings: ServerSettings, tokenizer: Tokenizer | None, defaults: GenerationDefaults
    ) -> None:
        self._settings, self._tokenizer, self._defaults = settings, tokenizer, defaults

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404: no such model here."""
        if name is not None and name not in self._settings.names:
            raise ApiError(
                404,
                f"the model {name!r} does not exist; this server has {self._settings.names[0]!r}",
                param="model",
                code="model_not_found",
            )

    def completion(self, body: CompletionBody, arrival_ps: int | None) -> Asked:
        """Requests of `/v1/completions`. Raises ApiError."""
        special = body.add_special_tokens is not False
        prompts = [p if isinstance(p, list) else self.encode(p, special) for p in body.prompts()]
        limit = body.max_tokens if body.max_tokens is not None else self._default_tokens(DEFAULT_MAX_TOKENS)
        return self._asked(body, prompts, limit, body.logprobs, arrival_ps)

    def chat(self, body: ChatBody, arrival_ps: int | None) -> Asked:
        """The request of `/v1/chat/completions`. Raises ApiError."""
        logprobs = body.num_logprobs
        prompt = self.encode(self.chat_text(body), bool(body.add_special_tokens))
        limit = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        limit = limit if limit is not None else self._default_tokens(None)
        return self._asked(body, [prompt], limit, logprobs, arrival_ps)

    def _default_tokens(self, otherwise: int | None) -> int | None:
        return self._defaults.max_new_tokens or otherwise

    def chat_text(self, body: Any) -> str:
        """The prompt a conversation becomes. Raises ApiError: no template, or it refuses."""
        options = dict(getattr(body, "chat_template_kwargs", None) or {})
        last = getattr(body, "continue_final_message", False)
        options["add_generation_prompt"] = body.add_generation_prompt and not last
        messages = [message.for_template() for message in body.messages]
        try:
            return self.tokenizer.apply_chat_template(messages, **options)
        except UsageError as error:
            raise bad_request(str(error), param="messages") from None

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's. Raises ApiError: it has none."""
        if self._tokenizer is None:
            raise bad_request("this model has no tokenizer: give the prompt as token ids", param="prompt")
        return self._tokenizer

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a text. Raises ApiError: no tokenizer, or a text that is far too long to be read."""
        most = self._settings.max_model_len * _MOST_BYTES_A_TOKEN
        if len(text) > most:
            raise bad_request(
                f"the prompt has {len(text)} characters; this model's context is "
                f"{self._settings.max_model_len} tokens",
                param="prompt",
                code="context_length_exceeded",
            )
        return self.tokenizer.encode(text, add_special_tokens)

    def completed(self, params: SamplingParams | None) -> SamplingParams:
        """Parameters of a Python caller with the checkpoint's EOS tokens; None: its defaults altogether."""
        if params is None:
            sampling: dict[str, Any] = dict(self._defaults.sampling)
            params = SamplingParams(**sampling, max_tokens=self._default_tokens(DEFAULT_MAX_TOKENS))
        return replace(params, eos_token_ids=self._defaults.eos_token_ids)

    def _asked(
        self,
        body: Body,
        prompts: list[list[int]],
        limit: int | None,
        logprobs: int | None,
        arrival_ps: int | None,
    ) -> Asked:
        params = body.sampling(self._defaults, logprobs, limit)
        return self.asked(prompts, params, body.priority or 0, arrival_ps)

    def asked(
        self,
        prompts: list[list[int]],
        params: SamplingParams,
        priority: int = 0,
        arrival_ps: int | None = None,
    ) -> Asked:
        """Requests for prompts of token ids. Raises ApiError: what of them cannot be served."""
        limit = params.max_tokens
        if params.stop and self._tokenizer is None:
            raise bad_request("this model has no tokenizer: stop strings need one", param="stop")
        if len(prompts) * params.n > MOST_REQUESTS:
            raise bad_request(
                f"at most {MOST_REQUESTS} answers at once: {len(prompts)} x n {params.n}", param="n"
            )
        room = [self._room(prompt, limit) for prompt in prompts]
        self._check_ids(params)
        make = [
            partial(self._request, prompt, most, params, choice, priority, arrival_ps)
            for prompt, most in zip(prompts, room, strict=True)
            for choice in range(params.n)
        ]
        return Asked(prompts, params, room, make)

    def _room(self, prompt: Sequence[int], limit: int | None) -> int:
        """Most output tokens of a prompt. Raises ApiError: it is empty, too long, or has unknown ids."""
        vocabulary, context = self._settings.vocab_size, self._settings.max_model_len
        if not prompt:
            raise bad_request("the prompt has no tokens", param="prompt")
        low, high = min(prompt), max(prompt)
        if low < 0 or high >= vocabulary:
            wrong = low if low < 0 else high
            raise bad_request(f"token id {wrong} is out of range: 0 to {vocabulary - 1}", param="prompt")
        left = context - len(prompt)
        if left < (limit or 1):
            raise bad_request(
                f"this model's maximum context length is {context} tokens; {len(prompt)} prompt tokens and "
                f"{limit or 1} output tokens exceed it",
                param="max_tokens" if left > 0 else "prompt",
                code="context_length_exceeded",
            )
        return left if limit is None else limit

    def _check_ids(self, params: SamplingParams) -> None:
        for name, ids in (("stop_token_ids", params.stop_token_ids), ("logit_bias", dict(params.logit_bias))):
            wrong = [i for i in ids if i >= self._settings.vocab_size]
            if wrong:
                most = self._settings.vocab_size - 1
                raise bad_request(f"{name}: token id {wrong[0]} is out of range: 0 to {most}", param=name)

    def _request(
        self,
        prompt: list[int],
        max_output: int,
        params: SamplingParams,
        choice: int,
        priority: int,
        arrival_ps: int | None,
        request_id: int,
    ) -> FeedRequest:
        seed = params.seed if params.seed is not None else _seed(self._settings.seed, request_id - choice)
        return FeedRequest(
            request_id=request_id,
            prompt=prompt,
            max_output=max_output,
            params=params,
            seed=seed,
            choice=choice,
            priority=priority,
            arrival_ps=arrival_ps,
        )


_MOST_BYTES_A_TOKEN = 64
"""A text with more characters than that for each position of the context is not even tokenised."""


def _seed(server: int, first_id: int) -> int:
    """Seed of a request that gives none: the same for all its choices, other for every request."""
    digest = hashlib.sha256(f"{server}:{first_id}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
