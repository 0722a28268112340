"""What no run can hold is refused before one starts."""

import pytest

from emulator.errors import UsageError
from memsem.bench.shapes import BenchSpec


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sizes": (10**23,)}, "at most 17179869184 bytes on path mem"),
        ({"sizes": (2 << 30,), "path": "verbs", "op": "write"}, "at most 1073741824 bytes on path verbs"),
        ({"batch": 100_000}, "at most 1024 operations in flight"),
        ({"iterations": 10**7}, "at most 100000 a size"),
    ],
)
def test_bounds(change: dict[str, object], said: str) -> None:
    fields = {"kind": "lat", "op": "put", "path": "mem", "engine": "mte", "pair": "same-node", "sizes": (8,)}
    rest = {"iterations": 1, "warmup": 0, "batch": 1, "peer": 1, "sliding": False}
    BenchSpec(**{**fields, **rest})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=said):
        BenchSpec(**{**fields, **rest, **change})  # type: ignore[arg-type]
