"""Import once, before the ranks are forked, those parts of torch a program will import in every rank.

`torch.distributed.fsdp` and an optimizer (which brings `torch._dynamo`) take 68 MB and 1.4 s of CPU in each
process that imports them by itself: 26 GB at 384 ranks. Imported before the fork they are shared. Only
modules of torch are imported: what else a program imports may ask who and where it is.
"""

import ast
import contextlib
import importlib
import importlib.util
import os

_LATE = "torch._dynamo"
_BRINGS_LATE = ("optim", "fsdp", "DistributedDataParallel", "fully_shard")
"""Names whose use makes torch import `torch._dynamo`, long after the program's own imports."""


def torch_modules(source: str) -> list[str]:
    """Return the modules of torch that a program's text imports, sorted; none when it is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    found, names = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    found = {name for name in found if name.startswith("torch.")}
    parts = {part for name in found for part in name.split(".")}
    late = not (names | parts).isdisjoint(_BRINGS_LATE) and "torch" in source
    return sorted(found | {_LATE} if late else found)


def import_ahead(argv: list[str], cwd: str) -> None:
    """Import the modules of torch that the script `argv[0]` names; what cannot be imported is left to the
    ranks, who will say so."""
    if not argv or argv[0] == "-m":
        return
    try:
        with open(os.path.join(cwd, argv[0]), encoding="utf-8") as file:
            source = file.read()
    except (OSError, UnicodeDecodeError):
        return
    for name in torch_modules(source):
        with contextlib.suppress(Exception):
            if importlib.util.find_spec(name) is not None:
                importlib.import_module(name)
