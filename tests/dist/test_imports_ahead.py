"""What of torch a program imports is found in its text, and only that is imported before ranks are forked."""

import sys

import pytest

from launch.ahead import import_ahead, torch_modules


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import numpy", []),
        ("import torch", []),
        ("import torch.nn.functional as f, os.path", ["torch.nn.functional"]),
        (
            "from torch.distributed import fsdp",
            ["torch._dynamo", "torch.distributed", "torch.distributed.fsdp"],
        ),
        ("def f():\n    from torch.optim import SGD", ["torch._dynamo", "torch.optim", "torch.optim.SGD"]),
        ("import torch\no = torch.optim.SGD([], 1)", ["torch._dynamo"]),
        ("from .torch import nn", []),
        ("optim = 1", []),
        ("not python", []),
    ],
)
def test_modules_of_torch_in_a_text(source, modules):
    assert torch_modules(source) == modules


def test_only_modules_that_exist_are_imported(tmp_path):
    """Shown to fail when names are imported without asking whether there is such a module (a warning a
    rank), or when all imports are taken: the second line would end the process."""
    script = tmp_path / "script.py"
    script.write_text("from torch.nn import Linear, utils\nimport exits_here\nfrom torch import nothing\n")
    (tmp_path / "exits_here.py").write_text("raise SystemExit(1)")
    import_ahead([str(script)], "/")
    import_ahead(["script.py"], str(tmp_path))
    assert "torch.nn.utils" in sys.modules and "exits_here" not in sys.modules
    import_ahead(["absent.py"], str(tmp_path))
    import_ahead(["-m", "module"], str(tmp_path))
    import_ahead([], str(tmp_path))
