"""Plans from files: TOML or JSON, with the line of whatever is refused."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from emulator.errors import UsageError
from emulator.faults.names import nearest
from emulator.faults.plan import Fault, FaultPlan


def read_plan(path: str | Path) -> FaultPlan:
    """Read a plan. Raises UsageError: no such file, no TOML/JSON, or anything in it that is refused."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"fault plan {path}: cannot be read: {error}") from None
    return parse_plan(text, str(path), is_json=path.suffix == ".json")


def parse_plan(text: str, name: str = "fault plan", is_json: bool = False) -> FaultPlan:
    """Read a plan's text; `name` is what errors call it. Raises UsageError, with the line where it can."""
    try:
        values = json.loads(text) if is_json else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{name}: not valid {'JSON' if is_json else 'TOML'}: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{name}: a table with seed and [[fault]] is needed")
    for key in values:
        if key not in ("seed", "fault"):
            line = _line(text, rf'^\s*\[*"?{re.escape(key)}"?')
            near = nearest(key, ("seed", "fault"))
            raise UsageError(f"{name}:{line}: unknown field {key!r}; nearest: {near}")
    seed, faults = values.get("seed", 0), values.get("fault", [])
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"{name}:{_line(text, 'seed')}: seed must be a whole number, got {seed!r}")
    if not isinstance(faults, list):
        raise UsageError(f"{name}:{_line(text, 'fault')}: write [[fault]], a list of faults")
    starts = _starts(text, is_json)
    made = [make_fault(f, name, text, starts[i] if i < len(starts) else 0) for i, f in enumerate(faults)]
    places = [_places(fault, name, text, start) for fault, start in zip(made, starts, strict=False)]
    return FaultPlan(made, seed, places)


def make_fault(values: Any, name: str, text: str = "", start: int = 0) -> Fault:
    """Make one fault. Raises UsageError: name, line (with `text`, in which it begins at `start`), what."""
    if not isinstance(values, dict):
        raise UsageError(f"{name}: a fault is a table of fields, got {values!r}")
    try:
        return Fault(**values)
    except ValidationError as error:
        first = error.errors()[0]
        message = str(first["msg"]).removeprefix("Value error, ")
        if first["type"] == "missing":
            message = f"the field {first['loc'][-1]!r} is missing"
        elif first["type"] in ("int_type", "int_parsing") and first["loc"][0] == "rank":
            message = f'rank: a number or "random", got {values["rank"]!r}'
        path = [str(part) for part in first["loc"] if isinstance(part, str)]
        field = next((part for part in path if part in values), None)
        quoted = re.findall(r"'([^']+)'", message)
        named = [word for word in re.findall(r"\w+", message) if word in values and word != "kind"]
        line = _line_in(text, start, [*quoted[:1], *([field] if field else []), *named])
        said = message if not field or field in message else f"{field}: {message}"
        raise UsageError(f"{name}{f':{line}' if text else ''}: {said}") from None


def _places(fault: Fault, name: str, text: str, start: int) -> dict[str, str]:
    fields = fault.model_dump(exclude_none=True)
    return {field: f"{name}:{_line_in(text, start, [field] if field else [])}" for field in ("", *fields)}


def _starts(text: str, is_json: bool) -> list[int]:
    """Offsets at which the faults begin."""
    if not is_json:
        return [match.start() for match in re.finditer(r"^\s*\[\[\s*fault\s*\]\]", text, re.M)]
    match = re.search(r'"fault"\s*:\s*\[', text)
    starts, decoder, at = [], json.JSONDecoder(), match.end() if match else len(text)
    while found := re.compile(r"[\s,]*(?=\{)").match(text, at):
        starts.append(found.end())
        _, at = decoder.raw_decode(text, found.end())
    return starts


def _line_in(text: str, start: int, words: list[str]) -> int:
    """Line of the first of `words` that stands after `start`, else the line of `start` itself."""
    for word in words:
        if match := re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])").search(text, start):
            return text.count("\n", 0, match.start()) + 1
    begin = start + len(text[start:]) - len(text[start:].lstrip())
    return text.count("\n", 0, begin) + 1


def _line(text: str, pattern: str) -> int:
    match = re.search(pattern, text, re.M)
    return text.count("\n", 0, match.end()) + 1 if match else 1
