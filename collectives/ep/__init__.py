"""Expert parallelism: six schemes behind one interface, and DeepEP's `Buffer` over them."""

from collectives.ep.buffer import Buffer, Config
from collectives.ep.routing import from_gate, imbalance, routing
from collectives.ep.scheme import EpHandle, ExpertParallel, Posted
from collectives.ep.traffic import SCHEMES

__all__ = [
    "SCHEMES",
    "Buffer",
    "Config",
    "EpHandle",
    "ExpertParallel",
    "Posted",
    "from_gate",
    "imbalance",
    "routing",
]
