"""The cores of decode's two streams, what prices alone say of published layers, and cases that are kept."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from serving.published import kept
from serving.published.cases import LONG_24, LONG_96, LONG_96_NO_MTP, LONG_128, SHORT_128, Case
from serving.published.kept import Kept
from serving.published.split import attention_cores, stream_times
from serving.published.system import load_system, streams_at

CM = load_system("cloudmatrix-infer")
US = 10**6


def slot_us(case: Case) -> float:
    """The longer stream in half a layer."""
    return max(stream_times(streams_at(CM, attention_cores(case)), case)) / US


def test_the_rule_gives_the_published_cores_where_they_are_published() -> None:
    """16 and 8 of 24, both about 600 us. Mutations: cores by attention alone; experts at the die's rate."""
    assert attention_cores(LONG_96) == 16
    assert int(CM.entries.value("system.attention_cores")) == 16  # type: ignore[union-attr]
    for took in stream_times(streams_at(CM, 16), LONG_96):
        assert took / US == pytest.approx(600, rel=0.08)
    same = streams_at(CM, 16)
    assert stream_times(same, LONG_96) == stream_times(CM, LONG_96)


def test_short_contexts_leave_more_cores_to_the_experts() -> None:
    assert attention_cores(SHORT_128) < attention_cores(LONG_128) <= attention_cores(LONG_96)
    assert attention_cores(LONG_24) == 0, "one stream has all cores"
    assert attention_cores(replace(SHORT_128, system="xdeepserve", microbatches=1)) == 0


@pytest.mark.parametrize("case", [SHORT_128, LONG_128, LONG_96_NO_MTP], ids=lambda case: case.name)
def test_no_other_cores_are_faster(case: Case) -> None:
    best = attention_cores(case)
    for cores in (best - 1, best + 1, 16):
        assert max(stream_times(streams_at(CM, cores), case)) >= round(slot_us(case) * US)


def test_prices_alone_are_near_the_published_figures() -> None:
    """Without jitter and queues of the fabric: layers, streams, and TPOT of 59 layers. Mutations: a stream
    at the whole die's rate; a half batch priced as a whole."""
    layers, tokens = 59, 1 + CM.acceptance
    found = {
        "cm.mtp_layer_on": (2 * slot_us(LONG_96), 1260),
        "cm.mtp_layer_off": (2 * slot_us(LONG_96_NO_MTP), 874),
        "cm.decode_stream_time": (sum(stream_times(CM, LONG_96)) / 2 / US, 600),
        "cm.decode.cm_infer.tpot": (layers * 2 * slot_us(LONG_96) / 1000 / tokens, 49.4),
        "cm.decode.slo50.1024_1024.tpot": (layers * 2 * slot_us(SHORT_128) / 1000 / tokens, 46.8),
    }
    errors = {name: abs(value / published - 1) for name, (value, published) in found.items()}
    assert statistics.median(errors.values()) <= 0.08, errors
    assert max(errors.values()) <= 0.16, errors


def test_cases_are_kept_for_the_numbers_they_were_measured_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutations: a digest without the inputs; without passes or cores; half a file taken for a whole."""
    folder = Kept(tmp_path / "kept")
    assert folder.read(LONG_96) is None
    folder.write(LONG_96, {"ends_ps": [1, 2]})
    assert folder.read(LONG_96) == {"ends_ps": [1, 2]}
    assert folder.read(replace(LONG_96, passes=4)) is None
    assert folder.read(replace(LONG_96, attention_cores=15)) is None
    assert folder.read(LONG_128) is None
    first = kept.inputs([LONG_96])
    monkeypatch.setattr(kept, "inputs", lambda cases: [{**first[0], "value": 49}, *first[1:]])
    assert folder.read(LONG_96) is None
    (file,) = (tmp_path / "kept").iterdir()
    file.write_text(json.dumps({"case": "x"})[:-1])
    assert folder.read(LONG_96) is None
