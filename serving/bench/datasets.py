"""What a benchmark asks for: prompts with lengths, and arrivals where the data has them.

`random` (vLLM's lengths with a range ratio), traces of Mooncake and Azure (contents from seed and hash ids,
as `superpod replay` makes them: equal ids, equal tokens), and ShareGPT conversations (source and filter: vllm
`benchmarks/datasets.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emulator.errors import UsageError
from serving.traces import TraceRequest, read_trace
from serving.workload import WorkloadOptions, make_requests

_MOST_TOKENS = 1 << 20
_MIN_TOKENS, _MAX_PROMPT, _MAX_TOTAL = 4, 1024, 2048
"""ShareGPT: shorter prompts and answers, and longer ones, are left out (source: `is_valid_sequence`)."""


@dataclass(frozen=True)
class Ask:
    """One request: a prompt as text or token ids, its length, the output tokens asked for. arrival_ps: None
    where the data has no arrivals."""

    prompt: str | list[int]
    prompt_len: int
    output_len: int
    arrival_ps: int | None = None


def random_asks(
    count: int, input_len: int, output_len: int, range_ratio: float, vocab: int, seed: int
) -> list[Ask]:
    """Random tokens; lengths even in [(1 - ratio) len, (1 + ratio) len]. Raises UsageError: lengths below 1,
    or a ratio outside [0, 1)."""
    if not (1 <= input_len <= _MOST_TOKENS and 1 <= output_len <= _MOST_TOKENS):
        raise UsageError(
            f"--random-input-len {input_len} and --random-output-len {output_len} must be at least 1, at "
            f"most {_MOST_TOKENS}"
        )
    if not 0 <= range_ratio < 1:
        raise UsageError(f"--random-range-ratio {range_ratio} must be in [0, 1)")
    rng = np.random.default_rng([seed, 0x7264])

    def lengths(mean: int) -> list[int]:
        low, high = max(1, int(mean * (1 - range_ratio))), int(np.ceil(mean * (1 + range_ratio)))
        return [int(n) for n in rng.integers(low, high + 1, count)]

    inputs, outputs = lengths(input_len), lengths(output_len)
    prompts = [[int(t) for t in rng.integers(0, vocab, n)] for n in inputs]
    return [Ask(p, n, o) for p, n, o in zip(prompts, inputs, outputs, strict=True)]


def trace_asks(
    path: Path, count: int | None, vocab: int, seed: int, max_output: int | None, token_scale: int = 1
) -> list[Ask]:
    """Requests of a Mooncake or Azure trace. token_scale: each prompt is so many times shorter. Raises
    UsageError: as `read_trace`."""
    lines: Sequence[TraceRequest] = read_trace(path, count)
    options = WorkloadOptions(vocab, token_scale, max_output=max_output, seed=seed)
    specs = make_requests(lines, options)
    return [Ask(s.prompt.tolist(), s.prompt_tokens, s.max_output, s.arrival_ps) for s in specs]


def sharegpt_asks(
    path: Path, count: int, seed: int, output_len: int | None, count_tokens: Callable[[str], int]
) -> list[Ask]:
    """First turns of ShareGPT conversations, shuffled by the seed. `count_tokens`: of a text. Raises
    UsageError: not such a file, or too few conversations that fit."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        turns = [e["conversations"] for e in entries if len(e["conversations"]) >= 2]
        pairs = [(str(t[0]["value"]), str(t[1]["value"])) for t in turns]
    except OSError as error:
        raise UsageError(f"--dataset-path {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UsageError(f"--dataset-path {path}: not a ShareGPT file ({why})") from None
    asks: list[Ask] = []
    for place in np.random.default_rng([seed, 0x7367]).permutation(len(pairs)).tolist():
        if len(asks) == count:
            break
        prompt, answer = pairs[place]
        length = count_tokens(prompt)
        outputs = output_len or count_tokens(answer)
        long_enough = length >= _MIN_TOKENS and (output_len is not None or outputs >= _MIN_TOKENS)
        if long_enough and length <= _MAX_PROMPT and length + outputs <= _MAX_TOTAL:
            asks.append(Ask(prompt, length, outputs))
    if len(asks) < count:
        raise UsageError(f"--dataset-path {path}: {len(asks)} conversations fit, and {count} are asked for")
    return asks
