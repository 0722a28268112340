"""Protection domains: what may be used together."""

from __future__ import annotations

from memsem.verbs.context import Context
from memsem.verbs.resource import Resource


class PD(Resource):
    """A protection domain of a context."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.context = context

    def alloc(self, nbytes: int) -> int:
        """Return the address of `nbytes` of my heap, to be registered. Raises: PyverbsRDMAError (ENOMEM)."""
        return self.context.take_memory(nbytes)
