"""The engine's configuration: what it refuses, how the compiled core reads it, and the class of a path."""

import numpy as np

from emulator.engine import api
from emulator.engine.api import EngineConfig, Int64Array, PlaneConfig
from emulator.engine.codes import LIMIT_PS
from emulator.engine.posts import MAX_PLANES
from emulator.errors import UsageError


def check_config(cfg: EngineConfig) -> None:
    """Refuse what the engine cannot represent."""
    if not 1 <= cfg.num_ranks <= api.MAX_RANKS:
        raise UsageError(f"num_ranks is {cfg.num_ranks}, must be 1 to {api.MAX_RANKS}")
    if cfg.dies_per_chip < 1 or cfg.dies_per_node < 1 or cfg.dies_per_node % cfg.dies_per_chip:
        raise UsageError(
            f"dies_per_node ({cfg.dies_per_node}) must be a positive multiple of "
            f"dies_per_chip ({cfg.dies_per_chip})"
        )
    if cfg.dies_per_node > 1023:
        raise UsageError(f"dies_per_node is {cfg.dies_per_node}, at most 1023")
    _check_plane(0, cfg)
    if len(cfg.planes) >= MAX_PLANES:
        raise UsageError(f"{len(cfg.planes) + 1} planes, at most {MAX_PLANES}")
    for i, plane in enumerate(cfg.planes):
        _check_plane(i + 1, plane)
    positive = (
        "conditions",
        "inbox_entries",
        "call_price_ps",
        "poll_price_ps",
        "poll_max_polls",
        "words_per_rank",
        "channels",
        "log_entries",
    )
    for name in positive:
        if getattr(cfg, name) < 1:
            raise UsageError(f"{name} is {getattr(cfg, name)}, must be at least 1")
    if cfg.channels > api.MAX_CHANNELS:
        raise UsageError(f"channels is {cfg.channels}, at most {api.MAX_CHANNELS}")
    if cfg.poll_price_ps * cfg.poll_max_polls > LIMIT_PS:
        raise UsageError("poll_price_ps * poll_max_polls is more than 2**60 ps")
    if cfg.schedule_bytes < 0 or cfg.schedule_bytes % 64:
        raise UsageError(f"schedule_bytes is {cfg.schedule_bytes}, must be a multiple of 64, at least 0")
    if min(cfg.wall) < 0:
        raise UsageError(f"wall: no field may be negative, is {cfg.wall}")
    if cfg.chain_steps < 0 or cfg.trace_records < 0 or cfg.livelock_polls < 1 or cfg.wall_deadline_s <= 0:
        raise UsageError(
            "chain_steps and trace_records must be at least 0, livelock_polls and wall_deadline_s positive"
        )


def _check_plane(number: int, plane: EngineConfig | PlaneConfig) -> None:
    which = f"plane {number}: " if number else ""
    for name in PlaneConfig._fields:
        four, latency = getattr(plane, name), name.endswith("_ps")
        low, high = (0, LIMIT_PS) if latency else (1, 1 << 62)
        if len(four) != 4 or min(four) < low or max(four) > high:
            what = "times of at least 0 ps" if latency else "bandwidths of at least 1 B/s"
            raise UsageError(f"{which}{name} must be four {what}, is {four}")


def planes_of(cfg: EngineConfig) -> list[PlaneConfig]:
    """All planes, number 0 first."""
    return [PlaneConfig(*(getattr(cfg, name) for name in PlaneConfig._fields)), *cfg.planes]


def config_numbers(cfg: EngineConfig) -> Int64Array:
    """The configuration as the layout's config_t."""
    flat = [cfg.num_ranks, cfg.dies_per_chip, cfg.dies_per_node]
    for plane in planes_of(cfg):
        for four in plane:
            flat.extend(four)
    flat += [0] * (24 * (MAX_PLANES - 1 - len(cfg.planes)))
    flat += [cfg.call_price_ps, cfg.poll_price_ps, cfg.poll_max_polls, cfg.words_per_rank, cfg.channels]
    flat += [cfg.chain_steps, cfg.log_entries, int(cfg.lookahead), max(1, int(cfg.wall_deadline_s * 1000))]
    flat += [int(cfg.keep_going), cfg.livelock_polls, cfg.trace_records, cfg.node_bytes]
    flat += [cfg.conditions, cfg.inbox_entries, 1 + len(cfg.planes), cfg.schedule_bytes, *cfg.wall]
    return np.array(flat, dtype=np.int64)


def link_class(cfg: EngineConfig, a: int, b: int) -> int:
    """Class of the path between two ranks."""
    if a == b:
        return api.SELF
    if a // cfg.dies_per_chip == b // cfg.dies_per_chip:
        return api.CHIP
    return api.NODE if a // cfg.dies_per_node == b // cfg.dies_per_node else api.POD


def wrap(value: int) -> int:
    """The value as a signed 64-bit word."""
    return (int(value) + (1 << 63)) % (1 << 64) - (1 << 63)
