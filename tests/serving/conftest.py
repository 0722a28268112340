"""A tiny checkpoint, and a priced model with its routing shape."""

import re
from pathlib import Path

import pytest

from serving.model.checkpoint import make_checkpoint
from serving.model.config import PRESETS

_SHAPE = {
    "layers": 9,
    "dense_layers": 1,
    "routed_experts": PRESETS["tiny"].n_routed_experts,
    "top_k": PRESETS["tiny"].num_experts_per_tok,
    "groups": PRESETS["tiny"].n_group,
    "topk_groups": PRESETS["tiny"].topk_group,
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    make_checkpoint(directory, "tiny", seed=5)
    return str(directory)


@pytest.fixture(scope="session")
def tiny_priced(tmp_path_factory: pytest.TempPathFactory) -> str:
    """DeepSeek-R1's price file with the tiny model's routing shape and 9 layers."""
    import serving

    text = (Path(serving.__file__).parent / "priced" / "deepseek-r1.toml").read_text()
    for name, value in _SHAPE.items():
        text, count = re.subn(rf"(?m)^({name} = {{ value = )\d+", rf"\g<1>{value}", text)
        assert count == 1, name
    path = tmp_path_factory.mktemp("priced") / "tiny.toml"
    path.write_text(text)
    return str(path)
