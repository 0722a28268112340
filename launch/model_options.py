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
SlowDie = Annotated[
    list[str] | None,
    typer.Option("--slow-die", metavar="RANK=FACTOR", help="A die computes so many times as long."),
]
GcPause = Annotated[
    list[str] | None,
    typer.Option("--gc-pause", metavar="RANK=S:MS", help="From second S on a rank rests once, for MS."),
]
LaunchJitter = Annotated[
    float, typer.Option("--launch-jitter", metavar="US", help="Mean delay of all a rank starts, µs.")
]
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
