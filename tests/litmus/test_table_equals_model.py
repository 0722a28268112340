"""The table of docs/memory_model.md, the programs as data and the model say the same of every row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memsem.litmus import every_litmus
from memsem.litmus_ops import Litmus
from memsem.model import verdict

DOCS = Path(__file__).resolve().parents[2] / "docs" / "memory_model.md"
ROW = re.compile(r"^\| `([^`]+)` \|.*\| (weak|allowed|forbidden) \| (.+) \|$", re.MULTILINE)
TABLE = {name: (said, source) for name, said, source in ROW.findall(DOCS.read_text())}


def test_docs_and_data_have_the_same_rows() -> None:
    names = [litmus.name for litmus in every_litmus()]
    assert sorted(names) == sorted(TABLE) and len(set(names)) == len(names) >= 60


@pytest.mark.parametrize("litmus", every_litmus(), ids=lambda litmus: litmus.name)
def test_table_equals_model(litmus: Litmus) -> None:
    said, source = TABLE[litmus.name]
    assert litmus.verdict == said and source.strip()
    assert verdict(litmus) == said


@pytest.mark.parametrize("litmus", every_litmus(), ids=lambda litmus: litmus.name)
def test_fits_four_ranks(litmus: Litmus) -> None:
    assert len(litmus.ranks) <= 4 and set(litmus.signals) <= set(litmus.homes)
