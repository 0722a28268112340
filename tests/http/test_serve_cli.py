"""`superpod serve`: what is refused before anything starts."""

from pathlib import Path

import pytest
from replays import Model, make_model

from launch.cli import main
from launch.cmd_serve import is_loopback


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "--api-key"),
        (["--host", "::"], "--api-key"),
        (["--host", "no such host"], "no such address"),
        (["--host", "0.0.0.0", "--api-key", ""], "--api-key"),
        (["--max-queue", "0"], "max-queue"),
        (["--port", "70000"], "port"),
        (["--record", "/nonexistent/file"], "--record"),
        (["--pod", "nonesuch"], "nonesuch"),
        (["--load-balancing", "best"], "best"),
        (["--max-model-len", "10000000"], "--max-model-len"),
        (["--clock", "wall", "--dilation", "0"], "dilation"),
        (["--priced-as", "deepseek-r1"], "routed"),
        (["--dtype", "auto"], "--quantization int8"),
        (["--speculative-config={}"], "--mtp N"),
        (["--mtpp", "1"], "did you mean"),
        (["--tensor-parallel-size", "0"], "--tp-size 0"),
        (["--mtp", "1"], "make-checkpoint --mtp-layers"),
        (["--mtp-acceptance", "0.9"], "--mtp 1"),
        (["--quantization", "fp8"], "int8"),
        (["--eplb", "best"], "xdeepserve"),
        (["--redundant-experts", "-1"], "redundant-experts"),
        (["--dram-blocks", "4", "--no-enable-prefix-caching"], "--enable-prefix-caching"),
    ],
)
def test_bad_input_is_one_line(
    tiny: Model, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    given = ["serve", tiny.directory, "-n", "2", "--priced-as", tiny.priced_as, "--no-memory-check"]
    assert main([*given, *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path), "-n", "2"]) == 2
    assert "config.json" in capsys.readouterr().err


def test_loopback() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("localhost") and is_loopback("127.9.9.9")
    assert not is_loopback("0.0.0.0") and not is_loopback("10.0.0.1")
