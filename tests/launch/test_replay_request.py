"""`superpod replay` decides before it starts anything: its options become one request, with no process."""

import inspect
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from emulator.errors import UsageError
from launch.option_class import takes
from launch.replay_options import ReplayOptions
from launch.replay_request import read_request

PLACE = Path("/nowhere")


@dataclass(frozen=True)
class Few:
    name: Annotated[str, typer.Argument()]
    count: Annotated[int, typer.Option("--count", "-c", min=1)] = 3


def test_a_commands_options_are_the_fields_of_its_class() -> None:
    """Broken build: `_fields` sorted by name, or without defaults."""
    seen = []

    def command(ctx: typer.Context, options: Few) -> int:
        """Do it."""
        seen.append((ctx.args, options))
        return 0

    app = typer.Typer()
    app.command(context_settings={"allow_extra_args": True})(takes(Few)(command))
    assert CliRunner().invoke(app, ["a"]).exit_code == 0
    assert CliRunner().invoke(app, ["b", "-c", "5", "rest"]).exit_code == 0
    assert seen == [([], Few("a", 3)), (["rest"], Few("b", 5))]
    assert CliRunner().invoke(app, ["b", "-c", "0"]).exit_code == 2
    assert "Do it." in CliRunner().invoke(app, ["--help"]).output


def test_replays_signature_keeps_the_order_and_defaults_of_its_options() -> None:
    def command(options: ReplayOptions) -> int:
        return 0

    shown = inspect.signature(takes(ReplayOptions)(command)).parameters
    assert [(p.name, p.default) for p in shown.values()] == [
        (f.name, f.default) for f in fields(ReplayOptions)
    ]


def test_a_request_plans_without_a_process() -> None:
    request = read_request(
        ReplayOptions(ranks=4, requests=5, memory_check=False, token_scale=64, mtp=1, spares=0)
    )
    assert request.faults is None and request.recording is None
    assert request.config.num_nextn_predict_layers == 1
    plan = request.plan(PLACE)
    assert (plan.job.num_ranks, len(plan.specs), plan.job.model_dir) == (4, 5, str(PLACE / "model"))


def test_recovery_in_place_alone_has_an_empty_plan_of_faults() -> None:
    """Broken build: None, with which a rank killed from outside would end the run."""
    request = read_request(ReplayOptions(ranks=4, recovery="in-place", spares=1))
    assert request.faults is not None and not request.faults.faults
    job = request.job(PLACE)
    assert job.recovery is not None and job.spares == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"json_out": PLACE, "trace_out": PLACE}, "--json: a prepared replay"),
        ({"trace_out": PLACE}, "--trace-out: a prepared replay"),
        ({"recovery": "in-place"}, "leave out --trace-out, --prepare"),
        ({"recovery": "in-place", "transport": "rma"}, "--transport rma cannot survive"),
    ],
)
def test_what_does_not_go_together_is_named(changes: dict[str, object], said: str) -> None:
    options = ReplayOptions(**{"ranks": 4, "prepare": PLACE} | changes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=said):
        read_request(options)
