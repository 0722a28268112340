"""Checkpoints shared by the model's tests, made once per session from a fixed seed."""

from pathlib import Path

import pytest
import torch

from serving.model import Model, load_model, make_checkpoint

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_checkpoint(directory, "tiny", seed=0)
    return directory


@pytest.fixture(scope="session")
def mini_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mini")
    make_checkpoint(directory, "mini", seed=0)
    return directory


@pytest.fixture(scope="session")
def tiny(tiny_dir: Path) -> Model:
    return load_model(tiny_dir)


@pytest.fixture(scope="session")
def mini(mini_dir: Path) -> Model:
    return load_model(mini_dir)
