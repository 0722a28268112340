"""After `fill_holes`, new allocations of Python and of C lie side by side, not in the holes of old ones."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, sys
from launch.dense import fill_holes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
python = [bytes(100) for _ in range(40_000)]
c = [libc.malloc(2000) for _ in range(8_000)]
for block in c[::2]:
    libc.free(block)
del python[::2]
if sys.argv[1] == "fill":
    fill_holes()
new = [bytes(100) for _ in range(10_000)]
pages = len({id(block) >> 12 for block in new})
c_pages = len({libc.malloc(2000) >> 12 for _ in range(2_000)})
print(pages, c_pages)
"""


@pytest.mark.parametrize(("mode", "most"), [("fill", 1.2), ("leave", None)])
def test_new_blocks_share_pages(mode: str, most: float | None) -> None:
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode],
        capture_output=True,
        text=True,
        cwd=root,
        timeout=60,
        check=True,
    )
    pages, c_pages = (int(word) for word in done.stdout.split())
    least, c_least = 10_000 * 144 / 4096, 2_000 * 2016 / 4096
    if most is None:  # without it they do not, so the test can tell
        assert pages > 1.5 * least
        assert c_pages > 1.5 * c_least
    else:
        assert pages < most * least
        assert c_pages < most * c_least
