"""Profiles are complete, sourced and strict; overrides keep the unit and say that they are overrides."""

import re
from pathlib import Path

import pytest

from emulator.errors import UsageError
from emulator.profile import LABELS, Profile, load_profile
from emulator.profile_keys import PROFILE_KEYS

SHIPPED = Path(__file__).parents[2] / "emulator" / "profiles" / "cloudmatrix384.toml"
LINE = 'latency_inter_us = { value = 2.0, unit = "us"'


PROFILES = sorted(path.stem for path in SHIPPED.parent.glob("*.toml"))


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profile("cloudmatrix384")


def changed(tmp_path: Path, old: str, new: str) -> Path:
    """The shipped profile with one piece of text replaced."""
    text = SHIPPED.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
    path = tmp_path / "changed.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", PROFILES)
def test_every_number_has_unit_source_and_label(name: str) -> None:
    entries = dict(load_profile(name).items())
    assert set(entries) == set(PROFILE_KEYS)
    for key, entry in entries.items():
        assert entry.unit == PROFILE_KEYS[key].unit
        assert entry.label in LABELS
        assert len(entry.source) > 5
        if entry.label == "published":
            assert re.search(r"arXiv \d{4}\.\d{5}|github|[\w-]+/[\w-]+", entry.source), key
        assert not re.search(r"/work|/tmp|facts/|calibration\.json", entry.source), key


def test_what_is_not_of_a_machine_is_not_published_for_it() -> None:
    """ib-hdr and rdma-400g have a pod and NICs of their own; all else is cloudmatrix384's, and says so.

    h800-ib has links and memory of its own too."""
    assert PROFILES == ["cloudmatrix384", "h800-ib", "ib-hdr", "rdma-400g"]
    ours = dict(load_profile("cloudmatrix384").items())
    for name in PROFILES[2:]:
        for key, entry in load_profile(name).items():
            if key.split(".")[0] not in ("pod", "rdma", "message", "engine"):
                assert entry.value == ours[key].value and entry.label == "assumed"
                assert entry.source == "not this machine: as cloudmatrix384"


def test_the_rdma_plane_of_this_machine_is_derived(profile: Profile) -> None:
    labels = profile.labels()
    assert labels["rdma.gb_per_s"] == "published"
    for key in ("rdma.efficiency", "rdma.pcie_us", "rdma.hop_us", "vpc.gb_per_s"):
        assert labels[key] == "derived"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pod.nodes", 48),
        ("ub.latency_chip_us", 0.2),
        ("ub.latency_intra_us", 1.2),
        ("ub.latency_inter_us", 2.0),
        ("ub.read_inter_gb_per_s", 164),
        ("ub.write_inter_gb_per_s", 135),
        ("ub.read_intra_gb_per_s", 167),
        ("ub.write_intra_gb_per_s", 138),
        ("die.hbm_gb", 64),
    ],
)
def test_published_values(profile: Profile, key: str, value: float) -> None:
    assert profile.value(key) == value


def test_conversions_are_exact_integers(profile: Profile) -> None:
    assert profile.ps("ub.latency_inter_us") == 2_000_000
    assert profile.ps("engine.poll_price_ns") == 100_000
    assert profile.per_s("ub.read_inter_gb_per_s") == 164 * 10**9
    assert profile.per_s("die.int8_tops") == 752 * 10**12
    assert profile.num_bytes("die.hbm_gb") == 64 * 10**9
    # As floats 1.001 x 1e6 is 1000999.9999999999.
    assert load_profile(overrides={"ub.latency_inter_us": "1.001"}).ps("ub.latency_inter_us") == 1_001_000


def test_conversion_to_the_wrong_kind_is_refused(profile: Profile) -> None:
    with pytest.raises(UsageError, match="die.hbm_gb is in GB, not in ps or ns"):
        profile.ps("die.hbm_gb")


def test_override_round_trip(profile: Profile) -> None:
    changed_profile = load_profile(overrides={"ub.latency_inter_us": "4"})
    entry = changed_profile.entry("ub.latency_inter_us")
    assert (entry.value, entry.unit, entry.label) == (4, "us", "override")
    assert entry.source == "override of 2.0 (derived)"
    assert changed_profile.hash() != profile.hash()
    assert load_profile(overrides={"ub.latency_inter_us": 2}).hash() == profile.hash()
    others = [key for key, e in changed_profile.items() if e != profile.entry(key)]
    assert others == ["ub.latency_inter_us"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"ub.latency_inter": 4}, "did you mean 'ub.latency_inter_us'"),
        ({"latency_inter_us": 4}, "did you mean 'ub.latency_inter_us'"),
        ({"ub.latency_iner_us": 4}, "did you mean 'ub.latency_inter_us'"),
        ({"ub.latency_inter_us": -1}, "absurd; it must lie between 0 and 1000 us"),
        ({"ub.latency_inter_us": 2e6}, "absurd"),
        ({"ub.latency_inter_us": "nan"}, "absurd"),
        ({"ub.read_inter_gb_per_s": "inf"}, "absurd"),
        ({"ub.read_inter_gb_per_s": 0}, "absurd"),
        ({"ub.latency_inter_us": "4us"}, "4us: not a number of us"),
        ({"ub.latency_inter_us": True}, "True is not a number of us"),
        ({"ub.latency_inter_us": None}, "None is not a number of us"),
        ({"pod.nodes": 2.5}, "must be a whole number of nodes"),
    ],
)
def test_bad_overrides(overrides: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as raised:
        load_profile(overrides=overrides)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (LINE, 'latency_inter = { value = 2.0, unit = "us"', "did you mean 'ub.latency_inter_us'"),
        (LINE, 'latency_inter_us = { value = 2.0, unit = "ns"', "unit 'ns'; it must be 'us'"),
        (LINE, 'latency_inter_us = { value = 2.0, unit = "parsec"', "unknown unit 'parsec'; it must be 'us'"),
        (LINE, 'latency_inter_us = { value = "2", unit = "us"', "value has the wrong type: '2'"),
        (LINE, 'latency_inter_us = { value = true, unit = "us"', "value has the wrong type: True"),
        (LINE, 'latency_inter_us = { value = nan, unit = "us"', "absurd"),
        (LINE, 'latency_inter_us = { value = 2e9, unit = "us"', "absurd"),
        (LINE, 'latency_inter_us = { unit = "us"', "missing field 'value'"),
        (LINE, "latency_inter_us = { value = 2.0", "missing field 'unit'"),
        (LINE, 'latency_inter_us = { value = 2.0, key = "x", unit = "us"', "unknown field 'key'"),
        (LINE, 'latency_inter_us = { value = 2.0, sauce = "x", unit = "us"', "did you mean 'source'"),
        ("[pod]\n", "[pod]\nspare = 4\n", "pod.spare must be a table { value, unit, source, label }, not 4"),
        ("[pod]\n", "[pod]\nspare = {}\n", "pod.spare: missing field"),
        ("[pod]\n", "[pod\n", "not valid TOML"),
        ('2.2, Fig 2", label = "published"', '2.2, Fig 2", label = "publishd"', "did you mean 'published'"),
        ('2.2, Fig 2", label = "published"', '2.2, Fig 2", label = "override"', "unknown label 'override'"),
        ('source = "arXiv 2508.02520v6 2.2, Fig 2"', 'source = " "', "the source is empty"),
    ],
)
def test_bad_files(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as raised:
        load_profile(changed(tmp_path, old, new))
    assert "changed.toml" in str(raised.value)


@pytest.mark.parametrize("key", sorted(PROFILE_KEYS))
def test_each_missing_key_is_an_error(tmp_path: Path, key: str) -> None:
    section, _, name = key.rpartition(".")
    lines = SHIPPED.read_text(encoding="utf-8").splitlines()
    start = lines.index(f"[{section}]")
    at = next(i for i in range(start, len(lines)) if lines[i].startswith(f"{name} = "))
    path = tmp_path / "short.toml"
    path.write_text("\n".join(lines[:at] + lines[at + 1 :]), encoding="utf-8")
    with pytest.raises(UsageError, match=f"missing key '{re.escape(key)}'"):
        load_profile(path)


def test_unknown_profile_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'cloudmatrix384'"):
        load_profile("cloudmatrix")
    with pytest.raises(UsageError, match="No such file"):
        load_profile(tmp_path / "none.toml")


def test_unknown_key_of_a_loaded_profile(profile: Profile) -> None:
    with pytest.raises(UsageError, match="did you mean 'die.hbm_gb'"):
        profile.value("die.hbm_gbs")
