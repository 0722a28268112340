"""`superpod bench serve`: load on an OpenAI-compatible server, and vLLM's report of it (docs/http.md)."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from datetime import datetime
from typing import Any

import typer
from typer.core import TyperCommand

from emulator.errors import SuperpodError, UsageError
from launch.bench_request import BenchOptions, Reported, asks_of, check_options, times_of
from launch.clock_options import check_server, given_options
from launch.option_class import takes
from launch.outputs import write_out
from serving.bench.http import HttpError, Target, fetch
from serving.bench.report import report, table
from serving.bench.run import Outcome, Run, benchmark


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


@takes(BenchOptions)
def bench_serve(context: typer.Context, options: BenchOptions) -> int:
    """Send a load to an OpenAI-compatible server and print vLLM's report in virtual and in host time."""
    asked = check_options(options)
    target = Target.parse(options.base_url, options.api_key)
    try:
        card = asyncio.run(_model_card(target, options.model))
        clock = card.get("superpod", {}).get("clock", {})
        check_server(clock, os.environ, given_options(context))
        run = _run_of(options, asked, target, card)
        asks = asks_of(options, card)
        times = times_of(options, asks)
        begin = time.perf_counter()
        outcomes = asyncio.run(benchmark(run, asks, times, time.perf_counter))
    except HttpError as error:
        raise SuperpodError(str(error)) from None
    result = _result(outcomes, asked.objectives, asked.percentiles) | _about(options, run)
    result["wall_s"] = time.perf_counter() - begin
    result |= {"clock": clock} if clock else {}
    return _tell(result, options, asked.percentiles)


def _run_of(options: BenchOptions, asked: Reported, target: Target, card: dict[str, Any]) -> Run:
    """How requests are sent: with virtual arrivals where the server has them and no option forbids it."""
    is_virtual = "superpod" in card and not options.wall_arrivals and options.max_concurrency is None
    return Run(
        target,
        card["id"],
        options.backend == "openai-chat",
        asked.extra,
        virtual=is_virtual,
        max_concurrency=options.max_concurrency,
    )


def _tell(result: dict[str, Any], options: BenchOptions, percentiles: list[float]) -> int:
    """Write the JSON, print the report; 1 if a request failed."""
    if options.save_result is not None:
        write_out("--json", options.save_result, json.dumps(result, indent=1) + "\n")
    print(table(result, percentiles))
    clock = result.get("clock", {})
    if clock.get("clock") == "wall":
        print(f"Clock of the server: wall, 1 s lasts {clock['dilation']:g} s, compute {clock['compute']}")
    return 1 if result["failed"] else 0


async def _model_card(target: Target, name: str | None) -> dict[str, Any]:
    cards = (await fetch(target, "GET", "/v1/models"))["data"]
    found = [card for card in cards if name in (None, card["id"])]
    if not found:
        names = ", ".join(card["id"] for card in cards)
        raise UsageError(f"--model {name}: the server has {names}")
    card: dict[str, Any] = found[0]
    return card


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


def _about(options: BenchOptions, run: Run) -> dict[str, Any]:
    return {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": options.backend,
        "model_id": run.model,
        "num_prompts": options.num_prompts,
        "request_rate": "inf" if math.isinf(options.request_rate) else options.request_rate,
        "burstiness": options.burstiness,
        "max_concurrency": options.max_concurrency,
        "arrivals": "virtual" if run.virtual else "wall",
    }
