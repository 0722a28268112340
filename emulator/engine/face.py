"""Choosing an implementation: the compiled core, or its Python twin with the same results."""

from typing import Any

from emulator.engine.api import Engine, EngineConfig, EngineKind

__all__ = ["core_available", "engine_attach", "engine_bytes", "engine_create"]


def core_available() -> bool:
    """Whether the compiled core was built and loads here."""
    from emulator.engine import native

    return native.available()


def engine_bytes(cfg: EngineConfig, kind: EngineKind) -> int:
    """Size of the shared buffer. It must be zeroed, aligned to 64 bytes, and may be mapped anywhere."""
    return int(_module(kind).engine_bytes(cfg))


def engine_create(buf: Any, cfg: EngineConfig, kind: EngineKind) -> None:
    """Initialise the shared buffer (writable, zeroed); exactly one process does, before anyone attaches."""
    _module(kind).engine_create(buf, cfg)


def engine_attach(buf: Any, cfg: EngineConfig, kind: EngineKind, rank: int) -> Engine:
    """Rank's engine over the shared buffer. Once per rank and process; keeps a reference to `buf`."""
    engine: Engine = _module(kind).attach(buf, cfg, rank)
    return engine


def _module(kind: EngineKind) -> Any:
    if kind == "c":
        from emulator.engine import native

        return native
    from emulator.engine import twin

    return twin
