"""Options of how the model is computed, with vLLM's spelling."""

from typing import Annotated, Literal

import typer

from emulator.errors import UsageError

QuantizationOption = Annotated[
    str | None, typer.Option("--quantization", help="int8: weights, activations, dispatched rows and KV.")
]


def quantization_of(text: str | None) -> Literal["int8"] | None:
    """Check `--quantization`.

    Raises:
        UsageError: anything but int8.
    """
    if text is None or text == "int8":
        return "int8" if text else None
    raise UsageError(f"--quantization {text}: only int8 is supported; leave it out for float32")
