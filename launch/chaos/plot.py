"""A time-line of one plan as SVG: a line a rank or request, faults as marks, restarts as grey bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from launch.chaos.rounds import PS_PER_S, Served
from serving.request import RequestSpec

_WIDTH, _LEFT, _ROW, _TOP = 1000, 90, 14, 50
_MARKS = {"kill": "#c0392b", "kill_in_lock": "#7b241c", "freeze": "#2471a3", "slow": "#ca6f1e"}


def timeline(served: Served, record: Mapping[str, Any], specs: Sequence[RequestSpec]) -> str:
    """Return the picture: each request from its arrival over its tokens to its end, in virtual seconds.

    Stretches in which the pod was down are shown a tenth as wide as what surrounds them would be.
    """
    marks = sorted({0, *(ps for e in served.endings for ps in e.times_ps), *(s.arrival_ps for s in specs)})
    gaps: list[tuple[int, int]] = [(s["killed_ps"], s["first_token_ps"]) for s in record["restarts"]]
    gaps += [(entry["found_ps"], entry["resumed_ps"]) for entry in record["recoveries"]]
    last = int(marks[-1]) or 1
    busy = max(1, last - sum(end - begin for begin, end in gaps))
    squeeze = 0.1 * busy / max(1, sum(end - begin for begin, end in gaps))

    def x(ps: int) -> float:
        shown = float(ps)
        for begin, end in gaps:
            shown -= (1 - squeeze) * max(0, min(ps, end) - begin)
        return _LEFT + (_WIDTH - _LEFT - 20) * shown / (busy * 1.1 if gaps else busy)

    height = _TOP + _ROW * len(specs) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-size="10" '
        'font-family="sans-serif">',
        f'<text x="{_LEFT}" y="14">plan of seed {record["seed"]}: last token at '
        f"{last / PS_PER_S:.4f} s, {record['exact']} of {record['requests']} exact</text>",
    ]
    parts += [
        f'<rect x="{x(begin):.1f}" y="{_TOP}" width="{x(end) - x(begin):.1f}" height="{height}" '
        f'fill="#e5e8e8"><title>down {(end - begin) / PS_PER_S:.3f} s</title></rect>'
        for begin, end in gaps
    ]
    parts += _requests(served, specs, x)
    for row in record["faults"]:
        if row["fired"]:
            colour, at = _MARKS.get(row["kind"], "#884ea0"), x(row["fired_ps"])
            parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="30" y2="{height}" stroke="{colour}"/>')
            what = escape(f"{row['kind']} on rank {row['rank']}")
            parts.append(
                f'<text x="{at + 2:.1f}" y="{30 + 10 * (row["fault"] % 2)}" fill="{colour}">{what}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _requests(served: Served, specs: Sequence[RequestSpec], x: Any) -> list[str]:
    ended = {e.request: e for e in served.endings}
    parts = []
    for spec in specs:
        y = _TOP + _ROW * spec.request_id + 10
        parts.append(f'<text x="4" y="{y}">request {spec.request_id}</text>')
        ending = ended.get(spec.request_id)
        if ending is None or not ending.times_ps:
            continue
        colour = "#c0392b" if ending.error else "#4878a8"
        begin, end = x(spec.arrival_ps), x(ending.times_ps[-1])
        parts.append(
            f'<line x1="{begin:.1f}" x2="{end:.1f}" y1="{y - 3}" y2="{y - 3}" stroke="{colour}" '
            'stroke-width="2"/>'
        )
        parts += [
            f'<circle cx="{x(ps):.1f}" cy="{y - 3}" r="2.5" fill="{colour}"/>' for ps in ending.times_ps
        ]
    return parts
