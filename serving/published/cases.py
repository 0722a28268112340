"""What is measured: a published case, or one of a user's own written like it.

decode:SYSTEM:DIES:BATCH:LOW-HIGH[:no-mtp][:no-microbatch][:balanced]     sequences a die, tokens of context
prefill:SYSTEM:DIES:TOKENS:PROMPT[:no-microbatch][:balanced]              tokens a die, tokens of a prompt
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from emulator.errors import UsageError
from emulator.profile import nearest
from serving.published.system import SYSTEMS

FLAGS: Final = ("no-mtp", "no-microbatch", "balanced")
_USE: Final = (
    "decode:SYSTEM:DIES:BATCH:LOW-HIGH or prefill:SYSTEM:DIES:TOKENS:PROMPT, then any of "
    + ", ".join(f":{flag}" for flag in FLAGS)
)
_MOST: Final = 1 << 20


@dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
        phase: "decode" or "prefill". ranks: dies. batch: sequences (decode) or tokens (prefill) of a die.
        low, high: tokens of context, drawn evenly (decode); low = high = tokens of a prompt (prefill).
        mtp: one drafted token is verified, and the MTP layer runs (decode). microbatches: 1 or 2 of half the
            batch, one's exchanges and experts beside the other's attention. balanced: all experts alike.
        passes: MoE layers measured, 0 all. attention_cores: cube cores of decode's attention stream
            (`split`); 0: what the system's file says.
    """

    phase: str
    system: str
    ranks: int
    batch: int
    low: int
    high: int
    mtp: bool = True
    microbatches: int = 2
    balanced: bool = False
    passes: int = 5
    attention_cores: int = 0

    @property
    def name(self) -> str:
        """As `parse_case` reads it."""
        size = str(self.low) if self.phase == "prefill" else f"{self.low}-{self.high}"
        words = [self.phase, self.system, str(self.ranks), str(self.batch), size]
        given = zip(FLAGS, (not self.mtp, self.microbatches == 1, self.balanced), strict=True)
        quiet: tuple[str, ...] = () if self.phase == "decode" else ("no-mtp",)
        if self.system == "xdeepserve":
            quiet += ("no-microbatch",)
        return ":".join([*words, *(flag for flag, is_set in given if is_set and flag not in quiet)])

    @property
    def queries(self) -> int:
        """Rows a sequence has in an iteration."""
        return 2 if self.mtp else 1

    @property
    def tokens(self) -> int:
        """Rows of a die in an iteration."""
        return self.batch * self.queries if self.phase == "decode" else self.batch


def parse_case(text: str) -> Case:
    """Read a case. Raises UsageError, naming what is wrong with it."""
    words = text.split(":")
    if len(words) < 5 or words[0] not in ("decode", "prefill"):
        raise UsageError(f"--case {text}: write {_USE}")
    phase, system, flags = words[0], words[1], words[5:]
    if system not in SYSTEMS:
        raise UsageError(
            f"--case {text}: no system {system!r}{nearest(system, SYSTEMS)}: {', '.join(SYSTEMS)}"
        )
    for flag in flags:
        if flag not in FLAGS:
            raise UsageError(f"--case {text}: no {flag!r}{nearest(flag, FLAGS)}: {', '.join(FLAGS)}")
    ranks, batch = _number(text, "DIES", words[2], 2), _number(text, "BATCH", words[3], 1)
    low, dash, high = words[4].partition("-")
    first = _number(text, "LOW", low, 1)
    last = _number(text, "HIGH", high, first) if dash else first
    mtp = phase == "decode" and "no-mtp" not in flags
    micro = 1 if system == "xdeepserve" or "no-microbatch" in flags else 2
    case = Case(phase, system, ranks, batch, first, last, mtp, micro, "balanced" in flags)
    _check(text, case, bool(dash))
    return case


def _check(text: str, case: Case, is_range: bool) -> None:
    if case.phase == "prefill" and (is_range or case.batch % (case.low * case.microbatches)):
        raise UsageError(
            f"--case {text}: TOKENS must be a multiple of {case.microbatches} x PROMPT, one number each"
        )
    if case.phase == "prefill" and case.system == "xdeepserve":
        raise UsageError(f"--case {text}: prefill of xdeepserve is not published, and not measured")
    if case.batch % case.microbatches:
        raise UsageError(f"--case {text}: two microbatches need an even BATCH; or add :no-microbatch")


def _number(text: str, what: str, word: str, least: int) -> int:
    if not word.isascii() or not word.isdecimal() or not least <= int(word) <= _MOST:
        raise UsageError(f"--case {text}: {what} must be a number of {least} to {_MOST}, got {word!r}")
    return int(word)


def _cm(batch: int, low: int, high: int, **more: bool | int) -> Case:
    """CloudMatrix-Infer's decode: 160 chips, half of a chip's batch on each die."""
    return Case("decode", "cloudmatrix-infer", 320, batch // 2, low, high, **more)  # type: ignore[arg-type]


COLOCATED: Final = Case("decode", "xdeepserve", 288, 60, 2048, 4096, microbatches=1, passes=0)
COLOCATED_NO_MTP: Final = Case("decode", "xdeepserve", 288, 60, 2048, 4096, mtp=False, microbatches=1)


def one_stream(case: Case) -> Case:
    """The same case, its batch in one piece."""
    return replace(case, microbatches=1)


LONG_96: Final = _cm(96, 4096, 4352)
LONG_96_NO_MTP: Final = _cm(96, 4096, 4352, mtp=False)
SHORT_128: Final = _cm(128, 1024, 2048)
LONG_24: Final = one_stream(_cm(24, 4096, 4352))
LONG_24_NO_MTP: Final = replace(LONG_24, mtp=False)
LONG_64: Final = _cm(64, 4096, 4352)
LONG_128: Final = _cm(128, 4096, 4352)
LONG_128_NO_MTP: Final = one_stream(_cm(128, 4096, 4352, mtp=False))
PREFILL: Final = Case("prefill", "cloudmatrix-infer", 32, 8192, 4096, 4096, mtp=False)
PREFILL_ONE: Final = one_stream(PREFILL)
_BOTH: Final = (SHORT_128, LONG_64, LONG_128)
PUBLISHED: Final = (
    COLOCATED, COLOCATED_NO_MTP, LONG_96, LONG_96_NO_MTP, *_BOTH, *map(one_stream, _BOTH), LONG_24,
    LONG_24_NO_MTP, LONG_128_NO_MTP, PREFILL, PREFILL_ONE,
)  # fmt: skip
"""All that is measured for the published rows."""
