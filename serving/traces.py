"""Request traces: two public file formats become one list of requests, or one clear error.

Leaves out what a prompt contains (see `serving.workload`) and every scaling of lengths or arrivals.
Sources: Mooncake `FAST25-release/traces` (JSON lines) and Azure `AzureLLMInferenceTrace` (CSV).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from emulator.errors import UsageError

BLOCK_TOKENS = 512
"""Tokens covered by one hash id in a Mooncake trace (source: its README)."""
PS_PER_MS = 1_000_000_000
PS_PER_S = 1_000_000_000_000
AZURE_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


@dataclass(frozen=True)
class TraceRequest:
    """One line of a trace: when it arrived and how long it is.

    `arrival_ps` counts from the first request read. `hash_ids` names the content of each block of 512
    prompt tokens (equal id, equal content); None where the trace says nothing about content.
    """

    arrival_ps: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] | None


def read_trace(path: str | Path, num_requests: int | None = None) -> list[TraceRequest]:
    """Read the first `num_requests` requests of a trace (all of them for None), in order of arrival.

    The format is told by the first line. Lines after the last request asked for are not read.

    Raises:
        UsageError: no such file, unknown format, a corrupt or missing line (with file and line number).
    """
    if num_requests is not None and num_requests < 1:
        raise UsageError(f"number of requests must be at least 1, not {num_requests}")
    try:
        with open(path, encoding="utf-8") as file:
            requests = _parse(path, file, num_requests)
    except OSError as error:
        raise UsageError(f"trace {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"trace {path} is not text: byte {error.start} is not UTF-8") from error
    first_ps = min(request.arrival_ps for request in requests)
    shifted = [
        TraceRequest(r.arrival_ps - first_ps, r.input_length, r.output_length, r.hash_ids) for r in requests
    ]
    return sorted(shifted, key=lambda request: request.arrival_ps)


def _parse(path: str | Path, file: Iterator[str], num_requests: int | None) -> list[TraceRequest]:
    lines: Iterator[tuple[int, str]] = enumerate(file, start=1)
    _, first = next(lines, (1, ""))
    parse: Callable[[str], TraceRequest]
    if first.lstrip().startswith("{"):
        parse, lines = _mooncake_request, _chain((1, first), lines)
    elif [name.strip() for name in first.split(",")] == AZURE_HEADER:
        parse = _azure_request
    else:
        raise UsageError(
            f"trace {path}, line 1: neither a Mooncake JSON line nor the Azure header "
            f"{','.join(AZURE_HEADER)}"
        )
    requests: list[TraceRequest] = []
    number = 1
    for number, line in islice(lines, num_requests):
        try:
            requests.append(parse(line))
        except ValueError as error:
            raise UsageError(f"trace {path}, line {number}: {error}") from error
    if not requests or (num_requests is not None and len(requests) < num_requests):
        wanted = "one" if num_requests is None else str(num_requests)
        raise UsageError(
            f"trace {path}, line {number + 1}: missing; the file ends after {len(requests)} requests "
            f"but {wanted} are asked for"
        )
    return requests


def _chain(head: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield head
    yield from rest


def _mooncake_request(line: str) -> TraceRequest:
    if not line.strip():
        raise ValueError("empty line")
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    timestamp = _field(fields, "timestamp", minimum=0, kinds=(int, float))
    input_length = int(_field(fields, "input_length", minimum=1))
    output_length = int(_field(fields, "output_length", minimum=1))
    hash_ids = _hash_ids(fields.get("hash_ids"), input_length)
    return TraceRequest(round(timestamp * PS_PER_MS), input_length, output_length, hash_ids)


def _field(fields: dict[str, Any], name: str, minimum: int, kinds: tuple[type, ...] = (int,)) -> int | float:
    if name not in fields:
        raise ValueError(f"field {name!r} is missing")
    value = fields[name]
    is_number = isinstance(value, int | float) and isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not minimum <= value < float("inf"):
        raise ValueError(f"{name} must be a number of at least {minimum}, not {value!r}")
    number: int | float = value
    return number


def _hash_ids(value: object, input_length: int) -> tuple[int, ...]:
    if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
        raise ValueError(f"hash_ids must be a list of integers, not {value!r}")
    num_blocks = -(-input_length // BLOCK_TOKENS)
    if len(value) != num_blocks:
        raise ValueError(f"{input_length} tokens need {num_blocks} hash_ids, found {len(value)}")
    return tuple(value)


def _azure_request(line: str) -> TraceRequest:
    fields = line.strip().split(",")
    if len(fields) != len(AZURE_HEADER):
        raise ValueError(f"expected {len(AZURE_HEADER)} fields, found {len(fields)}: {line.strip()!r}")
    context, generated = (_count(*pair) for pair in zip(AZURE_HEADER[1:], fields[1:], strict=True))
    return TraceRequest(_azure_ps(fields[0]), context, generated, None)


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {text!r}")
    return int(text)


def _azure_ps(text: str) -> int:
    """Picoseconds since 1970 of `2023-11-16 18:15:46.6805900` (an optional `+00:00` is dropped)."""
    whole, _, fraction = text.removesuffix("+00:00").partition(".")
    digits = fraction or "0"
    if not digits.isdecimal() or len(digits) > 12:
        raise ValueError(f"TIMESTAMP {text!r} is not like '2023-11-16 18:15:46.6805900'")
    try:
        moment = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S")
    except ValueError as error:
        raise ValueError(f"TIMESTAMP {text!r} is not like '2023-11-16 18:15:46.6805900'") from error
    seconds = int((moment - datetime(1970, 1, 1)).total_seconds())
    return seconds * PS_PER_S + int(digits.ljust(12, "0"))
