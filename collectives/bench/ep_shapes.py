"""What a benchmark of expert parallelism measures, and its result in the shape of Mooncake's. Pure, but for
reading the choices of a gate.

Shape and field names as Mooncake `mooncake-ep/benchmarks/ep_benchmark` (README and `metrics.py`): latencies
in ms with p50, p90, p99, p999 and mean, over iterations and ranks; tokens of all ranks a second of the mean
end-to-end time (dispatch, experts, combine); largest, least and mean load of an expert.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from collectives.ep.routing import KINDS, routing
from collectives.ep.traffic import SCHEMES
from collectives.libraries import LIBRARIES
from emulator.clock import time_said
from emulator.errors import UsageError

Int64 = npt.NDArray[np.int64]
GATE: Final = "gate"
ROUTINGS: Final = (*(kind for kind in KINDS if kind != "grouped"), GATE)
GATE_IDS: Final = "ids.npy"
GATE_WEIGHTS: Final = "weights.npy"
"""Files with the choices of a model's gate: int64 and float32 [ranks, tokens, topk]."""
PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}
_MOST_EXPERTS, _STEEPEST = 1 << 16, 16
"""Steeper, all but a few experts would have no share that a double can hold."""
_USUAL: Final = {"xccl": "xccl", "cann": "cann", "all-to-all": "cann", "agrs": "cann"}
"""Library whose costs a scheme is charged by default; DeepEP's of the machine for the others."""


class EpSpec(NamedTuple):
    """One benchmark. hidden: charged values of a row; real_hidden: really moved. library: of
    `collectives.libraries`. dtype: of dispatched values as charged, or None for the library's. max_rows: most
    rows a rank gets. planes: of pushed rows by link class. folder: of the files of a gate's choices; model,
    layer: whose gate; "" is the mini preset."""

    scheme: str
    library: str
    experts: int
    tokens: int
    topk: int
    hidden: int = 7168
    real_hidden: int = 16
    dtype: str | None = None
    routing: str = "uniform"
    hot: int = 32
    share: float = 0.9
    alpha: float = 1.0
    iterations: int = 10
    warmup: int = 1
    seed: int = 0
    max_rows: int = 1
    planes: tuple[int, ...] = (0, 0, 0, 0)
    folder: str = ""
    model: str = ""
    layer: int = -1


def usual_library(scheme: str, machine: str) -> str:
    """Library of a scheme on a machine."""
    if scheme in _USUAL and LIBRARIES[_USUAL[scheme]][0] == machine:
        return _USUAL[scheme]
    return "deepep" if machine == "h800-ib" else "deepep-ascend"


def planes_of(scheme: str, library: str) -> tuple[int, ...]:
    """Plane of pushed rows by link class. On the machine of DeepEP's own libraries a node's links and its
    NICs are planes apart: low latency sends all over the NIC, the others only what leaves the node."""
    if LIBRARIES[library][0] != "h800-ib":
        return (0, 0, 0, 0)
    return (0, 1, 1, 1) if scheme == "deepep-ll" and library == "deepep" else (0, 0, 0, 1)


def check(spec: EpSpec, ranks: int, machine: str) -> None:
    """Refuse what cannot be measured on a machine (name of a profile). Raises UsageError."""
    fitted = tuple(name for name, (where, _) in LIBRARIES.items() if where == machine)
    if not fitted:
        raise UsageError(f"--pod {machine}: no library was fitted on it; choose cloudmatrix384 or h800-ib")
    for option, word, known in (
        ("--scheme", spec.scheme, tuple(SCHEMES)),
        ("--routing", spec.routing, ROUTINGS),
        ("--library", spec.library, fitted),
    ):
        if word not in known:
            raise UsageError(f"{option} {word}: choose one of {', '.join(known)}")
    if not 1 <= spec.experts <= _MOST_EXPERTS or spec.experts % ranks:
        near = max(1, round(min(spec.experts, _MOST_EXPERTS - ranks) / ranks)) * ranks
        raise UsageError(f"--experts {spec.experts}: {ranks} ranks share them equally; nearest: {near}")
    for name, value, least, most in (
        ("--tokens", spec.tokens, 1, 1 << 16),
        ("--topk", spec.topk, 1, spec.experts),
        ("--hidden", spec.hidden, 1, 1 << 20),
        ("--real-hidden", spec.real_hidden, 1, 1 << 14),
        ("--iterations", spec.iterations, 1, 100_000),
        ("--warmup", spec.warmup, 0, 100_000),
    ):
        if not least <= value <= most:
            raise UsageError(f"{name} {value}: choose {least} to {most}")
    if spec.routing == "zipf" and not 0 <= spec.alpha <= _STEEPEST:
        raise UsageError(f"--zipf-alpha {spec.alpha}: choose 0 (uniform) to {_STEEPEST}")
    if spec.routing == "k-hot" and not (0 < spec.hot < spec.experts and 0 < spec.share < 1):
        raise UsageError(
            f"--hot-experts {spec.hot} must be 1 to {spec.experts - 1}, "
            f"--hot-fraction {spec.share} above 0 and below 1"
        )


def choices(spec: EpSpec, rank: int) -> tuple[Int64, npt.NDArray[np.float32]]:
    """Experts and weights of one rank's tokens; the same in every iteration."""
    if spec.routing == GATE:
        ids, weights = (np.load(Path(spec.folder) / name, "r") for name in (GATE_IDS, GATE_WEIGHTS))
        return np.array(ids[rank]), np.array(weights[rank])
    return routing(
        spec.routing, spec.tokens, spec.experts, spec.topk,
        rank=rank, seed=spec.seed, hot=spec.hot, share=spec.share, alpha=spec.alpha,
    )  # fmt: skip


def loads(spec: EpSpec, ranks: int) -> Int64:
    """int64 [experts]: tokens each expert gets from all ranks."""
    total = np.zeros(spec.experts, np.int64)
    for rank in range(ranks):
        total += np.bincount(choices(spec, rank)[0].ravel(), minlength=spec.experts)
    return total


def expert_load(load: Int64) -> dict[str, float]:
    """Largest, least and mean, and largest over mean."""
    mean = float(load.mean())
    return {
        "max_tokens_per_expert": float(load.max()),
        "min_tokens_per_expert": float(load.min()),
        "mean_tokens_per_expert": mean,
        "imbalance_ratio": float(load.max()) / mean if mean else 0.0,
    }


def percentiles(times_ps: Int64) -> dict[str, float]:
    """Of latencies, in ms: linear between the two nearest, and the mean."""
    ms = times_ps.ravel() / 1e9
    found = {name: float(np.percentile(ms, q)) for name, q in PERCENTILES.items()}
    return {**found, "mean": float(ms.mean())}


def result(spec: EpSpec, machine: str, times_ps: Int64, wrong: int, load: Int64) -> dict[str, Any]:
    """The whole result.

    Args:
        times_ps: int64 [ranks, iterations, 3]: dispatch, combine, end to end.
        wrong: tokens of which what came back is not what the experts made.
        load: see `loads`.
    """
    names = ("dispatch_latency_ms", "combine_latency_ms", "end_to_end_latency_ms")
    latencies = {name: percentiles(times_ps[:, :, k]) for k, name in enumerate(names)}
    each = {name: (times_ps[:, :, k].mean(axis=1) / 1e9).tolist() for k, name in enumerate(names)}
    whole = latencies["end_to_end_latency_ms"]["mean"]
    metrics = {
        **latencies,
        "tokens_per_second": spec.tokens * len(times_ps) / (whole / 1e3) if whole else 0.0,
        "expert_load": expert_load(load),
        "per_rank_stats": {f"mean_{name}": values for name, values in each.items()},
    }
    return {**_facts(spec, machine, len(times_ps)), "wrong_tokens": wrong, "metrics": metrics}


def _facts(spec: EpSpec, machine: str, ranks: int) -> dict[str, Any]:
    """What was measured."""
    facts: dict[str, Any] = {
        "benchmark": "superpod_ep",
        "backend": spec.scheme,
        "library": spec.library,
        "machine": machine,
        "world_size": ranks,
        "num_experts": spec.experts,
        "hidden_size": spec.hidden,
        "top_k": spec.topk,
        "num_tokens": spec.tokens,
        "dtype": spec.dtype or "library",
        "routing_mode": spec.routing.replace("-", "_"),
        "warmup_iters": spec.warmup,
        "iters": spec.iterations,
        "seed": spec.seed,
    }
    if spec.routing == "k-hot":
        facts |= {"hot_experts": spec.hot, "hot_fraction": spec.share}
    elif spec.routing == "zipf":
        facts["zipf_alpha"] = spec.alpha
    elif spec.routing == GATE:
        facts |= {"gate_model": spec.model or "mini preset", "gate_layer": spec.layer}
    return facts


def table(facts: dict[str, Any]) -> str:
    """The same for people: latencies in us."""
    metrics, columns = facts["metrics"], (*PERCENTILES, "mean")
    lines = [
        f"# {facts['backend']} ({facts['library']}) on {facts['machine']}: {facts['world_size']} ranks, "
        f"{facts['num_experts']} experts, {facts['num_tokens']} tokens, top-{facts['top_k']}, "
        f"hidden {facts['hidden_size']}, routing {facts['routing_mode']}; us, {time_said(facts.get('wall'))}",
        f"{'':<12}" + "".join(f"{name:>12}" for name in columns),
    ]
    for name in ("dispatch", "combine", "end_to_end"):
        row = metrics[f"{name}_latency_ms"]
        lines.append(f"{name:<12}" + "".join(f"{1e3 * row[column]:>12.2f}" for column in columns))
    load = metrics["expert_load"]
    lines += [
        f"tokens/s {metrics['tokens_per_second']:.0f}; "
        f"expert load: largest {load['max_tokens_per_expert']:.0f}, "
        f"mean {load['mean_tokens_per_expert']:.1f}, imbalance {load['imbalance_ratio']:.3f}; "
        f"wrong tokens {facts['wrong_tokens']}",
    ]
    return "\n".join(lines) + "\n"


def as_json(facts: dict[str, Any]) -> str:
    """One JSON object."""
    return json.dumps(facts, indent=2) + "\n"
