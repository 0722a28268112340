"""Options of `vllm serve` that are not served here, each with what to do instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from emulator.errors import UsageError
from emulator.profile import nearest

_ONLY: Final = "there is one way here"
REFUSED: Final[dict[str, str]] = {
    "--allowed-origins": "put a proxy in front of the server",
    "--attention-backend": _ONLY,
    "--chat-template": "the checkpoint's own template is used (tokenizer_config.json)",
    "--compilation-config": "steps are priced as a captured graph",
    "--config": "write the options out",
    "--cpu-offload-gb": "weights stay in the die's memory; --dram-blocks is host memory for KV",
    "--data-parallel-backend": _ONLY,
    "--data-parallel-address": "all ranks are on this host",
    "--device": "the device is the emulated NPU die; --pod names its machine",
    "--distributed-executor-backend": "ranks are processes under mpirun",
    "--dtype": "the functional model computes in float32; --quantization int8 is the other way",
    "--enable-auto-tool-choice": "tools are not done",
    "--enable-eplb": "use --eplb xdeepserve or --eplb deepseek",
    "--eplb-config": "use --eplb, --eplb-step-interval and --redundant-experts",
    "--enable-lora": "adapters are not done",
    "--lora-modules": "adapters are not done",
    "--enable-request-id-headers": "answers bear their number in `id`",
    "--enforce-eager": "steps are priced as a captured graph",
    "--generation-config": "the checkpoint's generation_config.json is used",
    "--gpu-memory-utilization": "use --num-gpu-blocks-override, or --set die.reserved_gb=X",
    "--guided-decoding-backend": "guided decoding is not done",
    "--hf-overrides": "edit the checkpoint's config.json",
    "--kv-cache-dtype": "--quantization int8 has INT8 KV; --set cost.kv_latent_bytes=2 prices it otherwise",
    "--kv-transfer-config": "prefill and decode are not served apart",
    "--limit-mm-per-prompt": "models of text alone are served",
    "--load-format": "checkpoints are safetensors; make-checkpoint writes one",
    "--max-logprobs": "20 is the most",
    "--max-parallel-loading-workers": "ranks map one file",
    "--num-redundant-experts": "use --redundant-experts",
    "--num-speculative-tokens": "use --mtp 1 or --mtp 2",
    "--override-generation-config": "edit the checkpoint's generation_config.json",
    "--pipeline-parallel-size": "layers are not cut over ranks: every rank has all of them",
    "--reasoning-parser": "reasoning is not told from the answer",
    "--revision": "MODEL is a directory",
    "--root-path": "put a proxy in front of the server",
    "--scheduling-policy": "requests come by priority, then by arrival",
    "--speculative-config": "use --mtp N, and --mtp-acceptance for drafts of a set quality",
    "--ssl-certfile": "put a proxy in front of the server",
    "--ssl-keyfile": "put a proxy in front of the server",
    "--swap-space": "a preempted request is computed anew; --dram-blocks keeps prefixes in host memory",
    "--task": "models that generate are served",
    "--tokenizer": "the checkpoint's own tokenizer.json is used",
    "--tokenizer-mode": _ONLY,
    "--tool-call-parser": "tools are not done",
    "--uds": "use --host and --port",
}
"""Option -> what to say; `--no-` forms and short ones are found too."""
_SHORT: Final = {"-pp": "--pipeline-parallel-size"}
NEEDLESS: Final = frozenset({
    "--enable-expert-parallel", "--trust-remote-code", "--disable-log-requests", "--no-enable-log-requests",
    "--disable-log-stats", "--disable-uvicorn-access-log", "--async-scheduling",
})  # fmt: skip
"""Flags that ask for what is so anyway, or for nothing that is here."""


def check_unknown(words: Sequence[str], known: Sequence[str]) -> None:
    """Refuse what the parser has left over.

    Args:
        words: arguments it did not know. known: options it knows.

    Raises:
        UsageError: one line on the first of them that means something.
    """
    for word in sorted(words, key=lambda word: not word.startswith("-")):
        name = _SHORT.get(word, word.partition("=")[0])
        if name in NEEDLESS:
            continue
        said = REFUSED.get(name, REFUSED.get(name.replace("--no-", "--", 1)))
        if said is not None:
            raise UsageError(f"{word.partition('=')[0]}: not an option here: {said}")
        if name.startswith("-"):
            raise UsageError(f"no such option: {name}{nearest(name, [*known, *REFUSED])}")
        raise UsageError(f"unexpected argument {word!r}; MODEL is the one argument")
