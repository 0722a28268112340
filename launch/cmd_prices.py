"""`superpod prices`: what kernels and exchanges of the priced model cost, and where the numbers come from."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from emulator.profile import Profile, load_profile
from launch.cmd_run import parse_set
from serving.decode.settings import split_overrides
from serving.price_tables import price_tables
from serving.pricing import PricedModel


def register(app: typer.Typer) -> None:
    """Add the `prices` command to `app`."""
    app.command("prices")(prices)


def prices(
    profile: Annotated[
        str, typer.Option("--pod", "--profile", help="Machine profile: a name or a .toml file.")
    ] = "cloudmatrix384",
    priced_as: Annotated[
        str, typer.Option(help="The model that is priced: a name or a .toml file.")
    ] = "deepseek-r1",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a value of profile, priced model or library (repeatable)."
        ),
    ] = None,
    sources: Annotated[bool, typer.Option(help="List every number with unit, label and source.")] = False,
) -> None:
    """Show prices of the target model, the decode iteration beside the published one."""
    settings, priced = split_overrides(parse_set(set_ or []))
    machine = load_profile(profile, settings)
    model = PricedModel.load(priced_as, machine, priced)
    console = Console()
    for table in price_tables(model):
        console.print(table)
    if sources:
        console.print(source_table(machine))
        console.print(source_table(model.entries))
        console.print(source_table(model.library.numbers))


def source_table(entries: Profile) -> Table:
    """Return every number of a profile or priced model with unit, label and source."""
    table = Table(title=f"Numbers of {entries.name}")
    for column in ("key", "value", "unit", "label", "source"):
        table.add_column(column, justify="right" if column == "value" else "left", overflow="fold")
    for key, entry in entries.items():
        table.add_row(key, f"{entry.value:g}", entry.unit, entry.label, entry.source)
    return table
