"""Many clients against one server for a while, a good part of them leaving in the middle of it.

    python benchmarks/http_soak.py -n 32 --clients 200 --seconds 120

Each client asks again and again, whole or streamed, one answer or two; some hang up: before the head of the
answer, after the first chunk, or after some more. Checked at the end: every request the server accepted has
ended exactly once; every client got an answer or left; no KV block is lost; memory (PSS of all processes)
has not grown between the middle and the end by more than 3 %; /health answered within a second (p99). Exit
code 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from serving.bench.http import HttpError, Reply, Target, fetch, send

_PROBE_S = 0.2
_STATES = ("queued", "first chunk", "later")


@dataclass
class Tally:
    """What has happened so far."""

    ends: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    tokens: int = 0
    health_s: list[float] = field(default_factory=list)
    pss_bytes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """One request of a client: its body, and where it leaves (None: it stays)."""

    body: dict[str, Any]
    leaves: str | None
    delay_s: float
    chunks: int


def draw(rng: np.random.Generator, vocab: int, share: float) -> Plan:
    """A request of a client."""
    leaves = str(rng.choice(_STATES)) if rng.random() < share else None
    stream = leaves in ("first chunk", "later") or bool(rng.integers(2))
    prompt = [int(t) for t in rng.integers(4, vocab, int(rng.integers(1, 60)))]
    body: dict[str, Any] = {
        "prompt": [7] * int(rng.integers(0, 3)) * 16 + prompt,
        "max_tokens": int(rng.integers(2, 25)),
        "temperature": float(rng.choice([0.0, 1.0])),
        "seed": int(rng.integers(1 << 30)),
        "ignore_eos": True,
        "stream": stream,
    }
    if body["temperature"] and rng.random() < 0.2:
        body["n"] = 2
    return Plan(body, leaves, float(rng.random() * 2), int(rng.integers(2, 8)))


async def one(target: Target, plan: Plan, tally: Tally) -> None:
    """Send one request and follow its plan."""
    try:
        if plan.leaves == "queued":
            task = asyncio.ensure_future(_whole(target, plan))
            await asyncio.wait({task}, timeout=plan.delay_s)
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                tally.ends["left: queued or running"] += 1
                return
            await task
            tally.ends["complete before it could leave"] += 1
            return
        async with send(target, "POST", "/v1/completions", plan.body) as reply:
            if reply.status != 200:
                raise HttpError(f"{reply.status} {(await reply.body())[:200]!r}")
            tally.ends[await _listen(reply, plan, tally)] += 1
    except HttpError as error:
        tally.ends["error"] += 1
        tally.errors.append(str(error))


async def _whole(target: Target, plan: Plan) -> None:
    async with send(target, "POST", "/v1/completions", plan.body) as reply:
        await reply.body()


async def _listen(reply: Reply, plan: Plan, tally: Tally) -> str:
    if not plan.body["stream"]:
        answer = json.loads(await reply.body())
        tally.tokens += answer["usage"]["completion_tokens"]
        return "complete"
    ended, heard = 0, 0
    async for chunk in reply.events():
        if "error" in chunk:
            raise HttpError(str(chunk["error"]))
        heard += 1
        tally.tokens += len(chunk["superpod"]["token_times_ps"])
        ended += sum(choice["finish_reason"] is not None for choice in chunk["choices"])
        if plan.leaves == "first chunk" or (plan.leaves == "later" and heard >= plan.chunks):
            return f"left: after {plan.leaves}"
    if ended != plan.body.get("n", 1):
        raise HttpError(f"{ended} choices ended, and {plan.body.get('n', 1)} were asked for")
    return "complete"


async def client(
    target: Target, seed: tuple[int, int], vocab: int, share: float, until: float, tally: Tally
) -> None:
    """Ask until the time is over."""
    rng = np.random.default_rng(seed)
    while time.monotonic() < until:
        await one(target, draw(rng, vocab, share), tally)


async def probe(target: Target, until: float, tally: Tally) -> None:
    """Ask for /health all the time."""
    while time.monotonic() < until:
        begin = time.monotonic()
        async with send(target, "GET", "/health") as reply:
            await reply.body()
            if reply.status != 200:
                tally.errors.append(f"/health: {reply.status}")
        tally.health_s.append(time.monotonic() - begin)
        await asyncio.sleep(_PROBE_S)


def pss_bytes(pid: int) -> int:
    """PSS of a process and all its descendants."""
    total = 0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        with contextlib.suppress(psutil.Error, OSError):
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            total += int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1]) << 10  # type: ignore[index]
    return total


async def measure(pid: int, seconds: float, tally: Tally) -> None:
    """Memory in the middle and at the end."""
    for name in ("middle", "end"):
        await asyncio.sleep(seconds / 2 - 0.5)
        tally.pss_bytes[name] = await asyncio.to_thread(pss_bytes, pid)


async def soak(target: Target, pid: int, options: argparse.Namespace) -> tuple[Tally, dict[str, Any], str]:
    """The whole load; what happened, the server's counts after it, its metrics."""
    card = (await fetch(target, "GET", "/v1/models"))["data"][0]["superpod"]
    until, tally = time.monotonic() + options.seconds, Tally()
    clients = [
        client(target, (options.seed, i), card["vocab_size"], options.aborts, until, tally)
        for i in range(options.clients)
    ]
    await asyncio.gather(*clients, probe(target, until, tally), measure(pid, options.seconds, tally))
    state: dict[str, Any] = {"in_flight": 1}
    while state["in_flight"]:
        state = await fetch(target, "GET", "/superpod/clock")
        await asyncio.sleep(_PROBE_S)
    await asyncio.sleep(1)
    async with send(target, "GET", "/metrics") as reply:
        return tally, state, (await reply.body()).decode()


def start(options: argparse.Namespace, folder: Path) -> tuple[subprocess.Popen[str], Target]:
    """Start the server; wait until it is healthy."""
    model = options.model or make_model(folder)
    words = [
        "serve",
        str(model),
        "-n",
        str(options.num_ranks),
        "--port",
        "0",
        "--json",
        str(folder / "serve.json"),
    ]
    words += ["--max-num-seqs", str(options.max_num_seqs), *options.serve]
    server = subprocess.Popen(
        [sys.executable, "-m", "launch.cli", *words],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert server.stderr is not None
    try:
        found = None
        while found is None:
            line = server.stderr.readline()
            if not line:
                raise SystemExit(f"the server ended with exit code {server.wait()}")
            print(line, end="", file=sys.stderr)
            found = re.search(r"http://\S+", line)
        target = Target.parse(found[0])
        asyncio.run(healthy(target))
    except BaseException:
        server.kill()
        raise
    return server, target


async def healthy(target: Target) -> None:
    """Wait for /health."""
    while True:
        async with send(target, "GET", "/health") as reply:
            await reply.body()
            if reply.status == 200:
                return
        await asyncio.sleep(_PROBE_S)


def make_model(folder: Path) -> Path:
    """A mini model with a tokenizer."""
    words = ["make-checkpoint", str(folder / "model"), "--tokenizer"]
    subprocess.run([sys.executable, "-m", "launch.cli", *words], check=True)
    return folder / "model"


def judge(
    tally: Tally, state: dict[str, Any], metrics: str, ended: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Figures, and what is wrong with them."""
    total, left = sum(tally.ends.values()), sum(n for k, n in tally.ends.items() if k.startswith("left"))
    growth = tally.pss_bytes["end"] / tally.pss_bytes["middle"] - 1
    p99 = float(np.percentile(tally.health_s, 99))
    figures = {
        "requests": total,
        "ends": dict(tally.ends),
        "left_share": left / max(1, total),
        "tokens": tally.tokens,
        "server": state,
        "kv_usage_at_idle": max(map(float, re.findall(r"vllm:kv_cache_usage_perc\{[^}]*\} (\S+)", metrics))),
        "pss_gb": {k: v / 1e9 for k, v in tally.pss_bytes.items()},
        "pss_growth": growth,
        "health_p99_s": p99,
        "serve": ended,
    }
    wrong = [f"error: {e}" for e in tally.errors[:10]]
    checks = {
        "requests that have not ended exactly once": state["accepted"] != state["ended"],
        "fewer than 30 % left": left < 0.3 * total,
        "KV blocks lost": ended["kv_blocks_allocated"] != ended["kv_blocks_freed"],
        "PSS grew by more than 3 %": growth > 0.03,
        "p99 of /health above 1 s": p99 > 1,
    }
    return figures, wrong + [name for name, broken in checks.items() if broken]


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server ends with us
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--num-ranks", type=int, default=32)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--aborts", type=float, default=0.45, help="share of requests that mean to leave")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="checkpoint directory (else a mini model is made)")
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--json", type=Path)
    parser.add_argument("serve", nargs="*", help="further options of superpod serve, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="superpod-soak-") as folder:
        server, target = start(options, Path(folder))
        try:
            tally, state, metrics = asyncio.run(soak(target, server.pid, options))
            server.send_signal(signal.SIGTERM)
            code = server.wait(120)
        finally:
            server.kill()
        ended = json.loads((Path(folder) / "serve.json").read_text())
    figures, wrong = judge(tally, state, metrics, ended)
    wrong += [f"the server ended with exit code {code}"] if code else []
    text = json.dumps({**figures, "seed": options.seed, "wrong": wrong}, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
