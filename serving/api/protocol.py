"""OpenAI's request bodies with vLLM's additions, checked field by field; whatever is wrong is one 400.

A field we do not know is refused by name, and so is one we know and do not support: nothing is ignored in
silence. Sources: OpenAI API reference (completions, chat); vllm `entrypoints/openai/protocol.py`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from emulator.errors import UsageError
from serving.api.errors import bad_request
from serving.api.tokenizer import GenerationDefaults
from serving.model.sampling_params import MOST_LOGPROBS, SamplingParams

MOST_PROMPTS = 1024
MOST_BODY_BYTES = 32 << 20
_UNSUPPORTED = {
    "tools": "tools",
    "tool_choice": "tools",
    "functions": "tools",
    "function_call": "tools",
    "parallel_tool_calls": "tools",
    "best_of": "best_of",
    "suffix": "suffix",
    "echo": "echo",
    "prompt_logprobs": "prompt_logprobs",
    "guided_json": "guided decoding",
    "guided_regex": "guided decoding",
    "guided_choice": "guided decoding",
    "guided_grammar": "guided decoding",
    "structured_outputs": "structured outputs",
    "use_beam_search": "beam search",
    "modalities": "modalities",
    "audio": "audio",
    "prediction": "predicted outputs",
    "reasoning_effort": "reasoning effort",
    "truncate_prompt_tokens": "truncation of prompts",
    "bad_words": "bad_words",
    "allowed_token_ids": "allowed_token_ids",
}
"""Fields that ask for what this server does not do. One that asks for nothing (null, false, "none", 0, 1 for
best_of, empty) is let pass."""
_NOTHING: tuple[Any, ...] = (None, False, 0, "none", "auto", "", [], {})
_Model = TypeVar("_Model", bound="Body")


class StreamOptions(BaseModel):
    """include_usage: a last chunk with the usage; continuous_usage_stats: usage in every chunk."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Body(BaseModel):
    """What both kinds of completion have in common."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    max_tokens: int | None = None
    min_tokens: int | None = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = False
    include_stop_str_in_output: bool | None = False
    skip_special_tokens: bool | None = True
    spaces_between_special_tokens: bool | None = True
    logit_bias: dict[str, float] | None = None
    priority: int | None = 0
    return_token_ids: bool | None = False
    add_special_tokens: bool | None = None
    response_format: dict[str, Any] | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    request_id: str | None = None

    def sampling(
        self, defaults: GenerationDefaults, logprobs: int | None, max_tokens: int | None
    ) -> SamplingParams:
        """The engine's parameters: what is not given comes from the checkpoint, then from vLLM's defaults.

        Raises:
            ApiError: a value out of its bounds.
        """
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        try:
            return SamplingParams(
                **{**defaults.sampling, **given},
                n=1 if self.n is None else self.n,
                seed=self.seed,
                presence_penalty=self.presence_penalty or 0.0,
                frequency_penalty=self.frequency_penalty or 0.0,
                stop=self.stop,  # type: ignore[arg-type]
                stop_token_ids=self.stop_token_ids,  # type: ignore[arg-type]
                ignore_eos=bool(self.ignore_eos),
                max_tokens=max_tokens,
                min_tokens=self.min_tokens or 0,
                logprobs=logprobs,
                logit_bias=self.logit_bias,  # type: ignore[arg-type]
                include_stop_str_in_output=bool(self.include_stop_str_in_output),
                skip_special_tokens=self.skip_special_tokens is not False,
                eos_token_ids=defaults.eos_token_ids,
            )
        except UsageError as error:
            message = str(error)
            raise bad_request(message, param=message.split()[0]) from None


class CompletionBody(Body):
    """`/v1/completions`: prompt is a text, several, token ids, or several lists of them."""

    prompt: StrictStr | list[StrictInt] | list[StrictStr] | list[list[StrictInt]]
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None

    def prompts(self) -> list[str | list[int]]:
        """Each prompt by itself, at least one. Raises ApiError: none, or too many."""
        prompt: Any = self.prompt
        many = isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int))
        found: list[str | list[int]] = list(prompt) if many else [prompt]
        if not found or any(len(p) == 0 and isinstance(p, list) for p in found):
            raise bad_request("prompt must not be empty", param="prompt")
        if len(found) > MOST_PROMPTS:
            raise bad_request(f"at most {MOST_PROMPTS} prompts at once, got {len(found)}", param="prompt")
        return found


class TextPart(BaseModel):
    """A part of a message's content; only text is known."""

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One message. Other fields go to the chat template as they are."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[TextPart] | None = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it: the content is one text."""
        fields = self.model_dump(exclude_none=True)
        if isinstance(self.content, list):
            fields["content"] = "\n".join(part.text for part in self.content)
        return fields


class ChatBody(Body):
    """`/v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives per token; None: no log-probabilities. Raises ApiError: top_logprobs alone."""
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs needs logprobs to be true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeBody(BaseModel):
    """`/tokenize`: a prompt, or messages."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


class DetokenizeBody(BaseModel):
    """`/detokenize`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0)]]


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises ApiError: not UTF-8, not JSON, not an object, NaN or infinity."""
    if len(raw) > MOST_BODY_BYTES:
        raise bad_request(f"the body must be at most {MOST_BODY_BYTES} bytes, got {len(raw)}")
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_constant=_no_constant)
        text.encode("utf-8")
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # half of a surrogate pair is no text
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not UTF-8: byte {error.start}") from None
    except UnicodeEncodeError:
        raise bad_request("the body has half of a surrogate pair in a string") from None
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None
    except ValueError as error:
        raise bad_request(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object")
    return value


def parse_body(kind: type[_Model], fields: dict[str, Any]) -> _Model:
    """A checked completion request. Raises ApiError naming the first field at fault."""
    fields = dict(fields)
    for name, what in _UNSUPPORTED.items():
        value = fields.pop(name, None)
        if not (value in _NOTHING or (name == "best_of" and value == 1)):
            raise bad_request(f"{what} is not supported: leave out {name}", param=name)
    body = validated(kind, fields)
    wanted = (body.response_format or {}).get("type", "text")
    if wanted != "text":
        raise bad_request(f"response_format {wanted!r} is not supported: only text", param="response_format")
    return body


_Any = TypeVar("_Any", bound=BaseModel)


def validated(kind: type[_Any], fields: dict[str, Any]) -> _Any:
    """Fields as a model. Raises ApiError naming the first one at fault."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"] if not _is_branch(part))
        if first["type"] == "extra_forbidden":
            raise bad_request(f"{where} is not a parameter of this request", param=where) from None
        got = "" if first["type"] == "missing" else f", got {_short(first['input'])}"
        raise bad_request(f"{where}: {first['msg']}{got}", param=where or None) from None


def _is_branch(part: int | str) -> bool:
    """pydantic names the alternative of a union it has tried; that is of no use to a client."""
    return isinstance(part, str) and ("[" in part or part in {"str", "int", "constrained-int"})


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
