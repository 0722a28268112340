"""`superpod bench serve` against a server with a scripted engine, over a real socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from fake_engine import STEP_PS, FakeEngine, app_of

from launch.cli import main
from serving.feed import FeedRequest


def script(request: FeedRequest) -> list[int]:
    return [10 + i for i in range(60)]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[FakeEngine, str]]:
    engine = FakeEngine(script)
    app = app_of(engine)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        host, port = listener.getsockname()
        config = uvicorn.Config(app, log_level="warning", lifespan="off")
        running = uvicorn.Server(config)

        async def serve() -> None:
            app.state.client.start()
            await running.serve(sockets=[listener])

        import asyncio

        thread = threading.Thread(target=asyncio.run, args=(serve(),))
        thread.start()
        yield engine, f"http://{host}:{port}"
        running.should_exit = True
        thread.join()


def bench(url: str, out: Path, *words: str) -> tuple[int, dict[str, object]]:
    code = main(["bench", "serve", "--base-url", url, "--json", str(out), *words])
    return code, json.loads(out.read_text())


def test_virtual_arrivals(
    server: tuple[FakeEngine, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every request is there before time goes on, and arrives when the load says."""
    engine, url = server
    before = len(engine.requests)
    words = ["--num-prompts", "20", "--request-rate", "10", "--seed", "3"]
    words += ["--random-input-len", "5", "--random-output-len", "4"]
    code, found = bench(url, tmp_path / "r.json", *words, "--goodput", "ttft:1000", "tpot:1")
    assert code == 0
    sent = engine.requests[before:]
    arrivals = sorted(request.arrival_ps or 0 for request in sent)
    assert len(sent) == 20 and arrivals[-1] - arrivals[0] < 2 * 10**12
    assert (found["completed"], found["total_output_tokens"], found["arrivals"]) == (20, 80, "virtual")
    assert found["mean_tpot_ms"] == pytest.approx(STEP_PS / 1e9)
    assert found["request_goodput"] == found["request_throughput"]
    assert isinstance(found["wall_duration"], float) and "wall_mean_ttft_ms" in found
    printed = capsys.readouterr().out
    assert "Request goodput (req/s):" in printed and " wall " in printed


def test_the_clock_asked_for_is_the_servers(
    server: tuple[FakeEngine, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails where `check_server` compares nothing."""
    _, url = server
    words = ["--num-prompts", "1", "--random-input-len", "5", "--random-output-len", "4", "--clock", "wall"]
    code, found = bench(url, tmp_path / "c.json", *words, "--dilation", "20")
    assert code == 0 and found["clock"] == {"clock": "wall", "dilation": 20.0, "compute": "priced"}
    assert "Clock of the server: wall, 1 s lasts 20 s, compute priced" in capsys.readouterr().out
    for wrong, has in ((["--dilation", "30"], "dilation 20"), (["--compute", "measured"], "compute priced")):
        assert main(["bench", "serve", "--base-url", url, *words, *wrong]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        asked = f"--clock wall {' '.join(wrong)}"
        assert f"{asked}: the server has {has}" in line and f"start superpod serve {asked}" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--goodput", "itl:5"], "itl"),
        (["--goodput"], "goodput"),
        (["--dataset-name", "mooncake"], "--dataset-path"),
        (["--dataset-name", "mooncak"], "mooncake"),
        (["--request-rate", "0"], "--request-rate"),
        (["--model", "nope"], "tiny"),
        (["--extra-body", "[]"], "--extra-body"),
        (["--metric-percentiles", "101"], "--metric-percentiles"),
        (["--base-url", "localhost"], "--base-url"),
    ],
)
def test_bad_input(
    server: tuple[FakeEngine, str], capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["bench", "serve", "--base-url", server[1], *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:1"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
