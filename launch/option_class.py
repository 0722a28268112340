"""A command's options as the fields of a frozen dataclass: written once, passed on as one value."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def takes(options: type[Any]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Let typer see a dataclass's fields, in their order, in place of a command's last parameter.

    A field is annotated as a command's parameter would be (`Annotated[…, typer.Option(…)]`). Parameters
    before the last one stay what they are.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        *others, _ = inspect.signature(command, eval_str=True).parameters.values()
        names = [parameter.name for parameter in others]

        def with_options(**given: Any) -> int:
            kept = [given.pop(name) for name in names]
            return command(*kept, options(**given))

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in [*others, *_fields(options)]]
        with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
        with_options.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": int}
        with_options.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
        return with_options

    return decorate


def _fields(options: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(options, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(options)
    ]
