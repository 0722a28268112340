"""What XCCL's send and receive are charged: numbers of the machine, and the library's sizes of rings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collectives.libraries import load_library
from emulator.npu import ceil_ps
from emulator.profile import Profile
from emulator.topology import put_latency_ps, write_bytes_per_s


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
    """Read the library's file and the machine's profile.

    Args:
        overrides: numbers of XCCL's file by key ("ring.slots"), for what-if runs.

    Raises:
        UsageError: as `emulator.profile.load_entries`.
    """
    own = load_library("xccl", overrides).numbers
    write = write_bytes_per_s(profile)
    port = profile.per_s("ub.line_gb_per_s")
    local, chip, node, pod = write
    return Numbers(
        core_per_s=profile.per_s("mte.core_gb_per_s"),
        local_per_s=2 * profile.per_s("ub.self_gb_per_s"),
        write_per_s=write,
        port_per_s=(local, chip, max(node, port), max(pod, port)),
        latency_ps=put_latency_ps(profile),
        chunk_bytes=own.num_bytes("ring.chunk_bytes"),
        slots=own.integer("ring.slots"),
        record_bytes=own.num_bytes("format.record_bytes"),
        cores=profile.integer("die.aiv_cores"),
    )
