"""What a run is configured with: one frozen record, read from `SUPERPOD_CONFIG` or from
`emulator.init(**cfg)`.

The launcher writes the same JSON object for every rank. Unknown keys and values of the wrong type are
errors; a missing key takes the default below. Left out on purpose: anything a result may not depend on
has no key here, except where files are written and how long the host may take.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, NamedTuple

from emulator.errors import UsageError

ENVIRONMENT_KEY = "SUPERPOD_CONFIG"
FAULTS_KEY = "SUPERPOD_FAULTS"
"""Path of a fault plan, where the configuration names none."""
JITTER_KEY = "SUPERPOD_JITTER"
"""For tests: "probability,max_us,seed" puts random host sleeps into engine calls; no result may notice."""
MIB = 1 << 20
MAX_SEED = (1 << 64) - 1
TRANSPORTS = ("shared", "rma")
ENGINES = ("auto", "c", "python")
DELIVERIES = ("natural", "adversarial")
MOVERS = ("mte", "dma")
CLOCKS = ("virtual", "wall")
COMPUTES = ("priced", "measured")
CLOCK_KEYS = {
    "clock": "SUPERPOD_CLOCK",
    "dilation": "SUPERPOD_DILATION",
    "spin_below_us": "SUPERPOD_SPIN_BELOW_US",
    "grace_s": "SUPERPOD_GRACE_S",
    "compute": "SUPERPOD_COMPUTE",
    "compute_factor": "SUPERPOD_COMPUTE_FACTOR",
}
"""Variables that say what the clock is, where the configuration does not."""
MPI_PLANES = ("ub", "rdma", "vpc")


class Limits(NamedTuple):
    """What a number may be: `low` (not itself if `above`) to `high`, and how to say it."""

    low: float
    high: float
    above: bool
    words: str


_POSITIVE = Limits(0.0, 1e9, True, "a number above 0, at most 1e9")
_DURATION = Limits(0.0, 1e6, False, "a number from 0 to 1e6")
_CLOCK_CHOICES = {"clock": CLOCKS, "compute": COMPUTES}
CLOCK_LIMITS = {
    "dilation": _POSITIVE,
    "compute_factor": _POSITIVE,
    "grace_s": _DURATION,
    "spin_below_us": _DURATION,
}


@dataclass(frozen=True)
class RunConfig:
    """The configuration of one run, equal on all ranks.

    Attributes:
        profile: machine profile, a name in `emulator/profiles` or a path.
        set: overrides of profile values, key → value.
        transport: "shared" (stores into the shared window) or "rma" (MPI Put/Get/Flush).
        engine: "auto" (compiled core where there is one), "c" or "python".
        seed: seed of everything that draws numbers.
        heap_bytes: application heap of a rank (windows live here), bytes.
        managed_bytes: exchange blocks of a rank, bytes.
        staging_bytes: staging pool of a rank, bytes; what does not fit spills to a file.
        words_per_rank: 64-bit signal and atomic words of a rank.
        channels: exchange channels; channel 0 is the barrier's.
        log_entries: entries an apply log holds, a power of two.
        inbox_entries: records (completions, messages, notes) a rank may leave untaken.
        lookahead: let ranks run ahead by the least latency.
        wall_deadline_s: host seconds without any engine entry after which the run ends with a report.
        keep_going: survivors go on when a rank dies.
        delivery: "natural" (the fabric's own order) or "adversarial" (any order and delay that the order
            flags permit, drawn from the seed).
        engine_default: what moves a window's bytes where a call does not say, "mte" or "dma".
        mpi_over: plane that carries messages, "ub", "rdma" or "vpc".
        check_races: record what each rank touches and report races at the end; needs `trace`.
        trace: directory for one record file per rank, or None.
        report: path of the result JSON the lowest living rank writes at the end, or None.
        faults: path of a fault plan (TOML or JSON), or None; the variable SUPERPOD_FAULTS gives it too.
        clock: "virtual", or "wall": delays are really slept.
        dilation: wall clock: host seconds one emulated second takes.
        spin_below_us: wall clock: spin for the last so many host µs of a sleep.
        grace_s: wall clock: host seconds a rank may be late before the others go on without it.
        compute: "priced", or "measured": the thread's real time times `compute_factor` (wall clock only).
        compute_factor: emulated seconds per second of real compute.
        job: name of the run in `/dev/shm` file names; empty: drawn at start.
    """

    profile: str = "cloudmatrix384"
    set: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    transport: str = "shared"
    engine: str = "auto"
    seed: int = 0
    heap_bytes: int = 16 * MIB
    managed_bytes: int = 4 * MIB
    staging_bytes: int = 2 * MIB
    words_per_rank: int = 1024
    channels: int = 24
    log_entries: int = 16384
    inbox_entries: int = 4096
    lookahead: bool = True
    wall_deadline_s: float = 600.0
    keep_going: bool = False
    delivery: str = "natural"
    engine_default: str = "mte"
    mpi_over: str = "ub"
    check_races: bool = False
    trace: str | None = None
    report: str | None = None
    faults: str | None = None
    clock: str = "virtual"
    dilation: float = 1.0
    spin_below_us: float = 0.0
    grace_s: float = 2.0
    compute: str = "priced"
    compute_factor: float = 1.0
    job: str = ""

    def __post_init__(self) -> None:
        """Check ranges. Raises: UsageError."""
        _choice("transport", self.transport, TRANSPORTS)
        _choice("engine", self.engine, ENGINES)
        _choice("delivery", self.delivery, DELIVERIES)
        _choice("engine_default", self.engine_default, MOVERS)
        _choice("mpi_over", self.mpi_over, MPI_PLANES)
        check_clock(self)
        check_seed("configuration: seed", self.seed)
        if self.check_races and self.trace is None:
            raise UsageError(
                "configuration: check_races keeps its records in the trace directory: give trace"
            )
        for name in ("heap_bytes", "managed_bytes", "staging_bytes"):
            value = getattr(self, name)
            if value < 4096 or value % 4096:
                raise UsageError(f"configuration: {name} must be a positive multiple of 4096, got {value}")
        for name in ("words_per_rank", "channels", "log_entries", "inbox_entries"):
            if getattr(self, name) < 1:
                raise UsageError(f"configuration: {name} must be at least 1, got {getattr(self, name)}")


def read_config(
    overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
) -> RunConfig:
    """Read the configuration of this run.

    Args:
        overrides: keys given in code; they win over the environment.
        environ: environment to read, `os.environ` by default.

    Raises:
        UsageError: not a JSON object, unknown key, value of the wrong type or out of range.
    """
    environ = os.environ if environ is None else environ
    text = environ.get(ENVIRONMENT_KEY, "")
    merged = {**_parse(text), **environment_clock(environ), **(overrides or {})}
    plan = environ.get(FAULTS_KEY)
    if plan and merged.get("faults") is None:
        merged["faults"] = plan
    return RunConfig(**{key: _typed(key, value) for key, value in merged.items()})


def environment_config(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the keys `SUPERPOD_CONFIG` gives. Raises: UsageError, as `read_config` does."""
    values = _parse((os.environ if environ is None else environ).get(ENVIRONMENT_KEY, ""))
    RunConfig(**{key: _typed(key, value) for key, value in values.items()})
    return values


def environment_clock(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the keys of the clock that the environment's variables give.

    Raises:
        UsageError: a value that is none of the choices, no number, or out of range.
    """
    given = {key: (name, environ[name]) for key, name in CLOCK_KEYS.items() if name in environ}
    return {key: clock_value(key, text, f"{name}={text}") for key, (name, text) in given.items()}


def clock_value(key: str, text: str, said: str) -> str | float:
    """The value of a key of the clock that is given as text; `said` is how it was. Raises UsageError."""
    if key in _CLOCK_CHOICES:
        if text not in _CLOCK_CHOICES[key]:
            raise UsageError(f"{said}: choose one of {', '.join(_CLOCK_CHOICES[key])}")
        return text
    value = number_of(said, text)
    if not in_limits(value, CLOCK_LIMITS[key]):
        raise UsageError(f"{said}: must be {CLOCK_LIMITS[key].words}")
    return value


def number_of(name: str, text: str) -> float:
    """The number that `text` is. Raises UsageError."""
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{name}: a number is needed") from None
    return value


def in_limits(value: float, limits: Limits) -> bool:
    """Whether a number is within limits; what is no number is not."""
    return limits.low <= value <= limits.high and not (limits.above and value == limits.low)


def clock_of(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Keys of the clock that the environment gives, its variables before `SUPERPOD_CONFIG`.

    Raises:
        UsageError: as `read_config`.
    """
    environ = os.environ if environ is None else environ
    told = {key: value for key, value in environment_config(environ).items() if key in CLOCK_KEYS}
    return {**told, **environment_clock(environ)}


def check_clock(config: RunConfig) -> None:
    """Refuse clock settings that mean nothing. Raises: UsageError."""
    _choice("clock", config.clock, CLOCKS)
    _choice("compute", config.compute, COMPUTES)
    for name, limits in CLOCK_LIMITS.items():
        value = getattr(config, name)
        if not in_limits(value, limits):
            raise UsageError(f"configuration: {name} must be {limits.words}, got {value!r}")
    if config.compute == "measured" and config.clock != "wall":
        raise UsageError("configuration: compute measured takes real time: use it with the wall clock")


def check_seed(said: str, value: int) -> int:
    """Return a seed of 64 bits; `said` is where it was given. Raises: UsageError."""
    if not 0 <= value <= MAX_SEED:
        raise UsageError(f"{said} {value}: a seed has 64 bits: 0 to {MAX_SEED}")
    return value


def read_jitter(environ: Mapping[str, str] | None = None) -> tuple[float, int, int] | None:
    """Probability, longest sleep in host µs and seed of the sleeps asked for; None without.

    Raises:
        UsageError: not three numbers, or a probability outside 0 to 1.
    """
    text = (os.environ if environ is None else environ).get(JITTER_KEY, "")
    if not text:
        return None
    try:
        probability, longest_us, seed = text.split(",")
        values = float(probability), int(longest_us), int(seed)
    except ValueError:
        raise UsageError(f'{JITTER_KEY}: "probability,max_us,seed" is needed, got {text!r}') from None
    if not (0 <= values[0] <= 1 and 1 <= values[1] < 1_000_000):
        raise UsageError(f"{JITTER_KEY}: probability 0 to 1 and 1 to 999999 us are needed, got {text!r}")
    return values


def _parse(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{ENVIRONMENT_KEY}: not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{ENVIRONMENT_KEY}: a JSON object is needed, got {type(values).__name__}")
    return values


def _typed(key: str, value: Any) -> Any:
    if key not in _DEFAULTS:
        near = difflib.get_close_matches(key, _DEFAULTS, n=1, cutoff=0.0)
        raise UsageError(f"configuration: unknown key {key!r}; did you mean {near[0]!r}?")
    default = _DEFAULTS[key]
    if default is None:
        wanted: tuple[type, ...] = (str, type(None))
    elif isinstance(default, bool):
        wanted = (bool,)
    elif isinstance(default, float):
        wanted = (int, float)
    elif isinstance(default, Mapping):
        wanted = (Mapping,)
    else:
        wanted = (type(default),)
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        names = " or ".join(kind.__name__ for kind in wanted)
        raise UsageError(f"configuration: {key} must be {names}, got {value!r}")
    return value


def _choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = difflib.get_close_matches(value, choices, n=1, cutoff=0.0)[0]
        raise UsageError(
            f"configuration: {key} {value!r} is not one of {', '.join(choices)}; nearest: {near}"
        )


_DEFAULTS: dict[str, Any] = {f.name: getattr(RunConfig(), f.name) for f in fields(RunConfig)}
