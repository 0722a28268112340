"""The C core compiled with one wrong rule, away from the real one."""

import functools
import subprocess
import tempfile
from pathlib import Path

from emulator.engine import native

SOURCE = Path(native.__file__).parent
_COMPILE = ("cc", "-O1", "-fPIC", "-pthread")


def broken_library(rule: str, target: Path) -> Path:
    """Build the core with BREAK_<rule> defined; what does not know the rule is compiled once a process.

    Args:
        rule: name behind `#ifdef BREAK_` in the sources.
        target: where the library goes.
    """
    flag = f"BREAK_{rule}"
    everywhere = any(flag in header.read_text() for header in SOURCE.glob("*.h"))
    sources = sorted(SOURCE.glob("*.c"))
    changed = [s for s in sources if everywhere or flag in s.read_text()]
    assert changed, f"no source knows {flag}"
    objects = [str(_object(s)) for s in sources if s not in changed]
    words = [*_COMPILE, "-shared", f"-D{flag}", *map(str, changed), *objects, "-lm", "-o", str(target)]
    subprocess.run(words, check=True)
    return target


@functools.cache
def _object(source: Path) -> Path:
    made = Path(_folder().name) / f"{source.stem}.o"
    subprocess.run([*_COMPILE, "-c", str(source), "-o", str(made)], check=True)
    return made


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    """Removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="superpod-objects-")
