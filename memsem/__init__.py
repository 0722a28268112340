"""Ways of moving bytes between ranks under one cost model: symmetric windows (memory semantics) are here;
`memsem.verbs` and `memsem.message` are packages of their own."""

from memsem.heap import Piece, SymmetricHeap
from memsem.operations import Immediate, Pending
from memsem.ordering import OrderFlags
from memsem.team import Team
from memsem.window import Window

__all__ = ["Immediate", "OrderFlags", "Pending", "Piece", "SymmetricHeap", "Team", "Window"]
