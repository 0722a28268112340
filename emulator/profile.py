"""A machine profile: every number the emulation charges, with its unit, source and label.

A profile is a TOML file of inline tables `key = { value, unit, source, label }` in sections. Loading is
strict: a missing key, an unknown one, a wrong unit or label and an absurd value are each a `UsageError` of
one line that names the nearest valid choice. Overrides (`--set ub.latency_inter_us=4`) keep the unit and are
labelled `override`, so a report never passes off a changed number as a published one.
"""

import difflib
import functools
import hashlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from emulator.errors import UsageError
from emulator.profile_keys import PROFILE_KEYS, UNITS, KeySpec

LABELS: Final = ("measured", "published", "derived", "assumed")
OVERRIDE: Final = "override"
PS_PER_S: Final = 10**12

_PS_PER_UNIT: Final = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": PS_PER_S}
_BYTES_PER_UNIT: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_RATE_PER_UNIT: Final = {"GB/s": 10**9, "TFLOPS": 10**12, "TOPS": 10**12}


class Entry(BaseModel):
    """One number of a profile; `label` is one of `LABELS`, or `override`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    value: int | float
    unit: str
    source: str
    label: str
    key: str = ""


class Profile:
    """The numbers of one file, complete and checked; equal hashes mean equal numbers."""

    def __init__(self, name: str, entries: Mapping[str, Entry]) -> None:
        self.name = name
        self._entries = dict(sorted(entries.items()))
        self._scaled_values: dict[str, int] = {}

    def entry(self, key: str) -> Entry:
        """Return value, unit, source and label of `key`. Raises UsageError naming the nearest key."""
        try:
            return self._entries[key]
        except KeyError:
            raise UsageError(f"profile {self.name}: no key {key!r}{nearest(key, self._entries)}") from None

    def value(self, key: str) -> int | float:
        """Return the bare number of `key`, in the entry's own unit."""
        return self.entry(key).value

    def integer(self, key: str) -> int:
        """Return the value of a key that counts things."""
        return int(self.value(key))

    def ps(self, key: str) -> int:
        """Return a time as int picoseconds, rounded half to even from the exact decimal in the file."""
        return self._scaled(key, _PS_PER_UNIT)

    def num_bytes(self, key: str) -> int:
        """Return a size in bytes (1 GB = 1e9 B)."""
        return self._scaled(key, _BYTES_PER_UNIT)

    def per_s(self, key: str) -> int:
        """Return a rate per second: bytes for GB/s, operations for TFLOPS and TOPS. At least 1."""
        return max(1, self._scaled(key, _RATE_PER_UNIT))

    def items(self) -> Iterator[tuple[str, Entry]]:
        """Yield (key, entry) in key order."""
        return iter(self._entries.items())

    def hash(self) -> str:
        """Return the SHA-256 (hex) of all keys, values and units; sources and labels do not count."""
        text = "\n".join(f"{key}={float(e.value)!r} {e.unit}" for key, e in self._entries.items())
        return hashlib.sha256(text.encode()).hexdigest()

    def labels(self) -> dict[str, str]:
        """Return key -> label, for reports."""
        return {key: entry.label for key, entry in self._entries.items()}

    def _scaled(self, key: str, factors: Mapping[str, int]) -> int:
        entry = self.entry(key)
        if entry.unit not in factors:
            raise UsageError(f"profile {self.name}: {key} is in {entry.unit}, not in {' or '.join(factors)}")
        if key not in self._scaled_values:
            # Exact decimals are slow (microseconds) and asked for in every step of every rank.
            self._scaled_values[key] = round(exact(entry.value) * factors[entry.unit])
        return self._scaled_values[key]


def load_profile(
    name_or_path: str | Path = "cloudmatrix384", overrides: Mapping[str, str | float] | None = None
) -> Profile:
    """Load a machine profile by name (from `emulator/profiles`) or from a .toml path, with overrides applied.

    Raises:
        UsageError: no such profile, or anything `load_entries` refuses.
    """
    path = _profile_path(str(name_or_path))
    return load_entries(path, PROFILE_KEYS, overrides or {}, "profile")


def load_entries(
    path: Path, specs: Mapping[str, KeySpec], overrides: Mapping[str, str | float], what: str
) -> Profile:
    """Read one file of labelled numbers and hold it against the list of required keys.

    Args:
        path: the TOML file.
        specs: exactly the keys the file must have.
        overrides: key -> number or its text; the unit stays, the label becomes `override`.
        what: how errors call the file ("profile", "priced model").

    Raises:
        UsageError: unreadable file, TOML error, missing or unknown key, missing or unknown field, wrong
            type, unknown unit or label, value out of range, bad override.
    """
    where = f"{what} {path.name}"
    entries = _read(path, where)
    for key in entries:
        if key not in specs:
            raise UsageError(f"{where}: unknown key {key!r}{nearest(key, specs)}")
    if missing := [key for key in specs if key not in entries]:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UsageError(f"{where}: missing key {missing[0]!r}{more}")
    for key, entry in entries.items():
        check_value(where, key, entry, specs[key])
    for key, given in overrides.items():
        entries[key] = _overridden(where, key, given, entries, specs)
    return Profile(path.stem, entries)


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the choice nearest to `word` ("" only when there are no choices)."""
    known = list(choices)
    # A right last part under a missing or wrong section ("latency_inter_us") is the commonest slip.
    close = [k for k in known if word and k.rpartition(".")[2] == word.rpartition(".")[2]][:1]
    close = close or difflib.get_close_matches(word, known, n=1, cutoff=0.0)
    return f"; did you mean {close[0]!r}?" if close else ""


def exact(value: int | float) -> Fraction:
    """Return the decimal a person wrote (0.1 as 1/10), not its nearest binary fraction."""
    return Fraction(str(value))


def check_value(where: str, key: str, entry: Entry, spec: KeySpec) -> None:
    """Raise UsageError unless unit, kind and range of `entry` are those of `spec`."""
    if entry.unit != spec.unit:
        known = "" if entry.unit in UNITS else "unknown "
        raise UsageError(f"{where}: {key}: {known}unit {entry.unit!r}; it must be {spec.unit!r}")
    if not spec.low <= entry.value <= spec.high:  # nan is never inside
        raise UsageError(
            f"{where}: {key} = {entry.value:.6g} {entry.unit} is absurd; "
            f"it must lie between {spec.low:g} and {spec.high:g} {spec.unit}"
        )
    if spec.integer and entry.value != int(entry.value):
        raise UsageError(f"{where}: {key} = {entry.value} must be a whole number of {spec.unit}")


def _profile_path(name: str) -> Path:
    if name.endswith(".toml") or "/" in name:
        return Path(name)
    folder = Path(str(resources.files("emulator.profiles")))
    known = sorted(p.stem for p in folder.glob("*.toml"))
    if name not in known:
        hint = nearest(name, known) or f"; known profiles: {', '.join(known)}"
        raise UsageError(f"no machine profile {name!r}{hint}")
    return folder / f"{name}.toml"


def _read(path: Path, where: str) -> dict[str, Entry]:
    try:
        return dict(_parsed(path.read_text(encoding="utf-8"), where))
    except OSError as error:
        raise UsageError(f"{where}: cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: not valid TOML: {error}") from error


@functools.lru_cache(maxsize=16)
def _parsed(text: str, where: str) -> tuple[tuple[str, Entry], ...]:
    """The entries of a file's text. Kept, because a process forked for a rank finds it done: parsing takes
    10 ms and 1.5 MB."""
    table = tomllib.loads(text)
    return tuple((key, _entry(where, key, raw)) for key, raw in _flatten(where, table, ""))


def _flatten(where: str, table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (dotted key, entry table). A table that holds a table is a section, any other is an entry."""
    for name, raw in table.items():
        key = f"{prefix}{name}"
        if not isinstance(raw, dict):
            raise UsageError(f"{where}: {key} must be a table {{ value, unit, source, label }}, not {raw!r}")
        if any(isinstance(inner, dict) for inner in raw.values()):
            yield from _flatten(where, raw, f"{key}.")
        else:
            yield key, raw


def _entry(where: str, key: str, raw: dict[str, object]) -> Entry:
    if "key" in raw:
        raise UsageError(f"{where}: {key}: unknown field 'key'; fields are value, unit, source, label")
    try:
        entry = Entry.model_validate({**raw, "key": key})
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            raise UsageError(f"{where}: {key}: unknown field {field!r}{nearest(field, _FIELDS)}") from error
        if first["type"] == "missing":
            raise UsageError(f"{where}: {key}: missing field {field!r}") from error
        raise UsageError(f"{where}: {key}: {field} has the wrong type: {raw[field]!r}") from error
    if not entry.source.strip():
        raise UsageError(f"{where}: {key}: the source is empty")
    if entry.label not in LABELS:
        hint = nearest(entry.label, LABELS) or f"; labels are {', '.join(LABELS)}"
        raise UsageError(f"{where}: {key}: unknown label {entry.label!r}{hint}")
    return entry


_FIELDS: Final = ("value", "unit", "source", "label")


def _overridden(
    where: str, key: str, given: str | float, entries: Mapping[str, Entry], specs: Mapping[str, KeySpec]
) -> Entry:
    if key not in specs:
        raise UsageError(f"--set {key}: {where} has no such key{nearest(key, specs)}")
    entry = Entry(
        value=_number(key, given, specs[key]),
        unit=specs[key].unit,
        source=f"override of {entries[key].value} ({entries[key].label})",
        label=OVERRIDE,
        key=key,
    )
    check_value(f"--set {key}", key, entry, specs[key])
    return entry


def _number(key: str, given: str | float, spec: KeySpec) -> int | float:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise UsageError(f"--set {key}: {given!r} is not a number of {spec.unit}")
    try:
        number = float(given)
    except ValueError:
        raise UsageError(f"--set {key}={given}: not a number of {spec.unit}") from None
    return int(number) if number.is_integer() else number
