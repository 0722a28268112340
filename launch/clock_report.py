"""What a command says of the clock its run had: read from the run's own report."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulator.config import environment_config


def with_report(config: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], Path]:
    """A run's configuration with a report, and where it will be: where the user wants it or in `folder`."""
    report = config.get("report") or environment_config().get("report") or str(folder / "run.json")
    return {**config, "report": report}, Path(report)


def duration_and_clock(report: Path | None) -> dict[str, Any]:
    """`virtual_duration_s` of a run, and `wall` with its honesty report under the wall clock; nothing of a
    run that did not use the emulator or has not ended well."""
    if report is None or not report.exists():
        return {}
    told = json.loads(report.read_text())
    return {key: told[key] for key in ("virtual_duration_s", "wall") if key in told}
