"""What `superpod serve` is given reaches the pod behind it: no option is dropped on the way."""

import dataclasses
from pathlib import Path

import pytest

from emulator.errors import UsageError
from launch.open_job import OpenOptions
from launch.serve_options import ServeOptions

RENAMED = {"profile", "priced_overrides"}


def test_every_option_of_a_pod_has_one_of_serve() -> None:
    """Broken build: `tp_size` spelled otherwise in `ServeOptions`."""
    served = {field.name: field.default for field in dataclasses.fields(ServeOptions)}
    open_fields = {field.name for field in dataclasses.fields(OpenOptions)}
    assert open_fields - set(served) == RENAMED
    given = ServeOptions(model=Path("m"), num_ranks=4).pod_options()
    assert given == OpenOptions(), "the defaults of the command and of LLM differ"


def test_options_reach_the_pod() -> None:
    options = ServeOptions(
        model=Path("m"),
        num_ranks=4,
        pod="other",
        overrides=["ub.latency_ns=3", "cost.hidden_passes=7"],
        tp_size=2,
        mtp=1,
        record=Path("r.jsonl"),
    )
    pod = options.pod_options()
    assert (pod.profile, pod.tp_size, pod.mtp, pod.record) == ("other", 2, 1, str(Path("r.jsonl").resolve()))
    assert pod.overrides | pod.priced_overrides == {"ub.latency_ns": "3", "cost.hidden_passes": "7"}
    assert set(pod.priced_overrides) == {"cost.hidden_passes"}


def test_a_setting_without_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match="nope"):
        ServeOptions(model=Path("m"), num_ranks=4, overrides=["nope"]).pod_options()
