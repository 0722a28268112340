"""Share what forked processes have not changed: an image of Python's small objects (see native/image.c).

Optional: without the compiled part, or where the kernel refuses, ranks only take more memory.
"""

import ctypes
import sys

from launch import osproc

_library: list[ctypes.PyDLL] = []


def use() -> None:
    """Find the compiled part in this process, where it was loaded before the interpreter (LD_PRELOAD)."""
    if hasattr(osproc.LIBC, "image_take"):
        library = ctypes.PyDLL(None)  # keeps the interpreter's lock, as the image needs
        library.image_take.restype = library.image_give_back.restype = ctypes.c_long
        _library.append(library)


def take() -> int:
    """Take the image in a process of one thread, before it forks; return its bytes, 0 where there is none."""
    return max(0, int(_library[0].image_take())) if _library else 0


def give_back() -> int:
    """Give back this process's copies of pages that equal the image; return the bytes given back.

    Nothing happens while other Python threads run (one may have lent its buffer to a system call).
    """
    if not _library or len(sys._current_frames()) > 1:
        return 0
    return max(0, int(_library[0].image_give_back())) * 4096
