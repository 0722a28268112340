"""`LLM(model, ranks=…).generate(prompts, SamplingParams(…))`: a pod for a Python program, with vLLM's names.

All requests of a call arrive at one virtual instant, when the pod has nothing else to do. So a program that
makes the same calls gets the same tokens at the same virtual times.
"""

from __future__ import annotations

import os
import select
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from emulator.errors import SuperpodError, UsageError
from launch import paths
from launch.open_job import OpenOptions, open_plan
from launch.pod import OpenPod, prepare
from serving.api.answers import Answer, answers_of
from serving.api.detokenizer import IdText
from serving.api.errors import ApiError
from serving.api.intake import Asked, Intake
from serving.api.settings import ServerSettings
from serving.api.tokenizer import GenerationDefaults, Tokenizer, load_tokenizer
from serving.api.vocabulary import token_bytes
from serving.feed import Feed, FeedRequest
from serving.model.sampling_params import SamplingParams
from serving.outputs import OutputEvent, OutputReader, TokenLogprobs

_LOOK_S, _IDLE_LOOK_S = 1.0, 0.001
Prompt = str | Sequence[int] | Mapping[str, Any]


@dataclass(frozen=True)
class CompletionOutput:
    """One answer. finish_reason: "stop" or "length"; stop_reason: the stop token or string, None for end of
    sequence. token_times_ps: virtual time of each token."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[TokenLogprobs] | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_times_ps: list[int]


@dataclass(frozen=True)
class RequestOutput:
    """A prompt and its answers. arrival_ps: virtual time at which it reached the engine."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    arrival_ps: int
    num_cached_tokens: int
    finished: bool = True


@dataclass
class _Wanted:
    """One prompt under way."""

    text: str | None
    asked: Asked
    answers: list[Answer] = field(default_factory=list)


class LLM:
    """A model served by a pod of `ranks` emulated dies.

    Args:
        model: checkpoint directory.
        ranks: NPU dies.
        progress: show how the ranks start.
        options: see `launch.open_job.OpenOptions` (priced_as, profile, overrides, seed, max_num_seqs,
            max_num_batched_tokens, max_model_len, enable_prefix_caching, memory_check).

    Raises:
        UsageError: what `superpod serve` would refuse.
    """

    def __init__(self, model: str | Path, ranks: int = 1, *, progress: bool = False, **options: Any) -> None:
        try:
            chosen = OpenOptions(**options)
        except TypeError as error:
            raise UsageError(f"LLM: {str(error).partition(') ')[2] or error}") from None
        plan, config, length = open_plan(Path(model), ranks, chosen)
        path = str(Path(model).resolve())
        self._settings = ServerSettings(
            path, (str(model),), ranks, length, config.vocab_size, seed=chosen.seed
        )
        self._tokenizer = load_tokenizer(path)
        self._intake = Intake(self._settings, self._tokenizer, GenerationDefaults.read(path))
        self._own = paths.RunDirectory()
        prepare(plan, self._own.path, progress)
        if self._tokenizer is not None:
            token_bytes(self._tokenizer, config.vocab_size).write(self._own.path)
        self._feed, self._outputs = Feed.create(self._own.path), OutputReader.bind(self._own.path)
        self._pod = OpenPod(self._own.path)
        self._next_id = 0
        self._closing = weakref.finalize(self, _close, self._feed, self._pod, self._own)

    def get_tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None: it takes and gives token ids."""
        return self._tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts: texts, lists of token ids, or {"prompt": …} / {"prompt_token_ids": …}.

        Returns:
            one output per prompt, in their order.

        Raises:
            UsageError: a prompt or a parameter that cannot be served; nothing is served then.
            SuperpodError: the pod has ended.
        """
        given = _prompt_list(prompts)
        params = [self._params(p) for p in _params_list(sampling_params, len(given))]
        try:
            wanted = [self._wanted(prompt, p) for prompt, p in zip(given, params, strict=True)]
        except ApiError as error:
            raise UsageError(error.message) from None
        by_id = self._submit(wanted)
        while by_id:
            for event in self._events():
                self._take(by_id, event)
        return [_output(i, each) for i, each in enumerate(wanted)]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer a conversation by the model's chat template. Raises UsageError: it has none."""
        if self._tokenizer is None:
            raise UsageError(f"{self._settings.model_dir} has no tokenizer: use generate with token ids")
        text = self._tokenizer.apply_chat_template(messages, **template_options)
        return self.generate([self._tokenizer.encode(text, add_special_tokens=False)], sampling_params)

    def close(self) -> None:
        """End the pod and wait for it. Raises SuperpodError: its ranks did not end well."""
        if self._closing.alive:
            self._closing()
            self._pod.wait()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _params(self, params: SamplingParams | None) -> SamplingParams:
        return self._intake.completed(params)

    def _wanted(self, prompt: Prompt, params: SamplingParams) -> _Wanted:
        if isinstance(prompt, Mapping):
            given = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt["prompt"]
        else:
            given = prompt
        text = given if isinstance(given, str) else None
        ids = list(given) if text is None else self._intake.encode(text, True)
        wanted = _Wanted(text, self._intake.asked([ids], params))
        wanted.answers = answers_of(wanted.asked, self._tokenizer or IdText())
        return wanted

    def _submit(self, wanted: Sequence[_Wanted]) -> dict[int, Answer]:
        """Put everything in at one virtual instant."""
        if not self._closing.alive:
            raise UsageError("this LLM has been closed")
        by_id: dict[int, Answer] = {}
        requests: list[FeedRequest] = []
        for each in wanted:
            first = self._next_id
            for make, answer in zip(each.asked.make, each.answers, strict=True):
                requests.append(make(first + answer.index))
                by_id[first + answer.index] = answer
            self._next_id = first + len(each.answers)
        self._await_idle()
        self._feed.add_all(requests)
        return by_id

    def _await_idle(self) -> None:
        """Wait until the pod stands still. Raises SuperpodError: it has ended."""
        while not self._feed.idle:
            if not self._pod.running:
                self._ended()
            time.sleep(_IDLE_LOOK_S)

    def _ended(self) -> NoReturn:
        self._pod.wait()
        raise SuperpodError("the ranks have ended")

    def _events(self) -> list[OutputEvent]:
        """The next events. Raises SuperpodError: none will come, since the ranks have ended."""
        while True:
            select.select([self._outputs.fileno()], [], [], _LOOK_S)
            found = [event for event in self._outputs.read() if isinstance(event, OutputEvent)]
            if found:
                return found
            if not self._pod.running:
                self._ended()

    def _take(self, by_id: dict[int, Answer], event: OutputEvent) -> None:
        answer = by_id.get(event.request_id)
        if answer is None:
            return
        if event.finish in ("error", "abort"):
            raise SuperpodError(f"request {event.request_id}: {event.error or event.finish}")
        answer.add(event)
        if event.finish is not None:
            del by_id[event.request_id]


def _close(feed: Feed, pod: OpenPod, own: paths.RunDirectory) -> None:
    """End a pod in order, or at once if it does not."""
    feed.close()
    try:
        pod.process.wait(_CLOSE_S)
    except Exception:
        pod.kill()
    own.remove()
    os.close(own.lock_fd)


_CLOSE_S = 120.0


def _prompt_list(prompts: Any) -> list[Prompt]:
    """One prompt becomes a list of one. Raises UsageError: no prompts, or no prompts at all."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    given = list(prompts)
    if given and all(isinstance(p, int) for p in given):
        return [given]
    if not given or not all(isinstance(p, str | Mapping | Sequence) for p in given):
        raise UsageError("prompts must be texts, lists of token ids, or mappings with prompt_token_ids")
    return given


def _params_list(params: Any, count: int) -> list[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    given = list(params)
    if len(given) != count:
        raise UsageError(f"{len(given)} SamplingParams for {count} prompts: give one, or one for each")
    return given


def _output(number: int, wanted: _Wanted) -> RequestOutput:
    first = wanted.answers[0]
    return RequestOutput(
        str(number),
        wanted.text,
        wanted.asked.prompts[0],
        [_completion(answer, wanted.asked.params.logprobs is not None) for answer in wanted.answers],
        first.arrival_ps,
        first.cached_tokens,
    )


def _completion(answer: Answer, with_logprobs: bool) -> CompletionOutput:
    return CompletionOutput(
        answer.index,
        answer.text,
        answer.tokens,
        sum(value for _, value, _ in answer.logprobs) if with_logprobs else None,
        answer.logprobs if with_logprobs else None,
        answer.finish,
        answer.stop_reason,
        answer.times_ps,
    )
