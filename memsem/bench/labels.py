"""Where the numbers behind a benchmark figure come from: the weakest label among the profile's keys it uses.

A figure put together from several published numbers is at best derived, and so is every work request and
message: their parts were published one by one, their sum was not.
"""

from __future__ import annotations

from emulator.profile import LABELS, OVERRIDE, Profile
from memsem.bench.shapes import BenchSpec

_CLASSES = {"same-chip": "chip", "same-node": "intra", "cross-node": "inter"}
_ORDER = (*LABELS, OVERRIDE)
_DMA = ("dma.start_us", "dma.block_us", "dma.gb_per_s")


def label_of(profile: Profile, spec: BenchSpec) -> str:
    """Return measured, published, derived, assumed or override."""
    if spec.path != "mem":
        return path_label(profile, spec.path)
    cls = _CLASSES[spec.pair]
    direction = "write" if spec.op in ("put", "put_signal") else "read"
    keys = [f"ub.latency_{cls}_us"]
    if spec.op != "cas" and (spec.kind != "lat" or max(spec.sizes) > 4096):
        keys.append(f"ub.{direction}_{cls}_gb_per_s")
    keys += _DMA if spec.engine == "dma" else ()
    return max((profile.entry(key).label for key in keys), key=_ORDER.index)


def path_label(profile: Profile, path: str) -> str:
    """Return the label of all figures of a path together: "mem" by mte at any distance, "verbs" or "mpi"."""
    if path != "mem":
        section = {"verbs": "rdma", "mpi": "message"}[path]
        overridden = any(e.label == OVERRIDE for key, e in profile.items() if key.startswith(f"{section}."))
        return OVERRIDE if overridden else "derived"
    keys = [key for cls in _CLASSES.values() for key in (f"ub.latency_{cls}_us", f"ub.write_{cls}_gb_per_s")]
    return max((profile.entry(key).label for key in keys), key=_ORDER.index)
