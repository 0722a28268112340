"""Paged replays and open pods over real ranks: one answer, exact accounts, recordings that repeat."""

from __future__ import annotations

import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ranks import BIN, MCA, MPIRUN, ROOT
from replays import Model, lines, make_model, serve

from launch.cli import main
from launch.cmd_replay import Running, machine_config
from serving.feed import Feed, FeedRequest
from serving.job import PagingOptions, Progress, ReplayJob, read_results
from serving.model.config import ModelConfig
from serving.model.reference import ReferenceRequest, generate
from serving.model.sampling import SamplingParams
from serving.outputs import OutputEvent, OutputReader
from serving.replay import plan_serve, write_replay

pytestmark = [pytest.mark.multirank, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve prompts in three bursts; those of the first and the last begin alike."""
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    text = lines([(i // 4 * 4000, 1600 + 64 * i, 24) for i in range(12)])
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows[:4] + rows[8:]:
        row["hash_ids"][:2] = [7000, 7001]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_pages_shares_preemptions_and_tiers_change_times_and_not_a_bit(
    tmp_path: Path, trace: Path, model: Model
) -> None:
    ways: dict[str, list[str]] = {
        "whole": [],
        "paged": ["--block-size", "128"],
        "whole prompts": ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096"],
        "scarce": [
            *("--enable-prefix-caching", "--num-gpu-blocks-override", "26"),
            *("--load-balancing", "prefill-cost"),
        ],
        "tiers": [
            *("--enable-prefix-caching", "--num-gpu-blocks-override", "26", "--dram-blocks", "90"),
            *("--load-balancing", "decode-kv", "--kv-pool-path", "vpc"),
        ],
    }  # fmt: skip
    results = {name: serve(tmp_path / name, trace, model, 2, *options) for name, options in ways.items()}
    assert len({result["logits_sha256"] for result in results.values()}) == 1
    assert len({result["tokens_sha256"] for result in results.values()}) == 1
    assert all(result["completed"] == 12 for result in results.values())
    cache = {name: result["cache"] for name, result in results.items() if name != "whole"}
    assert cache["paged"]["preemptions"] == cache["paged"]["hit"] == 0
    assert cache["scarce"]["preemptions"] > 0 and cache["scarce"]["hit"] > 0
    assert cache["tiers"]["loaded"] > 0 and cache["tiers"]["kv_load_bytes"] > 0
    assert results["tiers"]["virtual_time"]["kv_load"]["mean_s"] > 0
    # blocks that suffice change nothing: the same schedule, to the picosecond
    assert results["paged"]["trace_sha256"] == results["whole"]["trace_sha256"]
    assert results["whole prompts"]["trace_sha256"] != results["whole"]["trace_sha256"]


class Pod:
    """Two ranks that serve what is fed to them."""

    def __init__(self, folder: Path, model: Model, paging: PagingOptions) -> None:
        folder.mkdir()
        job = ReplayJob(
            model_dir=model.directory,
            num_ranks=2,
            priced_as=model.priced_as,
            profile="cloudmatrix384",
            check_memory=False,
            max_seqs=6,
            batched_tokens=64,
            paging=paging,
            feed=True,
            record=str(folder / "recording"),
        )
        plan = plan_serve(job, ModelConfig.from_hf(model.directory))
        write_replay(plan, folder)
        Progress(folder, job.num_ranks, create=True)
        self.folder, self.record = folder, folder / "recording"
        self.feed, self.reader = Feed.create(folder), OutputReader.bind(folder)
        config = machine_config(plan, folder, Running("shared", False, False, None))
        environment = os.environ | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SUPERPOD_CONFIG": json.dumps(config | {"wall_deadline_s": 1e6}),
        }
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = [*MPIRUN, *root, *MCA, "-n", "2", "superpod-rank", "-m", "serving", str(folder)]
        self.process = subprocess.Popen(command, env=environment, start_new_session=True)
        self.events: list[OutputEvent] = []

    def until(self, condition: Any) -> None:
        """Read events until they satisfy a condition."""
        while not condition(self.events):
            assert select.select([self.reader], [], [], 30)[0], "the pod says nothing"
            self.events += [event for event in self.reader.read() if isinstance(event, OutputEvent)]

    def answers(self) -> dict[int, tuple[list[int], list[int], str | None]]:
        told: dict[int, tuple[list[int], list[int], str | None]] = {}
        for event in self.events:
            tokens, times, finish = told.get(event.request_id, ([], [], None))
            assert finish is None, f"request {event.request_id} ended twice"
            told[event.request_id] = (tokens + event.tokens, times + event.times_ps, event.finish)
        return told


def finished(events: list[OutputEvent]) -> set[int]:
    return {event.request_id for event in events if event.finish is not None}


def test_an_open_pod_serves_aborts_and_repeats_from_its_recording(tmp_path: Path, model: Model) -> None:
    """Shared prefixes, stop tokens, choices, arrivals of the future and of the past, aborts of running and
    queued requests, an idle pause, too few blocks; then the recording gives all of it again."""
    pod = Pod(tmp_path / "pod", model, PagingOptions(8, 14, reuse=True))
    shared = [(7 * i) % 64 for i in range(40)]
    hot, cold = SamplingParams(temperature=0.8, logprobs=2), SamplingParams(temperature=0)
    requests = [
        FeedRequest(i, [*shared, i], 30, hot if i % 2 else cold, seed=i, choice=i % 3) for i in range(8)
    ]
    (greedy,) = generate(model.directory, [ReferenceRequest([*shared, 0], 30, seed=0)])
    stop = SamplingParams(temperature=0, stop_token_ids=(greedy.tokens[4],))
    try:
        pod.feed.hold()
        for request in requests:
            pod.feed.add(request)
        pod.feed.add(FeedRequest(8, [1] * 70, 500, cold))
        pod.feed.add(FeedRequest(9, [*shared, 0], 30, stop, arrival_ps=10**12))
        pod.feed.add(FeedRequest(10, [2], 3, hot, arrival_ps=5 * 10**15))
        pod.feed.release()
        pod.until(lambda events: any(event.request_id == 1 and len(event.tokens) for event in events))
        pod.feed.abort(1)
        pod.feed.abort(99)
        pod.feed.abort(10)
        pod.until(lambda events: len(finished(events)) == 11)
        pod.feed.add(FeedRequest(11, [5, 6], 2, hot, arrival_ps=1))
        pod.feed.add(FeedRequest(12, [*shared, 3], 4, cold))
        pod.until(lambda events: len(finished(events)) == 13)
        pod.feed.close()
        assert pod.process.wait(60) == 0
    finally:
        pod.process.kill()
    told = pod.answers()
    assert {i: told[i][2] for i in (1, 8, 9, 10, 11, 12)} == {
        1: "abort", 8: "error", 9: "stop", 10: "abort", 11: "error", 12: "length"
    }  # fmt: skip
    assert told[9][0] == list(greedy.tokens[: greedy.tokens.index(greedy.tokens[4]) + 1])
    assert {event.cached_tokens for event in pod.events if event.request_id == 12} == {40}
    for i, request in enumerate(requests):
        whole = ReferenceRequest(list(request.prompt), 30, request.params, i, i % 3)
        (answer,) = generate(model.directory, [whole])
        assert told[i][0] == list(answer.tokens[: len(told[i][0])]), i
        assert len(told[i][0]) == 30 or i == 1
    assert [r["cache"]["aborted"] for r in read_results(pod.folder)] in ([1, 0], [0, 1])
    out = tmp_path / "again.json"
    words = ["replay", "-n", "2", "--trace", str(pod.record), "--check-reference", "--json", str(out)]
    assert main(words) == 0
    again = json.loads(out.read_text())
    repeated = {e["id"]: (e["tokens"], e["times_ps"], e["finish"]) for e in again["requests"]}
    assert repeated == told
    assert again["tokens_equal_reference"] is True and all(again["invariants"].values())
    preemptions = sum(result["cache"]["preemptions"] for result in read_results(pod.folder))
    assert again["cache"]["preemptions"] == preemptions > 0
