"""What `superpod bench serve` was asked for: its options, checked, and the requests they stand for."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from emulator.errors import UsageError
from launch.cmd_run import check_choice
from launch.seed_option import seed_option
from serving.bench.arrivals import arrivals_ps, scaled
from serving.bench.datasets import Ask, random_asks, sharegpt_asks, trace_asks
from serving.metrics import parse_objectives

_DATASETS = ("random", "mooncake", "azure", "sharegpt")
_BACKENDS = ("openai", "openai-chat")


@dataclass(frozen=True)
class BenchOptions:
    """As the command line gives them."""

    base_url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000"
    model: Annotated[str | None, typer.Option(help="Its model (else the first it has).")] = None
    backend: Annotated[str, typer.Option(help="openai (completions) or openai-chat.")] = "openai"
    dataset_name: Annotated[str, typer.Option(help=f"One of {', '.join(_DATASETS)}.")] = "random"
    dataset_path: Annotated[Path | None, typer.Option(help="File of the dataset or trace.")] = None
    num_prompts: Annotated[int, typer.Option(min=1, max=1_000_000, help="Requests to send.")] = 100
    request_rate: Annotated[float, typer.Option(help="Requests a (virtual) second; inf: at once.")] = math.inf
    burstiness: Annotated[float, typer.Option(help="1: Poisson; less: bursts; more: even.")] = 1.0
    time_scale: Annotated[float, typer.Option(help="A trace's arrivals so many times as fast.")] = 1.0
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests open at once (then arrivals are the host's).")
    ] = None
    random_input_len: Annotated[int, typer.Option(help="random: tokens of a prompt.")] = 1024
    random_output_len: Annotated[int, typer.Option(help="random: tokens of an answer.")] = 128
    random_range_ratio: Annotated[float, typer.Option(help="random: lengths differ by so much.")] = 0.0
    sharegpt_output_len: Annotated[int | None, typer.Option(help="sharegpt: tokens of an answer.")] = None
    max_output: Annotated[int | None, typer.Option(help="Traces: most tokens of an answer.")] = None
    token_scale: Annotated[int, typer.Option(help="Traces: prompts so many times shorter.")] = 1
    goodput: Annotated[
        list[str] | None, typer.Option(help="Objectives in ms: ttft:200 tpot:50 e2el:3000 (several).")
    ] = None
    metric_percentiles: Annotated[str, typer.Option(help="Percentiles, with commas between.")] = "99"
    extra_body: Annotated[str, typer.Option(help="JSON object of further fields of every request.")] = "{}"
    seed: Annotated[int, seed_option("Of contents, lengths and arrivals.")] = 0
    api_key: Annotated[str | None, typer.Option(envvar="SUPERPOD_API_KEY", help="The server's key.")] = None
    wall_arrivals: Annotated[
        bool, typer.Option("--wall-arrivals", help="Send as the host's clock says, without virtual arrivals.")
    ] = False
    save_result: Annotated[
        Path | None, typer.Option("--save-result", "--json", help="Write the JSON here.")
    ] = None

    @property
    def lengths(self) -> tuple[int, int, float]:
        """Of random requests: tokens of a prompt, of an answer, and by how much of itself each differs."""
        return self.random_input_len, self.random_output_len, self.random_range_ratio


@dataclass(frozen=True)
class Reported:
    """What a report is asked to say and its requests to bring.

    objectives: name -> ms. percentiles: 0 to 100. extra: further fields of every request's body.
    """

    objectives: dict[str, float]
    percentiles: list[float]
    extra: dict[str, Any]


def check_options(options: BenchOptions) -> Reported:
    """Check options before the server is asked anything. Raises UsageError."""
    check_choice("--backend", options.backend, _BACKENDS)
    check_choice("--dataset-name", options.dataset_name, _DATASETS)
    objectives = parse_objectives(word for entry in options.goodput or [] for word in entry.split())
    percentiles = parse_percentiles(options.metric_percentiles)
    arrivals_ps(1, options.request_rate, options.burstiness, options.seed)
    extra = _extra(options.extra_body)
    if options.dataset_name == "random":
        random_asks(0, *options.lengths, 1, options.seed)
    elif not need_path(options.dataset_path).is_file():
        raise UsageError(f"--dataset-path {options.dataset_path}: no such file")
    scaled([], options.time_scale)
    least_of_one(
        ("--token-scale", options.token_scale),
        ("--max-output", options.max_output),
        ("--sharegpt-output-len", options.sharegpt_output_len),
    )
    return Reported(objectives, percentiles, extra)


def asks_of(options: BenchOptions, card: dict[str, Any]) -> list[Ask]:
    """The requests to send to the server whose model's card this is. Raises UsageError."""
    count, seed = options.num_prompts, options.seed
    if options.dataset_name == "sharegpt":
        return _sharegpt(card, need_path(options.dataset_path), count, seed, options.sharegpt_output_len)
    vocab = int(card.get("superpod", {}).get("vocab_size", 0))
    need_vocabulary(vocab)
    if options.dataset_name == "random":
        return random_asks(count, *options.lengths, vocab, seed)
    path = need_path(options.dataset_path)
    return trace_asks(path, count, vocab, seed, options.max_output, options.token_scale)


def times_of(options: BenchOptions, asks: list[Ask]) -> list[int]:
    """When they arrive, in ps from the first moment: as their trace says, unless a rate is given."""
    own = [ask.arrival_ps for ask in asks if ask.arrival_ps is not None]
    if len(own) == len(asks) and math.isinf(options.request_rate):
        return scaled(own, options.time_scale)
    return arrivals_ps(len(asks), options.request_rate, options.burstiness, options.seed)


def parse_percentiles(text: str) -> list[float]:
    """Read `50,99.9`. Raises UsageError: no numbers between 0 and 100."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= p <= 100 for p in found):
        raise UsageError(f"--metric-percentiles {text}: give numbers from 0 to 100 with commas between")
    return found


def least_of_one(*given: tuple[str, int | None]) -> None:
    """Raises UsageError: one of the values is below 1."""
    for option, value in given:
        if value is not None and value < 1:
            raise UsageError(f"{option} {value}: at least 1")


def need_path(path: Path | None) -> Path:
    """Raises UsageError: it is missing."""
    if path is None:
        raise UsageError("--dataset-path: this dataset needs a file")
    return path


def need_vocabulary(vocab: int) -> None:
    """Raises UsageError: the server does not say how many tokens it has."""
    if not vocab:
        raise UsageError(
            "--dataset-name: the server does not tell its vocabulary; only sharegpt works with it"
        )


def _extra(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"--extra-body {text}: must be a JSON object")
    return value


def _sharegpt(card: dict[str, Any], path: Path, count: int, seed: int, output_len: int | None) -> list[Ask]:
    from serving.api.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(card.get("root", "")))
    if tokenizer is None:
        raise UsageError(f"--dataset-name sharegpt: {card.get('root')} has no tokenizer here")
    return sharegpt_asks(path, count, seed, output_len, lambda text: len(tokenizer.encode(text)))
