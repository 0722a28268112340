"""Compare with `transformers`' own model on the same checkpoint: logits, routing, tokens."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from serving.model import Model, PagedKV, load_model
from serving.model.reference import forward

ROUTING_GAP = 1e-5
LOGIT_TOLERANCE = 1e-5
GREEDY_MARGIN = 1e-4


@dataclass
class Comparison:
    """What differed. `excused`: (sequence, position) routed otherwise within the gap, and what follows."""

    positions: int = 0
    worst_logit: float = 0.0
    excused: list[tuple[int, int]] = field(default_factory=list)
    unexcused_routing: list[tuple[int, int, int, float]] = field(default_factory=list)
    greedy_compared: int = 0
    greedy_differing: list[tuple[int, int]] = field(default_factory=list)


def selection_gap(choice: torch.Tensor, num_groups: int, topk_group: int, top_k: int) -> torch.Tensor:
    """Per row, how near another choice of groups or experts was; choice = biased scores [n, experts]."""
    grouped = choice.view(choice.shape[0], num_groups, -1)
    group_scores = grouped.topk(2, -1).values.sum(-1)
    gaps = choice.new_full((choice.shape[0],), torch.inf)
    if topk_group < num_groups:
        ranked = group_scores.sort(-1, descending=True).values
        gaps = torch.minimum(gaps, ranked[:, topk_group - 1] - ranked[:, topk_group])
    chosen = group_scores.topk(topk_group, -1).indices
    closed = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, chosen, False)
    ranked = grouped.masked_fill(closed.unsqueeze(-1), -torch.inf).flatten(1).sort(-1, descending=True).values
    return torch.minimum(gaps, ranked[:, top_k - 1] - ranked[:, top_k])


def _reference_run(
    directory: Path, sequences: torch.Tensor
) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """Logits [b, n, vocabulary] and, per MoE layer, chosen experts [b · n, k] ascending and biased scores."""
    reference = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    chosen: list[torch.Tensor] = []
    scores: list[torch.Tensor] = []

    def record(module: torch.nn.Module, _: object, output: tuple[torch.Tensor, ...]) -> None:
        chosen.append(output[2].sort(-1).values)
        bias = getattr(module, "e_score_correction_bias", None)
        scores.append(output[0].softmax(-1) if bias is None else output[0].sigmoid() + bias)

    for layer in reference.model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.register_forward_hook(record)
    with torch.no_grad():
        logits = reference(sequences).logits
    return logits, chosen, scores


def _our_run(model: Model, tokens: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits [n, vocabulary] and chosen experts per MoE layer [n, k] of one sequence."""
    chosen: list[torch.Tensor] = []
    kv = PagedKV(model.config, -(-len(tokens) // 16))
    originals = {layer.index: layer.route for layer in model.layers if layer.is_moe}
    for layer in model.layers:
        if layer.is_moe:
            layer.route = _recording(originals[layer.index], chosen)  # type: ignore[method-assign]
    try:
        hidden = forward(model, tokens, model.plan([kv.append(0, len(tokens))], kv))
    finally:
        for layer in model.layers:
            if layer.is_moe:
                del layer.route
    return model.logits(hidden), chosen


def _recording(route, chosen):  # type: ignore[no-untyped-def]
    def recorded(h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        idx, weights = route(h)
        chosen.append(idx)
        return idx, weights

    return recorded


def compare(
    directory: Path, num_sequences: int, length: int, seed: int = 0, ours: Model | None = None
) -> Comparison:
    """Run both over random sequences and collect every difference; `ours` replaces our side's checkpoint."""
    model = ours or load_model(directory)
    config = model.config
    generator = torch.Generator().manual_seed(seed)
    sequences = torch.randint(0, config.vocab_size, (num_sequences, length), generator=generator)
    logits, chosen, scores = _reference_run(directory, sequences)
    result = Comparison(positions=num_sequences * length)
    for number in range(num_sequences):
        mine_logits, our_choice = _our_run(model, sequences[number])
        rows = slice(number * length, (number + 1) * length)
        first = length
        for layer, mine in enumerate(our_choice):
            differs = (mine != chosen[layer][rows]).any(-1).nonzero().flatten().tolist()
            gaps = selection_gap(
                scores[layer][rows], config.n_group, config.topk_group, config.num_experts_per_tok
            )
            for position in differs:
                if position < first and gaps[position] >= ROUTING_GAP:
                    result.unexcused_routing.append((number, position, layer, float(gaps[position])))
            first = min([first, *differs])
        result.excused.extend((number, position) for position in range(first, length))
        _compare_logits(result, number, mine_logits[:first], logits[number, :first])
    return result


def _compare_logits(result: Comparison, number: int, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    if not len(ours):
        return
    result.worst_logit = max(result.worst_logit, float((ours - theirs).abs().max()))
    best = theirs.topk(2, -1).values
    clear = best[:, 0] - best[:, 1] > GREEDY_MARGIN
    result.greedy_compared += int(clear.sum())
    wrong = clear & (ours.argmax(-1) != theirs.argmax(-1))
    result.greedy_differing.extend((number, position) for position in wrong.nonzero().flatten().tolist())
