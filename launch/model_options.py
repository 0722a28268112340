"""Options of how the model is computed, with vLLM's spelling."""

from typing import Annotated, Literal

import typer

from emulator.errors import UsageError
from serving.model.drafters import parse_acceptance

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


MtpOption = Annotated[int, typer.Option("--mtp", min=0, max=2, help="Draft layers of speculative decoding.")]
AcceptanceOption = Annotated[
    str | None,
    typer.Option("--mtp-acceptance", help="a1[,a2]: how often drafts are right, instead of as they are."),
]


def acceptance_of(text: str | None, layers: int) -> tuple[float, ...]:
    """Check `--mtp-acceptance`.

    Raises:
        UsageError: no drafts, or not a share for each draft layer.
    """
    if text is None:
        return ()
    if not layers:
        raise UsageError(f"--mtp-acceptance {text}: there are no drafts; give --mtp 1 or --mtp 2")
    return parse_acceptance(text, layers)
