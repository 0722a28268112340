"""`from superpod import LLM, SamplingParams`: the emulated pod as a Python program uses it.

Each name loads its module when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launch.llm import LLM, CompletionOutput, RequestOutput
    from serving.model.sampling_params import SamplingParams

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams"]

_HOME = {
    "LLM": "launch.llm",
    "CompletionOutput": "launch.llm",
    "RequestOutput": "launch.llm",
    "SamplingParams": "serving.model.sampling_params",
}


if not TYPE_CHECKING:  # else any name at all would pass the type check

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
