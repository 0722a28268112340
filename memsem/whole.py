"""What counts as a whole number where a caller gives one."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number, of Python or NumPy; a truth value is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
