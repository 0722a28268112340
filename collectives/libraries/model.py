"""What one dispatch or combine is charged beside its bytes. Pure.

    pulled (XCCL)   start [+ layout + quantise x rows | + copy x rows]     rows are made ready to be fetched
                    records of all ranks are in
                    rank x ranks                                           poll, then one pull a source
    pushed (others) start [+ layout + quantise x rows of the first round]  rows leave as they are ready
                    all rows are in
                    rank x ranks x rounds [+ copy x rows]                  poll each peer's flag; sum up

In brackets: dispatch only | combine only. A pushed dispatch quantises the rounds after the first while the
one before is on its way; a round is as many tokens as the buffers hold. Combine's copy is one pass over
its rows in the die's own memory: XCCL's into the managed area, the others' weighted sum (on machines where it
overlaps with what arrives, only the last round of it shows).

start, layout and rank are a library's own three numbers; quantise and copy are speeds of the die, which
libraries share: they and the in-situ overhead stand in the machine's profile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from collectives.libraries.library import Library
from emulator.errors import UsageError
from emulator.npu import ceil_ps
from emulator.profile import Profile, nearest

OPERATIONS: Final = ("dispatch", "combine")
DTYPES: Final = ("int8", "fp8", "bf16")
_FP8_BLOCK = 128  # values with one float32 scale (DeepEP)
_FP8_HEADER = 16  # bytes beside a row: where it came from (DeepEP's int4 message header)


@dataclass(frozen=True)
class EpCharges:
    """What one dispatch or combine is charged; satisfies `collectives.moe.OperationCosts`.

    start_ps: before anything leaves. pull_start_ps: after the last record (pulled) or the last row (pushed)
        is in. record_ps: between two pulls. row_bytes: of one row on the wire. meta_bytes: of a record.
    """

    start_ps: int
    pull_start_ps: int
    record_ps: int
    row_bytes: int
    meta_bytes: int

    def repeated(self, layers: int) -> EpCharges:
        """Return the costs of one executed operation that stands for `layers` equal ones. The latencies of
        the fabric, which it adds once, are the caller's business."""
        return replace(
            self,
            start_ps=self.start_ps * layers,
            pull_start_ps=self.pull_start_ps * layers,
            record_ps=self.record_ps * layers,
            row_bytes=self.row_bytes * layers,
            meta_bytes=self.meta_bytes * layers,
        )


def charges(
    library: Library,
    profile: Profile,
    operation: str,
    *,
    ranks: int,
    hidden: int,
    topk: int,
    dtype: str | None = None,
    tokens: int = 128,
    in_situ: bool = False,
) -> EpCharges:
    """Return what `operation` is charged.

    Args:
        profile: the machine it runs on, with what its libraries share.
        operation: "dispatch" or "combine".
        ranks: how many take part.
        hidden: values of a row.
        topk: rows each token becomes (those of shared experts included).
        dtype: of a value on the wire, "int8", "fp8" or "bf16"; by default the library's: quantised rows out,
            bf16 back.
        tokens: of this rank.
        in_situ: inside a model's step, beside other kernels (adds the machine's in-situ overhead).

    Raises:
        UsageError: unknown operation or dtype, sizes below 1 (tokens below 0).
    """
    if operation not in OPERATIONS:
        raise UsageError(f"no operation {operation!r}{nearest(operation, OPERATIONS)}")
    for name, value, least in (
        ("ranks", ranks, 1),
        ("hidden", hidden, 1),
        ("topk", topk, 1),
        ("tokens", tokens, 0),
    ):
        if value < least:
            raise UsageError(f"charges: {name} must be at least {least}, got {value}")
    dtype = dtype or ("bf16" if operation == "combine" else "fp8" if library.machine == "h800-ib" else "int8")
    batch, rows = profile.integer("exchange.round_tokens") * topk, tokens * topk
    size = row_bytes(library, hidden, dtype)
    start, end = library.ps("start"), 0
    if operation == "dispatch":
        quantised = 0 if dtype == "bf16" else rows if library.pulls else min(rows, batch)
        start += library.ps("layout") + ready_ps(profile, operation, quantised * 2 * hidden)
    else:
        shown = min(rows, batch) if profile.value("vector.copy_overlap") else rows
        copied = ready_ps(profile, operation, shown * size)
        start, end = (start + copied, 0) if library.pulls else (start, copied)
    rounds = 1 if library.pulls else max(1, -(-rows // batch))
    end += library.ps("rank") * ranks * rounds + (profile.ps("exchange.in_situ_us") if in_situ else 0)
    return EpCharges(start, end, library.ps("rank"), size, library.numbers.integer("format.record_bytes"))


def ready_ps(profile: Profile, operation: str, nbytes: int) -> int:
    """Return how long a die's vector cores work on rows: quantising `nbytes` of bf16 values (dispatch), or
    one pass over `nbytes` of rows (combine)."""
    speed = "vector.quantise_gb_per_s" if operation == "dispatch" else "vector.copy_gb_per_s"
    return ceil_ps(nbytes, profile.per_s(speed))


def row_bytes(library: Library, hidden: int, dtype: str) -> int:
    """Return the bytes of one row on the wire, its scales included. Raises: UsageError, unknown dtype."""
    if dtype == "bf16":
        return 2 * hidden
    if dtype == "int8":
        return hidden + library.numbers.integer("format.scale_bytes")
    if dtype == "fp8":
        return hidden + 4 * -(-hidden // _FP8_BLOCK) + _FP8_HEADER
    raise UsageError(f"no dtype {dtype!r}{nearest(dtype, DTYPES)}")
