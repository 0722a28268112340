"""`serving.model` gives its names when they are asked for."""

import subprocess
import sys

import pytest

from serving import model


def test_every_name_is_there() -> None:
    assert [name for name in model.__all__ if not hasattr(model, name)] == []
    assert sorted(model._HOME) == sorted(model.__all__)
    assert set(model.__all__) <= set(dir(model))


def test_another_name_is_not() -> None:
    with pytest.raises(AttributeError, match="serving.model.*load_modle"):
        model.load_modle  # type: ignore[attr-defined]  # noqa: B018


def test_parameters_need_no_torch() -> None:
    code = "import sys; from serving.model import SamplingParams as _; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
