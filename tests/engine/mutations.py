"""The Python engine with one rule of posts broken: what a test must notice."""

from types import SimpleNamespace

from emulator.engine import twin
from emulator.engine.posts import ORD_FENCE, ORD_STREAM, ORD_STRONG, ST_OK, ST_RNR
from emulator.engine.twin_core import Core
from emulator.engine.twin_memory import Memory


class NoFence(Core):
    """A fence orders nothing."""

    def order_bits(self, op):
        return super().order_bits(op) & ~ORD_FENCE


class NoStrong(Core):
    """A strong operation waits for none."""

    def order_bits(self, op):
        return super().order_bits(op) & ~ORD_STRONG


class SignalFree(Core):
    """What is of a stream does not wait for the earlier ones: a signal passes its data."""

    def order_bits(self, op):
        return super().order_bits(op) & ~ORD_STREAM


class RnrDelivers(Core):
    """A send without a receive counts as delivered."""

    def refuse(self, t, key, p, op, status):
        if status != ST_RNR:
            super().refuse(t, key, p, op, status)
            return
        self.acknowledge(t, p, op)
        self.gone(t, op)


class FlushLost(Core):
    """A failed stream forgets what is behind the failure."""

    def flush(self, t, op):
        op.silent = True
        super().flush(t, op)


class MatchAnyOrder(Core):
    """The latest that fits."""

    def first(self, found):
        return found[-1] if found else None


class GuardOpen(Core):
    """Any memory is open, any queue is there."""

    def guards(self, p, op):
        return ST_OK


class OnePlane(Memory):
    """Lookahead knows the latencies of plane 0 only."""

    def seen_planes(self):
        return [self.cfg]


BROKEN = {
    "NO_FENCE": NoFence,
    "NO_STRONG": NoStrong,
    "SIGNAL_FREE": SignalFree,
    "RNR_DELIVERS": RnrDelivers,
    "FLUSH_LOST": FlushLost,
    "MATCH_ANY_ORDER": MatchAnyOrder,
    "GUARD_OPEN": GuardOpen,
    "LOOK_ONE_PLANE": None,
}


def broken_twin(rule: str | None) -> SimpleNamespace:
    """An engine module with one wrong rule; None breaks nothing."""

    def create(buf, cfg):
        twin.engine_create(buf, cfg, OnePlane if rule == "LOOK_ONE_PLANE" else Memory)

    core = BROKEN[rule] if rule else None
    attach = type(rule, (twin.TwinEngine,), {"core_class": core}) if core else twin.TwinEngine
    return SimpleNamespace(engine_bytes=twin.engine_bytes, engine_create=create, attach=attach)
