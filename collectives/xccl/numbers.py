"""The library's own numbers of XCCL point to point, from `p2p.toml`, held against the machine's profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from emulator.npu import ceil_ps
from emulator.profile import Profile, load_entries
from emulator.profile_keys import KeySpec
from emulator.topology import put_latency_ps, write_bytes_per_s

_FILE: Final = Path(__file__).with_name("p2p.toml")
SPECS: Final = {
    "p2p.core_gb_per_s": KeySpec("GB/s", 0.001, 100_000),
    "p2p.port_gb_per_s": KeySpec("GB/s", 0.001, 100_000),
    "p2p.chunk_bytes": KeySpec("B", 32, 1 << 30, integer=True),
    "p2p.slots": KeySpec("slots", 1, 1 << 20, integer=True),
    "p2p.record_bytes": KeySpec("B", 32, 32, integer=True),
}


@dataclass(frozen=True)
class Numbers:
    """What a transfer is priced with. Rates in B/s, times in ps; tuples by link class.

    core_per_s: one AIV core, each of its two stages. local_per_s: all cores of a die together on its own
    memory, one way. write_per_s: what the engine's ports take for plain writes. port_per_s: what XCCL's
    stores reach; at least write_per_s. latency_ps: first byte of a store.
    """

    core_per_s: int
    local_per_s: int
    write_per_s: tuple[int, int, int, int]
    port_per_s: tuple[int, int, int, int]
    latency_ps: tuple[int, int, int, int]
    chunk_bytes: int
    slots: int
    record_bytes: int
    cores: int

    def charged(self, cls: int, nbytes: int) -> int:
        """Bytes that keep an engine's port of `write_per_s` as long as `nbytes` keep one of `port_per_s`."""
        return -(-nbytes * self.write_per_s[cls] // self.port_per_s[cls])

    def port_ps(self, cls: int, nbytes: int) -> int:
        """How long the ports are taken."""
        return ceil_ps(self.charged(cls, nbytes), self.write_per_s[cls])


def load_numbers(profile: Profile, overrides: Mapping[str, str | float] | None = None) -> Numbers:
    """Read `p2p.toml` and the machine's profile.

    Args:
        overrides: numbers of `p2p.toml` by key ("p2p.slots"), for what-if runs.

    Raises:
        UsageError: as `emulator.profile.load_entries`.
    """
    own = load_entries(_FILE, SPECS, overrides or {}, "library")
    write = write_bytes_per_s(profile)
    port = own.per_s("p2p.port_gb_per_s")
    local, chip, node, pod = write
    return Numbers(
        core_per_s=own.per_s("p2p.core_gb_per_s"),
        local_per_s=2 * profile.per_s("ub.self_gb_per_s"),
        write_per_s=write,
        port_per_s=(local, chip, max(node, port), max(pod, port)),
        latency_ps=put_latency_ps(profile),
        chunk_bytes=own.num_bytes("p2p.chunk_bytes"),
        slots=own.integer("p2p.slots"),
        record_bytes=own.num_bytes("p2p.record_bytes"),
        cores=profile.integer("die.aiv_cores"),
    )
