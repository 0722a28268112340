"""`superpod bench serve`: load on an OpenAI-compatible server, and vLLM's report of it (docs/http.md)."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from emulator.errors import SuperpodError, UsageError
from launch.clock_options import check_server, given_options
from launch.cmd_run import check_choice
from launch.outputs import write_out
from launch.seed_option import seed_option
from serving.bench.arrivals import arrivals_ps, scaled
from serving.bench.datasets import Ask, random_asks, sharegpt_asks, trace_asks
from serving.bench.http import HttpError, Target, fetch
from serving.bench.report import report, table
from serving.bench.run import Outcome, Run, benchmark
from serving.metrics import parse_objectives

_DATASETS = ("random", "mooncake", "azure", "sharegpt")
_BACKENDS = ("openai", "openai-chat")


class ManyObjectives(TyperCommand):
    """`--goodput ttft:200 tpot:50`: several values after one option, as vLLM takes them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        joined: list[str] = []
        values = False
        for word in args:
            if values and not word.startswith("-"):
                joined += ["--goodput", word]
                continue
            values = word == "--goodput"
            joined += [] if values else [word]
        return super().parse_args(ctx, joined if not values or "--goodput" in joined else args)


def bench_serve(
    context: typer.Context,
    base_url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Its model (else the first it has).")] = None,
    backend: Annotated[str, typer.Option(help="openai (completions) or openai-chat.")] = "openai",
    dataset_name: Annotated[str, typer.Option(help=f"One of {', '.join(_DATASETS)}.")] = "random",
    dataset_path: Annotated[Path | None, typer.Option(help="File of the dataset or trace.")] = None,
    num_prompts: Annotated[int, typer.Option(min=1, max=1_000_000, help="Requests to send.")] = 100,
    request_rate: Annotated[
        float, typer.Option(help="Requests a (virtual) second; inf: at once.")
    ] = math.inf,
    burstiness: Annotated[float, typer.Option(help="1: Poisson; less: bursts; more: even.")] = 1.0,
    time_scale: Annotated[float, typer.Option(help="A trace's arrivals so many times as fast.")] = 1.0,
    max_concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests open at once (then arrivals are the host's).")
    ] = None,
    random_input_len: Annotated[int, typer.Option(help="random: tokens of a prompt.")] = 1024,
    random_output_len: Annotated[int, typer.Option(help="random: tokens of an answer.")] = 128,
    random_range_ratio: Annotated[float, typer.Option(help="random: lengths differ by so much.")] = 0.0,
    sharegpt_output_len: Annotated[int | None, typer.Option(help="sharegpt: tokens of an answer.")] = None,
    max_output: Annotated[int | None, typer.Option(help="Traces: most tokens of an answer.")] = None,
    token_scale: Annotated[int, typer.Option(help="Traces: prompts so many times shorter.")] = 1,
    goodput: Annotated[
        list[str] | None, typer.Option(help="Objectives in ms: ttft:200 tpot:50 e2el:3000 (several).")
    ] = None,
    metric_percentiles: Annotated[str, typer.Option(help="Percentiles, with commas between.")] = "99",
    extra_body: Annotated[str, typer.Option(help="JSON object of further fields of every request.")] = "{}",
    seed: Annotated[int, seed_option("Of contents, lengths and arrivals.")] = 0,
    api_key: Annotated[str | None, typer.Option(envvar="SUPERPOD_API_KEY", help="The server's key.")] = None,
    wall_arrivals: Annotated[
        bool, typer.Option("--wall-arrivals", help="Send as the host's clock says, without virtual arrivals.")
    ] = False,
    save_result: Annotated[
        Path | None, typer.Option("--save-result", "--json", help="Write the JSON here.")
    ] = None,
) -> int:
    """Send a load to an OpenAI-compatible server and print vLLM's report in virtual and in host time."""
    check_choice("--backend", backend, _BACKENDS)
    check_choice("--dataset-name", dataset_name, _DATASETS)
    objectives = parse_objectives(word for entry in goodput or [] for word in entry.split())
    percentiles = parse_percentiles(metric_percentiles)
    arrivals_ps(1, request_rate, burstiness, seed)
    extra = _extra(extra_body)
    lengths = (random_input_len, random_output_len, random_range_ratio)
    if dataset_name == "random":
        random_asks(0, *lengths, 1, seed)
    elif not need_path(dataset_path).is_file():
        raise UsageError(f"--dataset-path {dataset_path}: no such file")
    scaled([], time_scale)
    least_of_one(
        ("--token-scale", token_scale),
        ("--max-output", max_output),
        ("--sharegpt-output-len", sharegpt_output_len),
    )
    target = Target.parse(base_url, api_key)
    try:
        card = asyncio.run(_model_card(target, model))
        clock = card.get("superpod", {}).get("clock", {})
        check_server(clock, os.environ, given_options(context))
        run = Run(
            target,
            card["id"],
            backend == "openai-chat",
            extra,
            virtual="superpod" in card and not wall_arrivals and max_concurrency is None,
            max_concurrency=max_concurrency,
        )
        vocab = int(card.get("superpod", {}).get("vocab_size", 0))
        if dataset_name == "random":
            need_vocabulary(vocab)
            asks = random_asks(num_prompts, *lengths, vocab, seed)
        elif dataset_name == "sharegpt":
            asks = _sharegpt(target, card, need_path(dataset_path), num_prompts, seed, sharegpt_output_len)
        else:
            need_vocabulary(vocab)
            asks = trace_asks(need_path(dataset_path), num_prompts, vocab, seed, max_output, token_scale)
        times = _times(asks, request_rate, burstiness, time_scale, seed)
        begin = time.perf_counter()
        outcomes = asyncio.run(benchmark(run, asks, times, time.perf_counter))
    except HttpError as error:
        raise SuperpodError(str(error)) from None
    result = _result(outcomes, objectives, percentiles)
    result |= _about(run, backend, request_rate, burstiness, max_concurrency, num_prompts)
    result["wall_s"] = time.perf_counter() - begin
    result |= {"clock": clock} if clock else {}
    if save_result is not None:
        write_out("--json", save_result, json.dumps(result, indent=1) + "\n")
    print(table(result, percentiles))
    if clock.get("clock") == "wall":
        print(f"Clock of the server: wall, 1 s lasts {clock['dilation']:g} s, compute {clock['compute']}")
    return 1 if result["failed"] else 0


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


async def _model_card(target: Target, name: str | None) -> dict[str, Any]:
    cards = (await fetch(target, "GET", "/v1/models"))["data"]
    found = [card for card in cards if name in (None, card["id"])]
    if not found:
        names = ", ".join(card["id"] for card in cards)
        raise UsageError(f"--model {name}: the server has {names}")
    card: dict[str, Any] = found[0]
    return card


def _sharegpt(
    target: Target, card: dict[str, Any], path: Path, count: int, seed: int, output_len: int | None
) -> list[Ask]:
    from serving.api.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(card.get("root", "")))
    if tokenizer is None:
        raise UsageError(f"--dataset-name sharegpt: {card.get('root')} has no tokenizer here")
    return sharegpt_asks(path, count, seed, output_len, lambda text: len(tokenizer.encode(text)))


def _times(asks: list[Ask], rate: float, burstiness: float, time_scale: float, seed: int) -> list[int]:
    own = [ask.arrival_ps for ask in asks if ask.arrival_ps is not None]
    if len(own) == len(asks) and math.isinf(rate):
        return scaled(own, time_scale)
    return arrivals_ps(len(asks), rate, burstiness, seed)


def _result(
    outcomes: list[Outcome], objectives: dict[str, float], percentiles: list[float]
) -> dict[str, Any]:
    wall = report([outcome.wall for outcome in outcomes], objectives, percentiles)
    virtual = [outcome.virtual for outcome in outcomes]
    if any(call is None for call in virtual):
        return wall
    result = report([call for call in virtual if call is not None], objectives, percentiles)
    same = ("completed", "failed", "total_input_tokens", "total_output_tokens", "input_lens", "output_lens")
    beside = {k: v for k, v in wall.items() if k not in (*same, "generated_texts", "errors")}
    return result | {f"wall_{key}": value for key, value in beside.items()}


def _about(
    run: Run, backend: str, rate: float, burstiness: float, max_concurrency: int | None, count: int
) -> dict[str, Any]:
    return {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": backend,
        "model_id": run.model,
        "num_prompts": count,
        "request_rate": "inf" if math.isinf(rate) else rate,
        "burstiness": burstiness,
        "max_concurrency": max_concurrency,
        "arrivals": "virtual" if run.virtual else "wall",
    }
