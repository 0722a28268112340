"""`superpod serve`, `superpod bench serve`, `superpod replay` of the recording and `LLM`, on real ranks.

One server of two ranks is asked everything; what it recorded is then replayed.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from replays import make_model

from launch.cli import main
from launch.llm import LLM
from serving.api.made_tokenizer import make_tokenizer
from serving.api.tokenizer import Tokenizer
from serving.dispatch import TICK_PS
from serving.model.checkpoint import make_checkpoint
from serving.model.config import PRESETS
from serving.model.reference import ReferenceRequest, generate
from serving.model.sampling_params import GREEDY, SamplingParams

pytestmark = pytest.mark.multirank

VOCABULARY = 320
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=12)
PENALTIES: dict[str, Any] = {"presence_penalty": 0.5, "frequency_penalty": 0.25}
BESIDE: dict[str, Any] = {"repetition_penalty": 1.3, "top_k": 40, "min_p": 0.01}
PENALISED = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=12, **PENALTIES, **BESIDE)


@dataclass(frozen=True)
class Made:
    model: str
    priced: str
    tokenizer: Tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("model")
    priced = make_model(folder).priced_as
    make_checkpoint(folder / "m", PRESETS["tiny"].model_copy(update={"vocab_size": VOCABULARY}), seed=5)
    make_tokenizer(folder / "m", VOCABULARY)
    return Made(str(folder / "m"), priced, Tokenizer(folder / "m"))


class Server:
    """`superpod serve` in a process of its own."""

    def __init__(self, made: Made, folder: Path) -> None:
        self.record, self.out = folder / "record.jsonl", folder / "serve.json"
        words = [
            "serve",
            made.model,
            "-n",
            "2",
            "--priced-as",
            made.priced,
            "--no-memory-check",
            "--port",
            "0",
        ]
        words += ["--served-model-name", "tiny", "--record", str(self.record), "--json", str(self.out)]
        words += ["--max-queue", "40", "--api-key", "k3y", "--block-size", "4"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launch.cli", *words],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, line + self.process.stderr.read()
        self.url = found[0]

    def ready(self) -> str:
        """What is said when requests can be served."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def server(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(made, tmp_path_factory.mktemp("serve"))
    yield server
    server.process.kill()


def reference(
    made: Made, prompt: list[int], params: SamplingParams, count: int, seed: int = 0, choice: int = 0
) -> list[int]:
    (found,) = generate(made.model, [ReferenceRequest(prompt, count, params, seed, choice)])
    return list(found.tokens)


async def everything(made: Made, server: Server) -> dict[int, Any]:
    """Ask everything; answers that must come again in the replay, by the number in their id."""
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(timeout=60, limits=limits) as http:
        while (await http.get(f"{server.url}/health")).status_code != 200:
            await asyncio.sleep(0.1)
        client = openai.AsyncOpenAI(
            api_key="k3y", base_url=f"{server.url}/v1", http_client=http, max_retries=0
        )
        answers = list(await asyncio.gather(*(ask(made, client, i) for i in range(7))))
        await stops(made, client)
        answers += await chat(made, client)
        await leave(client, http, server)
        await refused(client, http, server)
        state = {"in_flight": 1}
        while state["in_flight"]:
            state = await counts(http, server)
        assert state["accepted"] == state["ended"] and state["aborted"] >= 3
    return dict(answers)


async def ask(made: Made, client: openai.AsyncOpenAI, i: int) -> tuple[int, Any]:
    """Tokens are the reference's, greedy or seeded, whole or with others beside."""
    prompt = made.tokenizer.encode(f"the thing number {i} and the")
    greedy, penalised = i % 2 == 0, i == 5
    given = PENALTIES if penalised else {}
    beside = {"return_token_ids": True, "ignore_eos": True, **(BESIDE if penalised else {})}
    answer = await client.completions.create(
        model="tiny", prompt=prompt, max_tokens=12, seed=i, temperature=0 if greedy else 0.9,
        top_p=1 if greedy else 0.95, extra_body=beside, **given,
    )  # fmt: skip
    choice: Any = answer.choices[0]
    params = GREEDY if greedy else PENALISED if penalised else SEEDED
    assert choice.token_ids == reference(made, prompt, params, 12, seed=i)
    assert choice.text == made.tokenizer.decode(choice.token_ids, True)
    usage: Any = answer.usage
    times = usage.superpod["token_times_ps"][0]
    assert times == sorted(times) and usage.superpod["arrival_ps"] < times[0]
    return int(answer.id.rpartition("-")[2]), (choice.token_ids, times)


async def stops(made: Made, client: openai.AsyncOpenAI) -> None:
    """A stop string across tokens ends the answer in the engine: no token is computed after it."""
    prompt = made.tokenizer.encode("stop")
    free = reference(made, prompt, GREEDY, 12)
    text, end = made.tokenizer.decode(free), 0
    for count in range(1, 13):  # the first place where two printable characters stand side by side
        part = made.tokenizer.decode(free[:count])
        if len(part) >= 2 and part[-2:].isprintable() and "\ufffd" not in part[-2:]:
            end = count
            break
    assert end, text
    stop = made.tokenizer.decode(free[:end])[-2:]
    answer = await client.completions.create(
        model="tiny",
        prompt="stop",
        max_tokens=12,
        temperature=0,
        stop=[stop],
        extra_body={"return_token_ids": True},
    )
    choice: Any = answer.choices[0]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert choice.token_ids == free[: len(choice.token_ids)] and len(choice.token_ids) <= end
    assert choice.text == text[: text.index(stop)]


async def chat(made: Made, client: openai.AsyncOpenAI) -> list[tuple[int, Any]]:
    """A stream, n answers, log-probabilities, usage; its tokens and times by the number of each answer."""
    stream = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=8, n=2, seed=3, stream=True,
        logprobs=True, top_logprobs=2, stream_options={"include_usage": True},
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    texts, count = ["", ""], 0
    told: list[tuple[list[int], list[int]]] = [([], []), ([], [])]
    async for chunk in stream:
        each: Any
        for each in chunk.choices:
            if (ids := getattr(each, "token_ids", None)) is not None:
                told[each.index][0].extend(ids)
                told[each.index][1].extend(chunk.superpod["token_times_ps"])  # type: ignore[attr-defined]
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            count += len(choice.logprobs.content or []) if choice.logprobs else 0
        usage = chunk.usage
    assert usage is not None and usage.completion_tokens == count and texts[0] != texts[1]
    prompt = made.tokenizer.encode("<bos><user>hello<assistant>", False)
    for choice_number, text in enumerate(texts):
        tokens = reference(made, prompt, SamplingParams(temperature=1.0), 8, 3, choice_number)
        assert made.tokenizer.decode(tokens).startswith(text)
        assert told[choice_number][0] == tokens[: len(told[choice_number][0])]
    first = int(chunk.id.rpartition("-")[2])
    return [(first + choice_number, told[choice_number]) for choice_number in range(2)]


async def counts(http: httpx.AsyncClient, server: Server) -> Any:
    """How many requests the server has accepted, ended, aborted, and has in flight."""
    answer = await http.get(f"{server.url}/superpod/clock", headers={"authorization": "Bearer k3y"})
    return answer.json()


async def leave(client: openai.AsyncOpenAI, http: httpx.AsyncClient, server: Server) -> None:
    """Clients that leave: as soon as they are accepted, and in the middle of a stream."""
    for _ in range(2):
        before = (await counts(http, server))["accepted"]
        task = asyncio.ensure_future(client.completions.create(model="tiny", prompt="x" * 50, max_tokens=900))
        while (await counts(http, server))["accepted"] == before:
            await asyncio.sleep(0.005)
        task.cancel()
    stream = await client.completions.create(model="tiny", prompt="x", max_tokens=900, stream=True)
    async for _ in stream:
        break
    await stream.close()


async def refused(client: openai.AsyncOpenAI, http: httpx.AsyncClient, server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="context"):
        await client.completions.create(model="tiny", prompt="x", max_tokens=10**6)
    with pytest.raises(openai.BadRequestError, match="past"):
        await client.completions.create(
            model="tiny", prompt="x", extra_headers={"X-Superpod-Arrival-Ps": "1"}
        )
    with pytest.raises(openai.RateLimitError, match="max-queue"):
        await client.completions.create(model="tiny", prompt=[[1]] * 41)
    raw = await http.post(
        f"{server.url}/v1/completions", content=b"\xff", headers={"authorization": "Bearer k3y"}
    )
    assert raw.status_code == 400 and "UTF-8" in raw.json()["error"]["message"]


def test_serve_record_and_replay(
    made: Made, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server.ready() == f"superpod: ready: {server.url}\n"
    answers = asyncio.run(everything(made, server))
    words = ["--base-url", server.url, "--api-key", "k3y", "--num-prompts", "8", "--request-rate", "50"]
    words += ["--random-input-len", "6", "--random-output-len", "5", "--json", str(tmp_path / "bench.json")]
    assert main(["bench", "serve", *words, "--goodput", "ttft:100000"]) == 0
    bench = json.loads((tmp_path / "bench.json").read_text())
    assert (bench["completed"], bench["total_output_tokens"], bench["arrivals"]) == (8, 40, "virtual")
    gaps = [b - a for a, b in zip(bench["start_times"], bench["start_times"][1:], strict=False)]
    assert (
        sum(gaps) == pytest.approx(0.16, rel=0.5) and bench["request_goodput"] == bench["request_throughput"]
    )
    assert server.end() == 0
    served = json.loads(server.out.read_text())
    assert served["kv_blocks_allocated"] == served["kv_blocks_freed"] > 0
    capsys.readouterr()
    out = tmp_path / "replay.json"
    replay = ["replay", "--trace", str(server.record), "--json", str(out)]
    assert main(replay) == 0, capsys.readouterr().err
    requests = json.loads(out.read_text())["requests"]
    again = {r["id"]: (r["tokens"], r["times_ps"]) for r in requests}
    assert {i: again[i] for i in answers} == answers and len(answers) == 9
    assert {"abort", "length", "stop"} <= {r["finish"] for r in requests}
    assert main([*replay[:-1], str(tmp_path / "again.json")]) == 0
    assert json.loads((tmp_path / "again.json").read_text())["requests"] == requests
    assert json.loads(out.read_text())["virtual_ps"] == served["virtual_ps"]


def test_llm(made: Made) -> None:
    prompts: list[Any] = ["hello the", [5, 6, 7]]
    with LLM(made.model, ranks=2, priced_as=made.priced, memory_check=False) as llm:
        found = llm.generate(
            prompts, SamplingParams(temperature=0.9, top_p=0.95, max_tokens=6, seed=3, n=2, logprobs=1)
        )
        later = llm.generate(prompts[0], SamplingParams(temperature=0, max_tokens=6))
        with pytest.raises(Exception, match="out of range"):
            llm.generate([[VOCABULARY]])
        with pytest.raises(Exception, match="2 SamplingParams for 1"):
            llm.generate("x", [GREEDY, GREEDY])
    ids = made.tokenizer.encode("hello the")
    for output, prompt in zip(found, (ids, [5, 6, 7]), strict=True):
        assert output.prompt_token_ids == prompt and 0 < output.arrival_ps < TICK_PS
        for answer in output.outputs:
            assert (
                answer.token_ids
                == reference(made, prompt, SEEDED, 6, 3, answer.index)[: len(answer.token_ids)]
            )
            assert len(answer.logprobs or []) == len(answer.token_times_ps) == len(answer.token_ids)
    assert later[0].outputs[0].token_ids == reference(made, ids, GREEDY, 6)
    last_ps = max(t for o in found for a in o.outputs for t in a.token_times_ps)
    assert last_ps < later[0].arrival_ps < last_ps + TICK_PS, "not before the step's end, to the picosecond"
