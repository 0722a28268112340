"""Ways of moving bytes between ranks under one cost model; so far symmetric windows (memory semantics)."""

from memsem.window import Window

__all__ = ["Window"]
