# ruff: noqa: E501  (one row a broken build)
"""Deliberately broken builds, and a tool that says which of them the tests find.

    python tests/mutation/broken_builds.py [NAME …]

Each is one replaced line of a source file and the quickest test that should notice. The tool copies the tree
to a temporary directory and changes only the copy. Each test is run there with nothing broken first: one that
fails then finds nothing. Exit code 0: at most two were missed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from collective_builds import COLLECTIVE
from recovery_builds import RECOVERY

from emulator.faults.names import nearest

ROOT = Path(__file__).resolve().parents[2]
MOST_MISSED = 2
_LIMIT_S, _TIMES, _MOST_S = 120.0, 8.0, 600.0
"""A broken build hangs after so many seconds and so many times what its test takes in the whole tree."""


class Broken(NamedTuple):
    """A broken build: in `file`, the first `line` becomes `wrong`; `test` should fail (path, then -k)."""

    name: str
    file: str
    line: str
    wrong: str
    test: str


KV, SCHEDULER, INJECTOR = "serving/model/kv_cache.py", "serving/scheduler.py", "emulator/faults/injector.py"
HISTORY, RESTART, LIST = "launch/chaos/history.py", "serving/restart.py", "emulator/freelist.py"
PLAN, GENERATE, FORWARD = "emulator/faults/plan.py", "emulator/faults/generate.py", "serving/forward.py"
ENGINE, DISPATCH, PLACEMENT = "serving/engine.py", "serving/dispatch.py", "serving/placement.py"
T_KV, T_SCHEDULER, T_CHAOS = (
    "tests/model/test_kv_cache.py",
    "tests/serving/test_scheduler.py",
    "tests/faults/test_chaos.py",
)
T_INJECTOR, T_PLAN = "tests/faults/test_injector.py", "tests/faults/test_plan.py"
T_DRAFTS = "tests/serving/test_drafts_engine.py"
T_ENGINE, T_LIST, T_PLACE = (
    "tests/serving/test_serving_engine.py",
    "tests/machine/test_freelist.py",
    "tests/serving/test_placement.py",
)
T_DISPATCH, T_RMW = "tests/serving/test_request_dispatch.py", "tests/machine/test_rmw.py"

BUILDS = (
    Broken(
        "flush completion swallowed",
        "emulator/engine/twin_streams.py",
        "self.finish(t, op, ST_FLUSH)",
        "pass",
        "tests/engine/test_posts_oracle.py python",
    ),
    Broken(
        "missing fence",
        "emulator/engine/twin_order.py",
        "bits & ORD_FENCE and other.seq < op.post.fence",
        "False",
        "tests/engine/test_posts_oracle.py python",
    ),
    Broken(
        "what is behind a failure acts",
        "emulator/engine/twin_order.py",
        "if (op.poster, op.post.stream) in self.failed:",
        "if False:",
        "tests/engine/test_retry.py",
    ),
    Broken("block freed twice", KV, "self._free.extend(reversed(pages))", "self._free.extend(pages * 2)", T_KV),
    Broken("block never freed", KV, "self._free.extend(reversed(pages))", "pass", T_KV),
    Broken("freed blocks not counted", KV, "self.pages_freed += len(pages)", "pass", T_KV),
    Broken("append without room", KV, "if needed > len(self._free):", "if False:", T_KV),
    Broken("a page too few", KV, "positions % self.page_size", "0", T_KV),
    Broken("padding page given away", KV, "list(range(num_pages, 0, -1))", "list(range(num_pages - 1, -1, -1))", T_KV),
    Broken("length kept after free", KV, "del self._lengths[sequence]", "pass", T_KV),
    Broken("KV not given back", SCHEDULER, "self.kv_blocks_used -= self.limits.blocks(request.spec)", "pass", T_SCHEDULER),
    Broken("admitted without room", SCHEDULER, "if not self.has_room(self.waiting[0].spec):", "if False:", T_SCHEDULER),
    Broken("load not given back", SCHEDULER, "self.outstanding -= segment.priced_count", "pass", T_SCHEDULER),
    Broken("step not counted", SCHEDULER, "segment.request.num_computed += segment.count", "pass", T_SCHEDULER),
    Broken("budget ignored", SCHEDULER, "budget -= segment.priced_count", "pass", T_SCHEDULER),
    Broken("too large served", SCHEDULER, "if reason is not None:", "if False:", T_SCHEDULER),
    Broken("ended twice", "serving/request.py", "self.finish = why\n        self.num_ends += 1", "self.finish = why\n        self.num_ends += 2", "tests/serving/test_request_ends.py"),
    Broken("token kept twice", "serving/request.py", "self.outputs.append(token)", "self.outputs += [token, token]", T_ENGINE),
    Broken("ended request not released", ENGINE, "self._forward.release(request_id)", "pass", T_ENGINE),
    Broken("logits not hashed", ENGINE, "digest.update(answer.row.numpy().tobytes())", "pass", T_ENGINE),
    Broken("rejected drafts stay", SCHEDULER, "self._return_to(request, request.num_computed - count)", "pass", T_DRAFTS),
    Broken("drafts of another prompt", "serving/kv/cache.py", "self.ahead = ahead", "self.ahead = 0", T_DRAFTS),
    Broken("sampler at a wrong position", ENGINE, "(row, request, position)", "(row, request, 0)", T_ENGINE),
    Broken("everything to rank 0", "serving/balance.py", "int(np.argmin(_without(loads, dead)))", "0", T_DISPATCH),
    Broken("load not noted", "serving/balance.py", "loads[rank] += spec.priced_total", "pass", T_DISPATCH),
    Broken("handed out early", DISPATCH, "if -(-spec.arrival_ps // TICK_PS) * TICK_PS > now_ps:", "if False:", T_DISPATCH),
    Broken("replica never used", PLACEMENT, "(positions[:, None] + rank) % self.num_replicas[experts]", "0 * experts", T_PLACE),
    Broken("shared expert beside routed ones", PLACEMENT, "return copies if apart < beside else 0", "return 0", T_PLACE),
    Broken("replica on its own rank", PLACEMENT, "if expert not in held[rank]]", "if True]", T_PLACE),
    Broken("replica not in the table", PLACEMENT, "where[expert].append(slot)", "where[expert] = where[expert] or [slot]", T_PLACE),
    Broken("hole not joined", LIST, "if start + size == after:", "if False:", T_LIST),
    Broken("piece given away twice", LIST, "self._holes[at : at + 1] = [hole for hole in rest if hole[1]]", "pass", T_LIST),
    Broken("double release accepted", LIST, "(low and sum(low[0]) > start)", "False", T_LIST),
    Broken("compare always succeeds", "emulator/rmw.py", "return operand if old == compare else old", "return operand", T_RMW),
    Broken("freeze ends late", INJECTOR, "end = begin + (fault.duration_ps or 0)", "end = now + (fault.duration_ps or 0)", T_INJECTOR),
    Broken("slow never undone", INJECTOR, "return lambda: self._factors.remove(factor)", "return lambda: None", T_INJECTOR),
    Broken("states not counted", INJECTOR, "at.count <= count", "True", T_INJECTOR),
    Broken("fires for others", INJECTOR, "at.request in (None, request)", "True", T_INJECTOR),
    Broken("fired not noted", INJECTOR, "self.fired(index, start)", "pass", T_INJECTOR),
    Broken("seed ignored", PLAN, 'f"{self.seed}:{i}"', 'f"0:{i}"', T_PLAN),
    Broken("unknown rank accepted", PLAN, "not 0 <= fault.rank < num_ranks", "False", T_PLAN),
    Broken("wrong token accepted", HISTORY, "!= (e.tokens, e.logits_sha256)", "== ()", T_CHAOS),
    Broken("lost request accepted", HISTORY, "if counts[spec.request_id] != 1", "if counts[spec.request_id] > 1", T_CHAOS),
    Broken("leak accepted", HISTORY, 'if work["kv_blocks_allocated"] != work["kv_blocks_freed"]:', "if False:", T_CHAOS),
    Broken("answer served twice", RESTART, 'if entry["rank"] not in reported]', "if True]", T_CHAOS),
    Broken("ended request served again", RESTART, "if request not in gone)", "if True)", T_CHAOS),
)  # fmt: skip
BUILDS += tuple(Broken(*row) for row in (*COLLECTIVE, *RECOVERY))


def copy_tree(to: Path) -> Path:
    """Copy what a test needs and return the copy's root."""
    skip = shutil.ignore_patterns(
        ".git", ".venv", "__pycache__", ".*_cache", "out", "*.egg-info", ".hypothesis"
    )
    return Path(shutil.copytree(ROOT, to / "tree", ignore=skip, symlinks=True))


def change(root: Path, build: Broken) -> str:
    """Break the copy; return the file's text from before. Raises SystemExit if the line is not there."""
    file = root / build.file
    text = file.read_text()
    if build.line not in text:
        raise SystemExit(f"{build.name}: {build.file} has no {build.line!r}")
    file.write_text(text.replace(build.line, build.wrong, 1))
    return text


class Tried(NamedTuple):
    """How a test went: its exit code, None where it was ended after `limit_s`; seconds; the end of its text."""

    code: int | None
    wall_s: float
    said: str


def try_test(root: Path, test: str, limit_s: float) -> Tried:
    """Run a build's test (path, then -k) in a copy."""
    path, _, choice = test.partition(" ")
    options = ["-q", "-x", "-p", "no:cacheprovider", *(["-k", choice] if choice else [])]
    environment = os.environ | {"PYTHONPATH": f"{root}:{root / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *options, str(root / path)]
    begin = time.monotonic()
    running = subprocess.Popen(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = running.communicate(timeout=limit_s)
        code: int | None = running.returncode
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        said, code = running.communicate()[0], None
    return Tried(code, time.monotonic() - begin, said[-500:])


class Judge:
    """Says of each broken build whether its test finds it; a test that fails in the whole tree finds nothing.

    Args:
        root: the copy.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._whole: dict[str, Tried] = {}

    def verdict(self, build: Broken) -> str:
        """ "found", "hangs" (found, too: it takes many times what the whole tree takes) or "MISSED".

        Raises:
            SystemExit: the test fails without anything broken, or cannot be run.
        """
        if build.test not in self._whole:
            self._whole[build.test] = try_test(self._root, build.test, _MOST_S)
        whole = self._whole[build.test]
        if whole.code != 0:
            raise SystemExit(f"{build.name}: {build.test} fails with nothing broken: {whole.said}")
        text = change(self._root, build)
        tried = try_test(self._root, build.test, _LIMIT_S + _TIMES * whole.wall_s)
        (self._root / build.file).write_text(text)
        if tried.code not in (0, 1, None):
            raise SystemExit(f"{build.name}: its test did not run: {tried.said}")
        return {0: "MISSED", 1: "found", None: "hangs"}[tried.code]


def main(names: list[str]) -> int:
    """Break each build in turn; print what was found, and the missed."""
    known = {build.name: build for build in BUILDS}
    for name in names:
        if name not in known:
            print(f"no build is called {name!r}; nearest: {nearest(name, known)}", file=sys.stderr)
            return 2
    builds = [known[name] for name in names] or list(BUILDS)
    missed = []
    with tempfile.TemporaryDirectory(prefix="superpod-mutations-") as folder:
        judge = Judge(copy_tree(Path(folder)))
        for build in builds:
            verdict = judge.verdict(build)
            missed += [build.name] if verdict == "MISSED" else []
            print(f"{verdict:6} {build.name}", flush=True)
    print(f"{len(builds) - len(missed)} of {len(builds)} found; missed: {', '.join(missed) or 'none'}")
    return int(len(missed) > MOST_MISSED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
