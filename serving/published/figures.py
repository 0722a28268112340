"""From what the ranks measured to the published rows' own quantities. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from serving.price_tables import COMBINE, DISPATCH, PUBLISHED_SHARES
from serving.published import cases
from serving.published.cases import Case
from serving.published.system import load_system
from serving.published.timeline import WARM

Value = float | list[float]
_US, _MS, _S = 1e6, 1e9, 1e12
_SHARES: Final = {
    "QuantBatchMatmul": "quant_batch_matmul",
    "MultiLatentAttention": "mla",
    COMBINE: "combine",
    DISPATCH: "dispatch",
    "Others": "others",
    "MlaPreprocess": "mla_preprocess",
}
"""Kernel -> its word in rows of shares."""


@dataclass(frozen=True)
class Figures:
    """What one case comes to. found: as `Timeline.over_all`, with `kernels_ps`, `after_ps`, `layers`."""

    case: Case
    found: Mapping[str, Any]

    @property
    def layer_ps(self) -> float:
        """A MoE layer; of two microbatches both halves."""
        ends = self.found["ends_ps"]
        return float((ends[-1] - ends[WARM - 1]) / (len(ends) - WARM))

    @property
    def iteration_ms(self) -> float:
        """From the common start to the end of the last head; layers beyond those measured at their mean."""
        ends, layers = self.found["ends_ps"], self.found["layers"]
        rest = (layers - len(ends)) * self.layer_ps
        return float(ends[-1] + rest + self.found["after_ps"]) / _MS

    @property
    def tpot_ms(self) -> float:
        """Time of an output token: an iteration and its bubble over the tokens a sequence gets."""
        system = load_system(self.case.system)
        tokens = 1 + (system.acceptance if self.case.mtp else 0)
        return (self.iteration_ms + system.bubble_ps / _MS) / tokens

    @property
    def tokens_per_s(self) -> float:
        """Of a chip."""
        machine = load_system(self.case.system).whole.profile
        dies = machine.integer("pod.dies_per_chip")
        took_ms = self.iteration_ms if self.case.phase == "prefill" else self.tpot_ms
        return float(dies * self.case.batch * 1000 / took_ms)

    @property
    def per_tflops(self) -> float:
        """Tokens a second for each INT8 TOPS of a chip."""
        machine = load_system(self.case.system).whole.profile
        peak = float(machine.value("die.int8_tops")) * machine.integer("pod.dies_per_chip")
        return self.tokens_per_s / peak

    def share(self, kernel: str) -> float:
        """Percent of the iteration: of kernels as charged, of exchanges as measured."""
        if kernel in (DISPATCH, COMBINE):
            took = self.found["layers"] * self.call_us(kernel) * _US
        else:
            took = self.found["kernels_ps"][kernel]
        return 100 * float(took) / (self.iteration_ms * _MS)

    def call_us(self, kernel: str) -> float:
        """The average dispatch or combine over an iteration's layers."""
        calls = self.found["dispatch" if kernel == DISPATCH else "combine"]
        layers = self.found["layers"]
        return float((WARM * calls["warm_ps"] + (layers - WARM) * calls["mean_ps"]) / layers / _US)

    def as_dict(self) -> dict[str, float]:
        """For a reader of a case of their own."""
        told = {
            "iteration_ms": self.iteration_ms,
            "layer_us": self.layer_ps / _US,
            "tokens_per_s_chip": self.tokens_per_s,
            "tokens_per_s_tflops": self.per_tflops,
            "busiest_die": self.found["busiest"],
        }
        if self.case.phase == "decode":
            told["tpot_ms"] = self.tpot_ms
        if self.case.phase == "decode" and self.case.microbatches == 2:
            told |= {f"{name}_stream_us": self.found[f"{name}_ps"] / _US for name in ("attention", "moe")}
        return told


def values(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Value]:
    """Values of the published rows, from what was found by name of the case; those of missing cases are
    missing."""
    made = {case.name: Figures(case, found[case.name]) for case in cases.PUBLISHED if case.name in found}

    def has(*wanted: Case) -> list[Figures] | None:
        return [made[case.name] for case in wanted] if all(case.name in made for case in wanted) else None

    def fastest(case: Case) -> Figures | None:
        """Of one stream and two, where both are measured: as a system would choose."""
        known = [case] if case.phase == "prefill" else {case, cases.one_stream(case)} & set(cases.PUBLISHED)
        all_of = has(*known)
        return max(all_of, key=lambda one: one.tokens_per_s) if all_of else None

    told: dict[str, Value] = {}
    if both := has(cases.COLOCATED):
        told |= _colocated(both[0])
    if both := has(cases.COLOCATED, cases.COLOCATED_NO_MTP):
        told["fs.mtp.latency_reduction_max"] = 100 * (1 - both[0].tpot_ms / both[1].tpot_ms)
    for case, rows in _SPEED.items():
        if one := fastest(case):
            told |= _speed(one, rows)
    for case, row in _GAINS.items():
        if both := has(case, cases.one_stream(case)):
            told[row] = gain(both[0], both[1])
    ends = [gain(on, off) for on, off in [(fastest(a), fastest(b)) for a, b in _MTP] if on and off]
    if len(ends) == len(_MTP):
        told["cm.mtp_gain"] = ends
    return told | _layers(has(cases.LONG_96), has(cases.LONG_96_NO_MTP))


_SPEED: Final = {
    cases.LONG_96: ("cm.decode.cm_infer", "cm.decode.slo50.4096_256"),
    cases.SHORT_128: ("cm.decode.slo50.1024_1024",),
    cases.LONG_24: ("cm.decode.slo30.4096_256",),
    cases.PREFILL: ("cm.prefill.cm_default",),
}
_GAINS: Final = {
    cases.LONG_64: "cm.microbatch_decode_bs64",
    cases.LONG_128: "cm.microbatch_decode_bs128",
    cases.PREFILL: "cm.microbatch_prefill",
}
_MTP: Final = (
    (cases.LONG_128, cases.LONG_128_NO_MTP),
    (cases.LONG_24, cases.LONG_24_NO_MTP),
)


def gain(better: Figures, other: Figures) -> float:
    """How much more throughput, percent."""
    return 100 * (better.tokens_per_s / other.tokens_per_s - 1)


def _speed(one: Figures, rows: tuple[str, ...]) -> dict[str, Value]:
    told: dict[str, Value] = {}
    for row in rows:
        if one.case.phase == "decode":
            told[f"{row}.tpot"] = one.tpot_ms
        told[f"{row}.tput"] = one.tokens_per_s
        told[f"{row}.eff"] = one.per_tflops
    return told


def _layers(on: list[Figures] | None, off: list[Figures] | None) -> dict[str, Value]:
    told: dict[str, Value] = {}
    if on:
        told["cm.mtp_layer_on"] = on[0].layer_ps / _US
        streams = (on[0].found["attention_ps"], on[0].found["moe_ps"])
        told["cm.decode_stream_time"] = sum(streams) / 2 / _US
        told["cm.mtp_tokens_per_step"] = 1 + load_system(on[0].case.system).acceptance
    if off:
        told["cm.mtp_layer_off"] = off[0].layer_ps / _US
    return told


def _colocated(one: Figures) -> dict[str, Value]:
    told: dict[str, Value] = {
        "iteration": one.iteration_ms,
        "tpot": one.tpot_ms,
        "tput_chip": one.tokens_per_s,
        "tput_total": one.tokens_per_s * one.case.ranks / 2,
        "bubble": load_system(one.case.system).bubble_ps / _MS,
        "acceptance": 100 * load_system(one.case.system).acceptance,
        "global_batch": one.case.batch * one.case.ranks,
        "dispatch_combine_share": one.share(DISPATCH) + one.share(COMBINE),
        "moe_calls_per_iteration": one.found["layers"],
    }
    for kernel in PUBLISHED_SHARES:
        share = one.share(kernel)
        told[f"share.{_SHARES[kernel]}"] = share
        told[f"per_layer.{_SHARES[kernel]}"] = share / 100 * one.iteration_ms * 1000 / _LAYERS
    for kernel, word in ((DISPATCH, "dispatch"), (COMBINE, "combine")):
        told[f"{word}.avg"] = one.call_us(kernel)
        told[f"{word}.min"] = one.found[word]["min_ps"] / _US
        told[f"{word}.max"] = one.found[word]["max_ps"] / _US
    return {f"e2e.coloc.{name}": value for name, value in told.items()}


_LAYERS: Final = 61
"""What the published per-layer figures divide by."""
