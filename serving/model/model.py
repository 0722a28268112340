"""A DeepSeek-V3 model on one CPU thread, in float32, in pieces that a serving engine calls in turn."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import torch

from emulator.errors import UsageError
from serving.model import fused
from serving.model.config import ModelConfig, with_mtp
from serving.model.kv_cache import PagedKV, Segment
from serving.model.layers import Layer
from serving.model.mtp import MtpLayer
from serving.model.norm import RMSNorm
from serving.model.part import WHOLE, Part, check_parts, kv_config
from serving.model.plan import KEY_BLOCK, TILE_QUERIES, StepPlan, make_plan
from serving.model.rope import RotaryTables
from serving.model.rows import SIZES, Proofs, RowFunction, Rows
from serving.model.weights import CheckpointFiles

__all__ = ["Model", "load_model"]

_BLOCKS_AHEAD = 8
"""Sequences of more key blocks than this have their attention proven when they come."""


class Model:
    """Weights (views of the checkpoint's mapping) and the functions between which communication happens.

    Args:
        part: what of attention, dense MLPs, shared experts and head this process computes.
        proofs: of other models of this checkpoint in this process, to be shared.

    Attributes:
        kv_config: what a cache for it is made from.
    """

    def __init__(
        self,
        config: ModelConfig,
        files: CheckpointFiles,
        experts: Iterable[int],
        part: Part = WHOLE,
        proofs: Proofs | None = None,
    ) -> None:
        self.config, self.part = config, part
        self.files = files
        self.kv_config = kv_config(config, part)
        self.proofs = proofs or Proofs()
        self._rotary = RotaryTables(config)
        chosen = _checked_experts(config, files.directory, experts)
        self.layers = tuple(
            Layer(config, files, index, chosen, self.proofs, part)
            for index in range(config.num_hidden_layers)
        )
        self.mtp = tuple(self._mtp_layer(depth, chosen) for depth in range(1, config.mtp_layers + 1))
        """Draft layers, in order."""
        shape = (config.vocab_size, config.hidden_size)
        self._embedding = files.tensor("model.embed_tokens.weight", *shape)
        norm_weight, eps = files.tensor("model.norm.weight", config.hidden_size), config.rms_norm_eps
        self._norm = RMSNorm(norm_weight, eps)
        head = self._embedding if config.tie_word_embeddings else files.tensor("lm_head.weight", *shape)
        words = part.share(config.vocab_size)
        self._head = head[words].t()
        self._logits = RowFunction(
            part.named("logits"),
            self._logits_rows,
            self.proofs,
            None if part.size == 1 else lambda x: (torch.mm(self._norm(x), head.t())[:, words].contiguous(),),
            fused.head(norm_weight, eps, head) if part.size == 1 else None,
        )
        compiled = fused.norm(norm_weight, eps)
        self._normed = RowFunction("norm.last", lambda x: (self._norm(x),), self.proofs, fused=compiled)

    def _mtp_layer(self, depth: int, experts: Iterable[int]) -> MtpLayer:
        index = self.config.num_hidden_layers + depth - 1
        layer = Layer(self.config, self.files, index, experts, self.proofs, self.part)
        return MtpLayer(self.config, self.files, depth, layer, self.proofs)

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        """The final norm alone, which draft layers begin with: float32 [n, hidden] to the same."""
        return self._normed(x)[0]

    def layer(self, index: int) -> Layer:
        """Layer `index`, from 0."""
        return self.layers[index]

    def open_experts(self, experts: Iterable[int]) -> None:
        """Open these routed experts (logical) in every MoE layer, and no others; as `load_model` does.

        Raises:
            UsageError: an expert that does not exist, or a tensor of one that is missing or misshapen.
        """
        chosen = _checked_experts(self.config, self.files.directory, experts)
        for layer in (*self.layers, *(mtp.layer for mtp in self.mtp)):
            layer.open_experts(chosen)

    def prove(self, longest: int) -> None:
        """Prove ahead what serving single sequences of up to `longest` tokens needs (`rows.py`).

        Not necessary: what was not proven ahead is proven when first used.
        """
        for size in SIZES:
            self.logits(torch.zeros(size, self.config.hidden_size))
        for layer in self.layers:
            layer.prove()
        blocks = min(-(-longest // KEY_BLOCK), _BLOCKS_AHEAD)
        for num_queries, num_blocks in itertools.product((1, *TILE_QUERIES), range(1, blocks + 1)):
            self.layers[0].prove_blocks(1, num_queries, num_blocks)

    def plan(self, segments: Sequence[Segment], kv: PagedKV) -> StepPlan:
        """Work out one step over `segments` (from `kv.append`, each sequence once); used by every layer.

        Raises:
            UsageError: no segment, a sequence twice, or a position beyond the context.
        """
        return make_plan(segments, kv, self._rotary, self.config.max_position_embeddings)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids int64 [n] to rows float32 [n, hidden], in the order of the plan's rows.

        Raises:
            UsageError: a token outside the vocabulary.
        """
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.config.vocab_size:
            raise UsageError(f"token outside the vocabulary of {self.config.vocab_size}")
        return self._embedding.index_select(0, tokens)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Final norm and output head: float32 [n, hidden] to [n, vocabulary]; pass only rows you need."""
        logits = self._logits(x)[0]
        return logits if self.part.size == 1 else self.part.whole("logits", logits)

    def _logits_rows(self, x: torch.Tensor) -> Rows:
        return (torch.mm(self._norm(x), self._head),)


def _checked_experts(config: ModelConfig, directory: Path, experts: Iterable[int]) -> frozenset[int]:
    chosen = frozenset(experts)
    for expert in sorted(chosen):
        if not 0 <= expert < config.n_routed_experts:
            raise UsageError(
                f"{directory}: expert {expert} does not exist; there are {config.n_routed_experts}"
            )
    return chosen


def load_model(
    directory: str | Path,
    experts: Iterable[int] | None = None,
    quantization: Literal["int8"] | None = None,
    mtp_layers: int = 0,
    part: Part = WHOLE,
    like: Model | None = None,
) -> Model:
    """Open a checkpoint directory (`config.json`, safetensors single or sharded).

    Weights stay views of the mapped files: ranks on one host share the pages. Torch is set to one thread,
    because a product split over threads sums in another order.

    Args:
        directory: the checkpoint.
        experts: logical routed experts to open in every MoE layer; None for all. Others need not be present.
        quantization: "int8" computes projections, MLPs and experts in INT8 and keeps latents so (`int8.py`);
            router, embedding, head and the absorbed products stay float32.
        mtp_layers: draft layers to open.
        part: what to compute where several ranks share a layer.
        like: another part of the same model, whose open files and proofs are used.

    Raises:
        UsageError: missing files, a tensor that is missing, misshapen, cut short or not float32 (named, with
            its file), an unsupported configuration, or an expert that does not exist.
    """
    config = with_mtp(ModelConfig.from_hf(directory), mtp_layers, str(directory))
    config = config.model_copy(update={"quantization": quantization})
    chosen = range(config.n_routed_experts) if experts is None else experts
    check_parts(config, part.size)
    torch.set_num_threads(1)
    if like is not None:
        return Model(config, like.files, chosen, part, like.proofs)
    return Model(config, CheckpointFiles(directory, config.weight_block), chosen, part)
