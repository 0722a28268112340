"""Multi-token prediction: layer k drafts the token k + 1 places ahead.

    x_i  = W · [norm(embedding of token i + k) | norm(h_i of layer k − 1)]    k = 1, 2, …; h of layer 0 is the
    h_i  = decoder layer(x)_i                                                main model's, after its last norm
    draft of token i + k + 1 = head(norm(h_i))

Row i of layer k needs tokens up to i + k. Where one of them is itself a draft, the row is provisional: it is
computed once more when the token is known (`DraftState`), and its cache row is overwritten. Weights lie after
the main layers, `model.layers.{num_hidden_layers + k − 1}`.

Source: DeepSeek-V3 (arXiv 2412.19437) section 2.2; names as in the published checkpoint, order of the two
halves and the normed h_0 as vLLM computes them.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch

from serving.model.config import ModelConfig
from serving.model.int8 import product_of
from serving.model.kv_cache import PagedKV, Segment
from serving.model.layers import Layer
from serving.model.norm import RMSNorm
from serving.model.plan import StepPlan
from serving.model.rows import Proofs, RowFunction, Rows
from serving.model.weights import CheckpointFiles

__all__ = ["DraftRows", "DraftState", "MtpLayer", "draft_rows", "run_layer"]


class MtpLayer:
    """One layer: `join`, then its decoder layer's pieces in turn, then `logits`."""

    def __init__(
        self, config: ModelConfig, files: CheckpointFiles, depth: int, layer: Layer, proofs: Proofs
    ) -> None:
        self.layer = layer
        prefix, hidden = f"model.layers.{config.num_hidden_layers + depth - 1}", config.hidden_size
        shape, eps = (config.vocab_size, hidden), config.rms_norm_eps
        self._embedding = files.tensor(f"{prefix}.embed_tokens.weight", *shape)
        self._token_norm = RMSNorm(files.tensor(f"{prefix}.enorm.weight", hidden), eps)
        self._hidden_norm = RMSNorm(files.tensor(f"{prefix}.hnorm.weight", hidden), eps)
        joined = files.tensor(f"{prefix}.eh_proj.weight", hidden, 2 * hidden)
        self._project = product_of(joined, config.quantization == "int8")
        self._norm = RMSNorm(files.tensor(f"{prefix}.shared_head.norm.weight", hidden), eps)
        self._part, words = layer.part, layer.part.share(config.vocab_size)
        whole = files.tensor(f"{prefix}.shared_head.head.weight", *shape)
        self._head = whole[words].t()
        self._join = RowFunction("mtp.join", self._join_rows, proofs)

        def some(x: torch.Tensor) -> Rows:
            return (torch.mm(self._norm(x), whole.t())[:, words].contiguous(),)

        self._logits = RowFunction(
            self._part.named("mtp.logits"),
            lambda x: (torch.mm(self._norm(x), self._head),),
            proofs,
            None if self._part.size == 1 else some,
        )

    def join(self, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """What enters the layer: token ids int64 [n], rows of the layer before float32 [n, hidden]."""
        return self._join(self._embedding.index_select(0, tokens), hidden)[0]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [n, hidden] to [n, vocabulary]."""
        logits = self._logits(x)[0]
        return logits if self._part.size == 1 else self._part.whole("logits", logits)

    def _join_rows(self, embedded: torch.Tensor, hidden: torch.Tensor) -> Rows:
        return (self._project(torch.cat((self._token_norm(embedded), self._hidden_norm(hidden)), -1)),)


@dataclass
class DraftState:
    """What is kept of a sequence between two steps.

    kept[k] holds the last rows of layer k (0: the main model's), float32 [up to k, hidden]: layer k + 1 has
    them to compute once more, now that their token is known.
    """

    kept: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class DraftRows:
    """Rows one layer computes for one sequence: positions from `start` on, with a token and a row each."""

    start: int
    tokens: list[int]
    hidden: torch.Tensor


def draft_rows(
    depth: int, start: int, new: torch.Tensor, known: Sequence[int], drafts: Sequence[int], state: DraftState
) -> DraftRows:
    """What layer `depth` computes, given the rows the layer before has just computed.

    Args:
        start: position of the first of `new`.
        new: float32 [n, hidden], n at least 1.
        known: tokens of the sequence, by position; at least up to the position after the last row.
        drafts: what earlier layers drafted for the positions after those.
        state: rows kept from the step before; the last of `new` are kept for the next one.
    """
    before = state.kept.get(depth - 1)
    hidden = new
    if before is not None and len(before):
        hidden, start = torch.cat((before, new)), start - len(before)
    wanted = range(start + depth, start + depth + len(hidden))
    tokens = [known[i] if i < len(known) else drafts[i - len(known)] for i in wanted]
    if depth > 1:
        state.kept[depth - 1] = hidden[max(0, len(hidden) - depth + 1) :].clone()
    return DraftRows(start, tokens, hidden)


Body = Callable[[Layer, torch.Tensor, StepPlan], torch.Tensor]
"""(decoder layer, rows, plan) -> its output: how a layer is computed is the caller's business."""


def run_layer(
    mtp: MtpLayer,
    parts: Sequence[tuple[Hashable, DraftRows]],
    kv: PagedKV,
    plan_of: Callable[[Sequence[Segment], PagedKV], StepPlan],
    body: Body,
) -> list[torch.Tensor]:
    """One MTP layer over several sequences; the rows of each, float32 [rows, hidden]."""
    lengths = [len(rows.tokens) for _, rows in parts]
    segments = [
        Segment(sequence, rows.start, length) for (sequence, rows), length in zip(parts, lengths, strict=True)
    ]
    tokens = torch.tensor([token for _, rows in parts for token in rows.tokens])
    x = mtp.join(tokens, torch.cat([rows.hidden for _, rows in parts]))
    return list(torch.split(body(mtp.layer, x, plan_of(segments, kv)), lengths))
