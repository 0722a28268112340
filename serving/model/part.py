"""One of several ranks that compute a layer together: which heads and columns are its own.

No sum is split. Every rank computes some of the outputs of a product whole, and the ranks give them to each
other: a result has the bits that one rank alone would give. (Megatron splits the second product of a pair by
its inputs and adds the parts, in another order for each number of ranks.)

    queries, attention     by heads               values -> all
    output projection      by columns             hidden -> all
    gate, up               by columns             dense, shared -> all
    down                   by columns             hidden -> all
    logits                 by words               logits -> all

Whether a product of some columns has the bits of the whole one's is proven (`rows.py`); where it has not, the
whole is computed and the columns are taken. Keys and values of grouped queries are split by KV head; where
there are more ranks than KV heads several keep the same one. The latent of MLA is kept by every rank whole,
as engines keep it. Routed experts are not split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emulator.errors import UsageError
from serving.model.config import DeepseekV3Config, ModelConfig, Qwen3MoeConfig

if TYPE_CHECKING:
    import torch  # the process of a command checks parts, and holds no torch

__all__ = ["WHOLE", "Part", "check_parts", "kv_config"]

Gather = Callable[[str, "torch.Tensor"], "torch.Tensor"]
"""(what, my columns float32 [n, w]) -> all ranks' columns, [n, w · ranks] in order of the ranks."""


@dataclass
class Part:
    """Rank `index` of `size`. `gather` brings all ranks' columns together; before the ranks are connected
    mine stand in for everybody's, which is enough to prove shapes by."""

    index: int = 0
    size: int = 1
    gather: Gather | None = None

    def share(self, count: int) -> slice:
        """Which of `count` heads or columns are mine."""
        width = count // self.size
        return slice(self.index * width, (self.index + 1) * width)

    def kv_heads(self, count: int) -> slice:
        """Which of `count` KV heads I keep."""
        if count >= self.size:
            return self.share(count)
        mine = self.index * count // self.size
        return slice(mine, mine + 1)

    def whole(self, what: str, columns: torch.Tensor) -> torch.Tensor:
        """All ranks' columns."""
        if self.gather is None:
            return columns.repeat(*[1] * (columns.dim() - 1), self.size)
        return self.gather(what, columns)

    def named(self, name: str) -> str:
        """A name for proofs of what is computed in parts."""
        return name if self.size == 1 else f"{name}.{self.index}of{self.size}"


WHOLE = Part()


def kv_config(config: ModelConfig, part: Part) -> ModelConfig:
    """The configuration whose cache rows are what this rank keeps."""
    if part.size == 1 or not isinstance(config, Qwen3MoeConfig):
        return config
    kept = part.kv_heads(config.num_key_value_heads)
    return config.model_copy(update={"num_key_value_heads": kept.stop - kept.start})


def check_parts(config: ModelConfig, size: int) -> None:
    """Refuse to split a model where its sizes do not divide.

    Raises:
        UsageError: naming the size, and the nearest number of ranks that divides them all.
    """
    sizes = {
        "num_attention_heads": config.num_attention_heads,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
    }
    if config.n_shared_experts:
        sizes["width of the shared experts"] = config.n_shared_experts * config.moe_intermediate_size
    kv_heads = getattr(config, "num_key_value_heads", 0) if not isinstance(config, DeepseekV3Config) else 0

    def fits(ranks: int) -> bool:
        kv = not kv_heads or kv_heads % ranks == 0 or ranks % kv_heads == 0
        return kv and all(count % ranks == 0 for count in sizes.values())

    if fits(size):
        return
    fitting = [ranks for ranks in range(1, config.num_attention_heads + 1) if fits(ranks)]
    nearest = min(fitting, key=lambda ranks: (abs(ranks - size), ranks))
    broken = [f"{name}={count}" for name, count in sizes.items() if count % size]
    what = ", ".join(broken) or f"num_key_value_heads={kv_heads}"
    raise UsageError(f"--tp-size {size}: {what} does not split into {size} parts; the nearest is {nearest}")
