"""The HTTP server over a scripted engine: OpenAI's protocol, by OpenAI's own client and by raw requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine, app_of

from serving.api.made_tokenizer import make_tokenizer
from serving.api.tokenizer import Tokenizer
from serving.api.vocabulary import token_bytes
from serving.feed import FeedRequest


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer")
    make_tokenizer(path, 512)
    return Tokenizer(path)


def ids(request: FeedRequest) -> list[int]:
    return [10 + request.choice + i for i in range(60)]


def spoken(tokenizer: Tokenizer, text: str) -> Callable[[FeedRequest], list[int]]:
    return lambda request: [*tokenizer.encode(text, False), *([5] * 60)]


async def until(what: Callable[[], bool]) -> None:
    """Let others run until something is so."""
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.002)


def with_app(app: Any, use: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
    """Run `use` with a client of the app."""

    async def body() -> Any:
        app.state.client.start()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://t", timeout=20) as client:
            return await use(client)

    return asyncio.run(body())


def post(app: Any, path: str, body: Any, **options: Any) -> httpx.Response:
    async def use(client: httpx.AsyncClient) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await client.post(path, content=content, **options)

    found: httpx.Response = with_app(app, use)
    return found


def test_token_ids_without_a_tokenizer() -> None:
    engine = FakeEngine(ids)
    body = {
        "prompt": [[1, 2], [3]],
        "max_tokens": 3,
        "n": 2,
        "temperature": 1,
        "seed": 7,
        "return_token_ids": True,
    }
    answer = post(app_of(engine), "/v1/completions", body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [c["index"] for c in found["choices"]] == [0, 1, 2, 3]
    assert [c["token_ids"] for c in found["choices"]] == [[10, 11, 12], [11, 12, 13]] * 2
    assert found["choices"][3]["text"] == "11 12 13 " and found["choices"][0]["finish_reason"] == "length"
    assert [(r.request_id, list(r.prompt), r.choice, r.seed, r.max_output) for r in engine.requests] == [
        (0, [1, 2], 0, 7, 3), (1, [1, 2], 1, 7, 3), (2, [3], 0, 7, 3), (3, [3], 1, 7, 3),
    ]  # fmt: skip
    usage = found["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 12, 15)
    assert usage["superpod"]["arrival_ps"] == 1000 and len(usage["superpod"]["token_times_ps"][0]) == 3
    assert answer.headers["x-superpod-end-ps"] == str(usage["superpod"]["end_ps"])


def test_seeds_of_requests_without_one_are_their_own() -> None:
    engine = FakeEngine(ids)
    app = app_of(engine)
    post(app, "/v1/completions", {"prompt": [1], "n": 2})
    post(app, "/v1/completions", {"prompt": [1]})
    first, second, third = [r.seed for r in engine.requests]
    assert first == second != third


def test_chat_with_the_openai_client(tokenizer: Tokenizer) -> None:
    engine = FakeEngine(spoken(tokenizer, "über <and> 你好"), token_bytes(tokenizer, 512))
    app = app_of(engine, tokenizer)
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]

    async def use(http: httpx.AsyncClient) -> None:
        client = openai.AsyncOpenAI(api_key="x", base_url="http://t/v1", http_client=http, max_retries=0)
        whole = await client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=40, stop=["好"], logprobs=True, top_logprobs=2
        )
        choice = whole.choices[0]
        assert (choice.message.content, choice.finish_reason) == ("über <and> 你", "stop")
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert len(choice.logprobs.content) == whole.usage.completion_tokens  # type: ignore[union-attr]
        assert len(choice.logprobs.content[0].top_logprobs) == 2
        stream = await client.chat.completions.create(
            model="other", messages=messages, max_tokens=40, stop=["好"], stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == "über <and> 你"
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].usage == whole.usage or True
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens  # type: ignore[union-attr]
        models = [m.id async for m in client.models.list()]
        assert models == ["tiny", "other"]
        with pytest.raises(openai.NotFoundError, match="nope"):
            await client.chat.completions.create(model="nope", messages=messages)
        with pytest.raises(openai.BadRequestError, match="tools"):
            await client.chat.completions.create(
                model="tiny", messages=messages, tools=[{"type": "function", "function": {"name": "f"}}]
            )

    with_app(app, use)
    prompt = tokenizer.decode(list(engine.requests[0].prompt), False)
    assert prompt == "<bos><user>hello<assistant>"


def test_completion_stream_and_logprobs(tokenizer: Tokenizer) -> None:
    app = app_of(FakeEngine(spoken(tokenizer, "the end<eos>")), tokenizer)
    body = {"prompt": "x", "max_tokens": 30, "stream": True, "logprobs": 1, "n": 1}
    text = post(app, "/v1/completions", body).text
    events = [json.loads(line[6:]) for line in text.strip().split("\n\n")[:-1]]
    assert text.endswith("data: [DONE]\n\n")
    assert "".join(e["choices"][0]["text"] for e in events)[:7] == "the end"
    offsets = [e["choices"][0]["logprobs"]["text_offset"][0] for e in events]
    assert offsets == sorted(offsets) and offsets[0] == 0
    assert all(e["superpod"]["token_times_ps"] for e in events)


def test_end_of_sequence_is_no_text(tokenizer: Tokenizer) -> None:
    eos = tokenizer.fast.token_to_id("<eos>")
    engine = FakeEngine(spoken(tokenizer, "hi<eos>"))
    app = app_of(engine, tokenizer)
    body = {"prompt": "x", "max_tokens": 30, "stop_token_ids": [eos], "skip_special_tokens": False}
    choice = post(app, "/v1/completions", body).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("hi", "stop", eos)
    body |= {"include_stop_str_in_output": True}
    assert post(app, "/v1/completions", body).json()["choices"][0]["text"] == "hi<eos>"


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BAD: list[tuple[str, Any, int, str]] = [
    (COMPLETIONS, b"{", 400, "JSON"),
    (COMPLETIONS, b"\xff{}", 400, "UTF-8"),
    (COMPLETIONS, b"[1]", 400, "object"),
    (COMPLETIONS, b'{"prompt": "\\ud800"}', 400, "surrogate"),
    (COMPLETIONS, b'{"prompt": [1], "temperature": NaN}', 400, "NaN"),
    (COMPLETIONS, b'{"prompt": [1], "temperature": 1e999}', 400, "temperature"),
    (COMPLETIONS, b"[" * 100_000, 400, "deep"),
    (COMPLETIONS, b'{"n": ' + b"9" * 5000 + b"}", 400, "JSON"),
    (COMPLETIONS, {}, 400, "prompt"),
    (COMPLETIONS, {"prompt": 3}, 400, "prompt"),
    (COMPLETIONS, {"prompt": []}, 400, "prompt"),
    (COMPLETIONS, {"prompt": [[]]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": [[1], "x"]}, 400, "prompt"),
    (COMPLETIONS, {"prompt": "text"}, 400, "tokenizer"),
    (COMPLETIONS, {"prompt": [512]}, 400, "512"),
    (COMPLETIONS, {"prompt": [-1]}, 400, "-1"),
    (COMPLETIONS, {"prompt": [1] * 64}, 400, "context"),
    (COMPLETIONS, {"prompt": [1], "max_tokens": 64}, 400, "context"),
    (COMPLETIONS, {"prompt": [1], "max_tokens": 0}, 400, "max_tokens"),
    (COMPLETIONS, {"prompt": [1], "max_tokens": -5}, 400, "max_tokens"),
    (COMPLETIONS, {"prompt": [1], "max_tokens": "7"}, 400, "max_tokens"),
    (COMPLETIONS, {"prompt": [1], "n": 10**6}, 400, "n must"),
    (COMPLETIONS, {"prompt": [[1]] * 1000, "n": 1000}, 400, "answers"),
    (COMPLETIONS, {"prompt": [1], "temperature": -1}, 400, "temperature"),
    (COMPLETIONS, {"prompt": [1], "stop": [""]}, 400, "stop"),
    (COMPLETIONS, {"prompt": [1], "stop": ["a"] * 65}, 400, "at most 64 strings, got 65"),
    (COMPLETIONS, {"prompt": [1], "stop": ["a"]}, 400, "tokenizer"),
    (COMPLETIONS, {"prompt": [1], "logprobs": 100}, 400, "logprobs"),
    (COMPLETIONS, {"prompt": [1], "stop_token_ids": [600]}, 400, "600"),
    (COMPLETIONS, {"prompt": [1], "logit_bias": {"x": 1}}, 400, "logit_bias"),
    (COMPLETIONS, {"prompt": [1], "stream_options": {"include_usage": True}}, 400, "stream"),
    (COMPLETIONS, {"prompt": [1], "echo": True}, 400, "echo"),
    (COMPLETIONS, {"prompt": [1], "response_format": {"type": "json_object"}}, 400, "response_format"),
    (COMPLETIONS, {"prompt": [1], "teperature": 1}, 400, "teperature"),
    (COMPLETIONS, {"prompt": [1], "model": "gpt-4"}, 404, "gpt-4"),
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": "x"}]}, 400, "tokenizer"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"),
    (CHAT, {"messages": [{"content": "x"}]}, 400, "role"),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}, 400, "top_logprobs"),
    ("/tokenize", {}, 400, "prompt"),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
    ("/detokenize", {"tokens": [10**30]}, 400, "tokens"),
    ("/v1/nothing", {}, 404, "no such path"),
    ("/health", {}, 405, "POST"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "word"), BAD)
def test_bad_input_is_one_error_body(path: str, body: Any, status: int, word: str) -> None:
    engine = FakeEngine(ids)
    answer = post(app_of(engine), path, body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and "\n" not in error["message"]
    assert word in error["message"] or word == error["param"], error
    assert not engine.requests


def test_arrival_header() -> None:
    engine = FakeEngine(ids)
    app = app_of(engine)
    for value, status in (("999", 400), ("-5", 400), ("1e3", 400), ("9" * 30, 400), ("5000", 200)):
        answer = post(app, COMPLETIONS, {"prompt": [1]}, headers={"X-Superpod-Arrival-Ps": value})
        assert answer.status_code == status, answer.text
    assert [r.arrival_ps for r in engine.requests] == [5000]


def test_api_key() -> None:
    app = app_of(FakeEngine(ids), api_key="s3cret")
    for headers, status in (
        ({}, 401),
        ({"authorization": "Bearer no"}, 401),
        ({"authorization": "Bearer s3cret"}, 200),
    ):
        assert post(app, COMPLETIONS, {"prompt": [1]}, headers=headers).status_code == status

    async def use(client: httpx.AsyncClient) -> list[int]:
        await asyncio.sleep(0.01)
        return [(await client.get(path)).status_code for path in ("/health", "/metrics", "/v1/models")]

    assert with_app(app, use) == [200, 200, 401]


def test_queue_aborts_and_the_end() -> None:
    """429 beyond --max-queue; a client that leaves aborts; a dead engine answers what is in flight.

    Mutation: `_unless_left` that does not abort."""
    engine = FakeEngine(ids)
    engine.paused = True
    app = app_of(engine, max_queue=2)
    client_of = app.state.client

    async def use(client: httpx.AsyncClient) -> None:
        body = {"prompt": [1], "max_tokens": 2}
        tasks = [asyncio.ensure_future(client.post(COMPLETIONS, json=body)) for _ in range(2)]
        await until(lambda: len(engine.requests) == 2)
        refused = await client.post(COMPLETIONS, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["retry-after"]
        engine.release()
        assert [(await task).status_code for task in tasks] == [200, 200]
        engine.paused = True
        lasting = asyncio.ensure_future(client.post(COMPLETIONS, json=body))
        await until(lambda: len(engine.requests) == 3)
        client_of.lose("the ranks are gone")
        answer = await lasting
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "the ranks are gone")
        assert (await client.post(COMPLETIONS, json=body)).status_code == 503
        assert (await client.get("/health")).status_code == 503
        counts = client_of.counts
        assert (counts.accepted, counts.ended, counts.refused) == (3, 3, 1)

    with_app(app, use)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after_first", [False, True])
def test_a_client_that_leaves_is_aborted(stream: bool, after_first: bool) -> None:
    """Mutation: `_Stream.__call__` without its finally, `_unless_left` without raising."""
    engine = FakeEngine(ids)
    engine.paused = True
    app = app_of(engine)

    async def body() -> None:
        app.state.client.start()
        sent: list[Any] = []
        left = asyncio.Event()
        fields = json.dumps({"prompt": [1], "n": 2, "max_tokens": 30, "stream": stream}).encode()
        messages = [{"type": "http.request", "body": fields, "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": COMPLETIONS, "raw_path": b"", "query_string": b"",
            "headers": [], "server": ("t", 80),
        }  # fmt: skip
        task = asyncio.ensure_future(app(scope, receive, send))
        await until(lambda: len(engine.requests) == 2)
        if after_first:
            engine._say(engine.requests[0], [3], None)
            await asyncio.sleep(0.05)
        left.set()
        await asyncio.wait_for(task, 60)
        await until(lambda: len(engine.aborted) == 2)
        assert sorted(engine.aborted) == [0, 1]
        counts = app.state.client.counts
        assert (counts.accepted, counts.ended, counts.aborted) == (2, 2, 2)

    asyncio.run(body())


def test_metrics_have_vllms_names() -> None:
    engine = FakeEngine(ids)
    app = app_of(engine)
    post(app, COMPLETIONS, {"prompt": [1, 2, 3], "max_tokens": 4})

    async def use(client: httpx.AsyncClient) -> str:
        return (await client.get("/metrics")).text

    text = with_app(app, use)
    label = '{engine="1",model_name="tiny"}'
    for line in (
        f"vllm:prompt_tokens_total{label} 3.0",
        f"vllm:generation_tokens_total{label} 4.0",
        f"vllm:time_to_first_token_seconds_count{label} 1.0",
        f"vllm:inter_token_latency_seconds_count{label} 3.0",
        'vllm:request_success_total{engine="1",finished_reason="length",model_name="tiny"} 1.0',
        'vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0',
    ):
        assert line in text, text


def test_tokenize_and_back(tokenizer: Tokenizer) -> None:
    app = app_of(FakeEngine(ids), tokenizer)
    found = post(app, "/tokenize", {"prompt": "the ü", "return_token_strs": True}).json()
    assert (
        found["count"] == len(found["tokens"]) == len(found["token_strs"])
        and found["token_strs"][0] == "<bos>"
    )
    assert post(app, "/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": "<bos>the ü"}
    chat = post(app, "/tokenize", {"messages": [{"role": "user", "content": "x"}]}).json()
    assert tokenizer.decode(chat["tokens"], False) == "<bos><user>x<assistant>"


GENERATORS: list[tuple[str, dict[str, Any]]] = [
    (  # vllm bench serve, openai
        COMPLETIONS,
        {
            "model": "tiny", "prompt": "x", "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 3,
            "logprobs": None, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
        },
    ),
    (  # vllm bench serve, openai-chat
        CHAT,
        {
            "model": "tiny", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
            "max_completion_tokens": 3, "stream": True, "stream_options": {"include_usage": True},
            "temperature": 0.0, "ignore_eos": True,
        },
    ),
    (  # guidellm
        CHAT,
        {
            "model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3,
            "max_completion_tokens": 3, "stop": None, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
]  # fmt: skip
"""What load generators send (sources: vllm `benchmarks/lib/endpoint_request_func.py`, guidellm's backend)."""


@pytest.mark.parametrize(("path", "body"), GENERATORS)
def test_bodies_of_load_generators(tokenizer: Tokenizer, path: str, body: dict[str, Any]) -> None:
    text = post(app_of(FakeEngine(ids), tokenizer), path, body).text
    events = [json.loads(line[6:]) for line in text.strip().split("\n\n")[:-1]]
    assert events[-1]["usage"]["completion_tokens"] == 3 and events[-1]["choices"] == []
