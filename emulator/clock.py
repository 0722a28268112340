"""Decisions about the wall clock, pure: what dilation a host can keep, and whether a run kept its delays.

All host times are nanoseconds. The error of a run is the sum of |achieved - requested| over the sum of
requested; the error per delay hardly depends on the dilation, so the dilation that would have met the
limit follows from it. A run is trustworthy if its delays are off by at most `KEPT`: then its own suggested
dilation is not above its dilation. Else it is above it, so below its suggested dilation a run is marked. The
same is said of each class of its delays (kind of operation, decade of emulated time), as a run of long delays
may hide that short ones are not kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from emulator.engine.codes import OPERATIONS

ERROR_LIMIT = 0.05
"""Results with a larger error are not to be trusted."""
KEPT = 0.03
"""A run below the suggested dilation is marked: its delays are off by more than this. It is twice the `AIM`,
because hosts vary, and less than `ERROR_LIMIT`."""
AIM = 0.015
"""At the dilation to suggest delays are off by this: doubling one then doubles the achieved one within 0.75 %
(late by e, 2d + e is off by e / 2d from twice d + e), less than the 2 % that are promised; and it is 3.3
times the least dilation that keeps them within `ERROR_LIMIT`."""
SHARE = 0.01
"""A class with less of the time requested does not count for what is suggested to keep each class."""
Delays = npt.NDArray[np.int64]


def round_up(value: float) -> float:
    """The next number with two digits."""
    if value <= 0 or not math.isfinite(value):
        return value
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.12g}")


def needed_dilation(error_ns: float, delay_ps: float) -> float:
    """The dilation to suggest: `error_ns` is `AIM` of a delay of `delay_ps`."""
    return round_up(max(error_ns, 0.0) / (AIM * delay_ps / 1000)) if delay_ps > 0 else 0.0


def suggested_dilation(error: float, dilation: float) -> float:
    """What to suggest after delays were off by `error` (relative) at `dilation`: not above it if that is
    within `KEPT`, else above it."""
    needed = round_up(dilation * error / AIM)
    return min(needed, dilation) if error <= KEPT else needed


def expected_error(error_ns: float, delay_ps: float, dilation: float) -> float:
    """Relative error to expect of a delay of `delay_ps` when one is off by `error_ns`."""
    return error_ns / (dilation * delay_ps / 1000) if delay_ps > 0 else 0.0


def early_warning(error_ns: float, delay_ps: float, dilation: float) -> str | None:
    """What to say before the run, if the dilation is too small for this host."""
    error = expected_error(error_ns, delay_ps, dilation)
    if error <= KEPT:
        return None
    return (
        f"superpod: warning: dilation {dilation:g} is too small for this machine: the fabric's "
        f"{delay_ps / 1e6:g} us become {dilation * delay_ps / 1e6:.3g} us, "
        f"delays are off by {error_ns / 1000:.3g} us: "
        f"expect errors of about {100 * error:.3g} %; from {needed_dilation(error_ns, delay_ps):g} on "
        f"they stay within {100 * KEPT:g} %"
    )


def clock_said(wall: Mapping[str, Any] | None) -> str:
    """A run's clock in a few words, with the verdict.

    Args:
        wall: the honesty report (`wall_table`), or None under the virtual clock.
    """
    if wall is None:
        return "virtual"
    return f"wall, 1 s lasts {wall['dilation']:g} s; {_verdict(wall['kept'])}"


def time_said(wall: Mapping[str, Any] | None) -> str:
    """What a table's times are."""
    return "virtual time" if wall is None else f"emulated time; clock: {clock_said(wall)}"


def clock_facts(wall: Mapping[str, Any] | None) -> dict[str, Any]:
    """What each row of a JSON list says of the clock: nothing under the virtual one."""
    if wall is None:
        return {}
    kept = wall["kept"]
    facts = {"dilation": wall["dilation"], "error": kept["error"], "trustworthy": kept["trustworthy"]}
    return {"wall": facts}


def _verdict(kept: Mapping[str, Any]) -> str:
    if kept["trustworthy"]:
        return f"delays off by {100 * kept['error']:.3g} %, trustworthy"
    return "NOT TRUSTWORTHY: " + "; ".join(kept["reasons"])


def quantiles(values: Sequence[int] | npt.NDArray[Any]) -> dict[str, float]:
    """p50, p99 and maximum of host ns, in µs."""
    if not len(values):
        return {"p50_us": 0.0, "p99_us": 0.0, "max_us": 0.0}
    p50, p99, most = np.percentile(np.asarray(values), [50, 99, 100])
    return {"p50_us": round(p50 / 1e3, 1), "p99_us": round(p99 / 1e3, 1), "max_us": round(most / 1e3, 1)}


def by_operation(delays: Delays) -> dict[str, Any]:
    """Requested and achieved delays by kind of operation.

    Args:
        delays: int64 [k, 4], requested, achieved, lateness, kind.
    """
    found: dict[str, Any] = {}
    for kind in np.unique(delays[:, 3]):
        found[OPERATIONS[kind]] = _described(delays[delays[:, 3] == kind])
    return found


def by_class(delays: Delays, dilation: float) -> list[dict[str, Any]]:
    """Delays by kind of operation and decade of emulated time, each with its error, verdict and suggestion.

    Args:
        delays: as of `by_operation`.
        dilation: they were slept with.

    Returns:
        rows, by kind and size; `from_us` and `to_us` are emulated, `share` is of all that was requested.
    """
    decades = np.floor(np.log10(np.maximum(delays[:, 0], 1) / dilation / 1e3) + 1e-9).astype(np.int64)
    total, rows = int(delays[:, 0].sum()), []
    for kind, decade in sorted(set(zip(delays[:, 3].tolist(), decades.tolist(), strict=True))):
        chosen = delays[(delays[:, 3] == kind) & (decades == decade)]
        requested = int(chosen[:, 0].sum())
        error = float(np.abs(chosen[:, 1] - chosen[:, 0]).sum()) / requested
        rows.append(
            {
                "operation": OPERATIONS[kind],
                "from_us": float(f"1e{decade}"),
                "to_us": float(f"1e{decade + 1}"),
                **_described(chosen),
                "share": round(requested / total, 6),
                "error": round(error, 6),
                "kept": error <= KEPT,
                "suggested_dilation": suggested_dilation(error, dilation),
            }
        )
    return rows


def _described(delays: Delays) -> dict[str, Any]:
    return {
        "count": len(delays),
        "requested": quantiles(delays[:, 0]),
        "achieved": quantiles(delays[:, 1]),
        "late": quantiles(delays[:, 2]),
    }


def last_lateness(count: int, delays: Delays) -> int:
    """Lateness of a rank's last delay, host ns.

    Args:
        count: delays of the rank in all.
        delays: int64 [k, 4], the last k of them, delay i at i mod k.
    """
    return int(delays[(count - 1) % len(delays), 2]) if len(delays) else 0


def judge(sums: Delays, dilation: float, classes: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The honesty report's verdict.

    Args:
        sums: int64 [n, 8 or more], of each rank: delays, requested, achieved, error, late ones, worst, moved,
            moved_ps.
        dilation: of the run.
        classes: of its delays (`by_class`).

    Returns:
        among others `suggested_dilation`, for the run as a whole, by which it is marked, and
        `suggested_for_each`, at which each class that counts would have been kept.
    """
    count, requested, achieved, error, late, _, moved, moved_ps = (int(v) for v in sums[:, :8].sum(axis=0))
    relative = error / requested if requested else 0.0
    suggested = suggested_dilation(relative, dilation)
    each = [row["suggested_dilation"] for row in classes if row["share"] >= SHARE]
    reasons = [] if count else ["nothing was waited for, so nothing is known"]
    if relative > ERROR_LIMIT:
        reasons.append(f"delays are off by {100 * relative:.3g} %")
    elif relative > KEPT:
        reasons.append(f"delays are off by {100 * relative:.3g} %, as they are below the suggested dilation")
    if moved:
        reasons.append(f"ranks were too late {moved} times and the others went on without them")
    return {
        "delays": count,
        "requested_s": round(requested / 1e9, 6),
        "achieved_s": round(achieved / 1e9, 6),
        "error": round(relative, 6),
        "share_late": round(late / count, 6) if count else 0.0,
        "moved": moved,
        "moved_ps": moved_ps,
        "suggested_dilation": suggested,
        "suggested_for_each": max(each, default=suggested),
        "trustworthy": not reasons,
        "reasons": reasons,
    }


def wall_table(report: Mapping[str, Any]) -> str:
    """The honesty report as text."""
    host, kept = report["host"], report["kept"]
    factor = f" x {report['compute_factor']:g}" if report["compute"] == "measured" else ""
    spin = f", spinning below {report['spin_below_us']:g} us" if report["spin_below_us"] else ""
    lines = [
        f"wall clock: dilation {report['dilation']:g}, compute {report['compute']}{factor}{spin}, "
        f"{host['ranks_per_core']:g} ranks a core; "
        f"wake-ups of this host late by p50 {host['wake']['p50_us']:g}, "
        f"p99 {host['wake']['p99_us']:g}, max {host['wake']['max_us']:g} us; "
        f"single transfers by all ranks at once are expected to need {host['single_transfers_dilation']:g}",
        f"{'operation, emulated us':<28}{'count':>8}{'requested p50':>15}{'p99':>10}{'achieved p50':>14}"
        f"{'p99':>10}{'late p50':>10}{'p99':>9}{'max us':>10}{'error':>10}",
    ]
    lines += [_class_line(row) for row in report["classes"]]
    verdict = "trustworthy" if kept["trustworthy"] else _verdict(kept)
    lines.append(
        f"error {100 * kept['error']:.2f} % of {kept['requested_s']:.3f} s requested, "
        f"{100 * kept['share_late']:.1f} % of {kept['delays']} delays off by more than 5 %"
    )
    lines.append(
        f"suggested dilation: {report['suggested_dilation']:g} "
        f"(each kind of delay is kept from {kept['suggested_for_each']:g} on)"
    )
    return "\n".join([*lines, verdict])


def _class_line(row: Mapping[str, Any]) -> str:
    r, a, late = row["requested"], row["achieved"], row["late"]
    name = f"{row['operation']} {row['from_us']:g} to {row['to_us']:g}"
    return (
        f"{name:<28}{row['count']:>8}{r['p50_us']:>15.0f}{r['p99_us']:>10.0f}{a['p50_us']:>14.0f}"
        f"{a['p99_us']:>10.0f}{late['p50_us']:>10.0f}{late['p99_us']:>9.0f}{late['max_us']:>10.0f}"
        f"{100 * row['error']:>8.2f} %{'' if row['kept'] else '  NOT KEPT'}"
    )
