"""The import arrows run one way: launch → serving → collectives → memsem → emulator (docs/design.md)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ["emulator", "memsem", "collectives", "serving", "launch"]
MPI_OWNER = "emulator/transport.py"
HOST_CLOCK_FREE = LAYERS[:-1]


def imported(source: str) -> list[str]:
    """Top-level names of the absolute modules that `source` imports, wherever the import stands."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return names


def wrong_arrows(layer: str, source: str) -> list[str]:
    """The imports in `source` that point from `layer` to a layer above it."""
    above = LAYERS[LAYERS.index(layer) + 1 :]
    return [name for name in imported(source) if name.split(".")[0] in above]


def sources(layer: str) -> list[Path]:
    return sorted((ROOT / layer).rglob("*.py"))


@pytest.mark.parametrize("layer", LAYERS)
def test_no_arrow_turns_round(layer: str) -> None:
    files = sources(layer)
    assert files, f"no source in {layer}"
    wrong = {str(f.relative_to(ROOT)): wrong_arrows(layer, f.read_text()) for f in files}
    assert not {f: names for f, names in wrong.items() if names}


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_import_no_relative_parent(layer: str) -> None:
    """A relative import cannot leave its package, so every arrow between layers is absolute."""
    for file in sources(layer):
        depth = len(file.relative_to(ROOT / layer).parts)
        for node in ast.walk(ast.parse(file.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level > depth), file


def test_only_the_transport_imports_mpi() -> None:
    users = [
        str(f.relative_to(ROOT))
        for layer in LAYERS
        for f in sources(layer)
        if any(name.split(".")[0] == "mpi4py" for name in imported(f.read_text()))
    ]
    allowed = {MPI_OWNER, "launch"}  # the fork server loads the library before it forks, and never calls it
    assert [u for u in users if u not in allowed and u.split("/")[0] not in allowed] == []


def host_clock_uses(source: str) -> list[str]:
    """Modules and calls in `source` that read the host's clock or unseeded chance; parsing dates is fine."""
    uses = [name for name in imported(source) if name in {"time", "random"}]
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return uses + [node.attr for node in calls if node.attr in {"utcnow", "today", "perf_counter"}]


@pytest.mark.parametrize("layer", HOST_CLOCK_FREE)
def test_no_host_clock_below_launch(layer: str) -> None:
    users = {str(f.relative_to(ROOT)): host_clock_uses(f.read_text()) for f in sources(layer)}
    for wall_clock in ("emulator/wall.py", "emulator/engine/twin_wall.py"):
        users.pop(wall_clock, None)
    assert not {f: uses for f, uses in users.items() if uses}


def test_the_check_itself_catches_a_wrong_arrow() -> None:
    assert wrong_arrows("emulator", "def f():\n    from serving.engine import Engine\n") == ["serving.engine"]
    assert wrong_arrows("serving", "import emulator.engine\nfrom memsem import Window\n") == []
    assert host_clock_uses("from datetime import datetime\nx = datetime.today()\n") == ["today"]
    assert host_clock_uses("import time\n") == ["time"]
