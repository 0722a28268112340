"""Finding and loading the compiled core, which the package's build puts beside this file."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from emulator.engine.api import LOG_DTYPE, RECORD_DTYPE
from emulator.engine.posts import INBOX_DTYPE, POST_DTYPE
from emulator.engine.schedules import SEND_DTYPE, STEP_DTYPE
from emulator.errors import UsageError

VERSION = 18
I64, POINTER, INT = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "sp_version": (I64, []),
    "sp_bytes": (I64, [POINTER]),
    "sp_create": (INT, [POINTER, POINTER]),
    "sp_attach": (POINTER, [POINTER, I64]),
    "sp_detach": (None, [POINTER]),
    "sp_compute": (INT, [POINTER, I64, I64, I64]),
    "sp_fence": (None, [POINTER]),
    "sp_put": (None, [POINTER, I64, I64, POINTER, I64, I64, I64]),
    "sp_get": (I64, [POINTER, I64, I64, POINTER]),
    "sp_block": (INT, [POINTER, I64, I64, I64, I64]),
    "sp_atomic": (INT, [POINTER, I64, I64, I64, I64, I64]),
    "sp_wait": (INT, [POINTER, POINTER, I64, I64, I64]),
    "sp_flush": (INT, [POINTER]),
    "sp_exchange": (INT, [POINTER, POINTER]),
    "sp_exchange_post": (INT, [POINTER]),
    "sp_set_sizes": (I64, [POINTER, POINTER, I64]),
    "sp_open_group": (I64, [POINTER, I64, POINTER, I64, I64]),
    "sp_exchange_wait": (INT, [POINTER, I64, I64, I64, I64]),
    "sp_finish": (INT, [POINTER]),
    "sp_mark_dead": (INT, [POINTER, I64]),
    "sp_undo_die": (None, [I64, I64]),
    "sp_undo_roll_back": (INT, [POINTER]),
    "sp_subscribe": (None, [POINTER]),
    "sp_lost": (None, [POINTER, POINTER]),
    "sp_abort": (INT, [POINTER, ctypes.c_char_p]),
    "sp_log_lock": (INT, [POINTER, I64]),
    "sp_log_unlock": (INT, [POINTER, I64]),
    "sp_log_count": (I64, [POINTER, I64]),
    "sp_log_copy": (None, [POINTER, I64, I64, POINTER]),
    "sp_log_advance": (None, [POINTER, I64, I64]),
    "sp_ranks": (None, [POINTER, POINTER]),
    "sp_bytes_by_class": (None, [POINTER, POINTER]),
    "sp_conditions": (None, [POINTER, I64, I64, POINTER]),
    "sp_missing": (I64, [POINTER, I64, I64, POINTER, POINTER]),
    "sp_hashes": (I64, [POINTER, I64, POINTER]),
    "sp_busy": (None, [POINTER, POINTER]),
    "sp_post": (I64, [POINTER, POINTER, I64, I64]),
    "sp_schedule": (I64, [POINTER, POINTER, I64, POINTER, I64, I64, I64]),
    "sp_retire_stream": (None, [POINTER, I64]),
    "sp_inbox": (I64, [POINTER, POINTER, I64]),
    "sp_sizes": (None, [POINTER]),
    "sp_in_use": (None, [POINTER, POINTER]),
    "sp_facts": (None, [POINTER, I64, I64, POINTER]),
    "sp_reason": (ctypes.c_char_p, [POINTER]),
    "sp_set_trace": (None, [POINTER, INT]),
    "sp_drain": (INT, [POINTER]),
    "sp_measure": (INT, [POINTER]),
    "sp_pace": (INT, [POINTER]),
    "sp_start_clock": (INT, [POINTER, INT]),
    "sp_wall": (I64, [POINTER, I64, POINTER, POINTER]),
    "sp_set_jitter": (None, [POINTER, I64, I64, ctypes.c_uint64]),
}


def library_path() -> Path | None:
    """Where the built core is, if it was built."""
    return next(iter(sorted(Path(__file__).parent.glob("_core*.so"))), None)


def library_for(keep_going: bool) -> str | None:
    """The build a run uses: the one with the undo journal where survivors go on, if it was built."""
    undo = Path(__file__).parent / "_undo.so"
    return str(undo) if keep_going and undo.exists() else None


@cache
def load(path: str | None = None) -> Any:
    """The core as a ctypes library; `path` for another build of it. Raises UsageError: it was not built."""
    found = path or library_path()
    if not found:
        raise UsageError(
            "the compiled engine core was not built; use the python engine or install a C compiler"
        )
    lib = ctypes.CDLL(str(found))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    sizes = (I64 * 6)()
    lib.sp_sizes(sizes)
    dtypes = (POST_DTYPE, INBOX_DTYPE, LOG_DTYPE, RECORD_DTYPE, STEP_DTYPE, SEND_DTYPE)
    if lib.sp_version() != VERSION or list(sizes) != [d.itemsize for d in dtypes]:
        raise UsageError(f"{found} was built from other sources: install the package again")
    return lib


def available() -> bool:
    """Whether the core was built and loads."""
    return library_path() is not None and not why_unusable()


@cache
def why_unusable() -> str:
    """What keeps a core that was built from being used, "" where nothing does or none was built."""
    try:
        if library_path() is not None:
            load()
    except (OSError, AttributeError, UsageError) as e:
        return str(e)
    return ""
