"""Tokenizers to test with."""

from pathlib import Path

import pytest
from tokenizers_made import byte_level, sentencepiece, wordpiece

KINDS = {"byte-level": byte_level, "sentencepiece": sentencepiece, "wordpiece": wordpiece}


@pytest.fixture(scope="session", params=list(KINDS))
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return KINDS[request.param](tmp_path_factory.mktemp("tokenizer") / request.param)
