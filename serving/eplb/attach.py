"""A rank's balancer, put together and hooked into its engine."""

from __future__ import annotations

from functools import partial

from emulator import Device
from serving.ahead import CommonParts
from serving.engine import RankRecord, ServingEngine
from serving.eplb.balancer import Balancer
from serving.eplb.room import home_table, move_prices, weights_bytes
from serving.forward import Forward
from serving.model.model import Model


def balance(
    engine: ServingEngine,
    forward: Forward,
    model: Model,
    device: Device,
    common: CommonParts,
    record: RankRecord,
) -> Balancer:
    """Put a rank's balancer together and let it act between steps. Collective: costs a barrier."""
    job, config, placement = common.job, common.config, common.placement
    assert job.eplb is not None
    balancer = Balancer(
        device=device,
        options=job.eplb,
        placement=placement,
        home=home_table(job, config, placement),
        redundant=job.redundant_experts,
        layers=[layer for layer in model.layers if layer.is_moe] + [mtp.layer for mtp in model.mtp],
        forward=forward,
        prices=move_prices(common.priced, tuple(common.plans), len(model.mtp)),
        record=record,
        weights_bytes=weights_bytes(config),
        announce=partial(engine.announce, "move"),
    )
    forward.observe, engine.between_steps = balancer.observe, balancer.between_steps
    engine.close = balancer.close
    return balancer
