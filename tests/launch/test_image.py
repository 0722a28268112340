"""Forked processes share again what they have copied and not changed, and lose nothing that they have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch import paths

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not paths.IMAGE.exists(), reason="no C compiler at installation")
PROGRAM = """
import os, sys, threading
from launch import image
image.use()
kept = [(i, str(i)) for i in range(300_000)]   # about 40 MB of small objects
mine = [bytearray(b"before") for _ in range(50_000)]
taken = image.take()
assert taken > 30 << 20, taken
if (child := os.fork()):
    status = os.waitpid(child, 0)[1]
    assert kept[7] == (7, "7") and all(b == b"before" for b in mine)   # the parent's are untouched
    sys.exit(os.waitstatus_to_exitcode(status))
def copied_kb():
    return sum(int(l.split()[1]) for l in open("/proc/self/smaps_rollup") if l.startswith("Anonymous:"))
refs = list(kept)                               # counts a reference to every object: copies all their pages
for number, text in refs:
    pass
del refs, number, text
for block in mine[::3]:
    block[:] = b"after!"
new = [str(i) for i in range(400_000, 500_000)]
held = copied_kb()
waiting = threading.Event()
thread = threading.Thread(target=waiting.wait)
thread.start()
assert image.give_back() == 0, "another thread may have lent its memory"
waiting.set()
thread.join()
given = image.give_back()
assert given > 5 << 20, given
assert held - copied_kb() > 0.8 * given / 1024, (held, copied_kb(), given)
for _ in range(2):
    assert all(kept[i] == (i, str(i)) for i in range(300_000))
    assert all(b == (b"after!" if i % 3 == 0 else b"before") for i, b in enumerate(mine))
    assert new == [str(i) for i in range(400_000, 500_000)]
    kept[5] = "changed"
    image.give_back()
    assert kept[5] == "changed"
    kept[5] = (5, "5")
"""


def run(library: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LD_PRELOAD": str(library)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT, env=env, timeout=100
    )


def test_unchanged_copies_go_back_and_changes_stay() -> None:
    done = run(paths.IMAGE)
    assert done.returncode == 0, done.stderr


def test_a_build_that_does_not_compare_is_caught(tmp_path: Path) -> None:
    source = (paths.NATIVE / "image.c").read_text()
    rule = "!memcmp(base + page * PAGE, image + page * PAGE, PAGE)"
    assert rule in source
    (tmp_path / "broken.c").write_text(source.replace(rule, "image"))
    broken = tmp_path / "broken.so"
    subprocess.run(
        ["cc", "-O2", "-fPIC", "-shared", str(tmp_path / "broken.c"), "-o", str(broken), "-ldl"], check=True
    )
    assert run(broken).returncode != 0


def test_without_it_nothing_happens() -> None:
    program = "from launch import image; image.use(); print(image.take(), image.give_back())"
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=env, timeout=60
    )
    assert done.stdout == "0 0\n", done.stderr
