"""What the README tells to copy is there: its programs, its files, its commands' options."""

import re
import shlex

import pytest
from ranks import ROOT, run_ranks

from serving.traces import read_trace

README = (ROOT / "README.md").read_text()
MADE_ABOVE = {"conversation_trace.jsonl", "trace.json", "out.png", "./model"}
"""Files that an earlier line of the README makes."""


def commands() -> list[list[str]]:
    """Each command of the README's shell blocks, as words."""
    blocks = "".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL)).replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in blocks.splitlines() if line.strip()]


def test_files_that_commands_read_are_in_the_repository_or_made_above():
    """Fails where a recipe names a file that its reader does not have, as `app.py` once."""
    read = [word for words in commands() for word in words if re.search(r"\.(py|toml|jsonl|csv)$", word)]
    assert len(read) > 8
    missing = {word for word in read if not (":" in word or word in MADE_ABOVE or (ROOT / word).is_file())}
    assert not missing


def test_the_program_shown_is_the_example():
    (shown,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert (ROOT / "examples/hello.py").read_text().endswith(f'"""\n\n{shown}')


def test_the_trace_of_the_examples_has_whole_blocks_and_shared_beginnings():
    requests = read_trace(ROOT / "examples/trace.jsonl")
    assert len(requests) == 64
    blocks = [request.hash_ids for request in requests]
    assert all(len(b) == -(-r.input_length // 512) for b, r in zip(blocks, requests, strict=True))
    assert len({b[0] for b in blocks}) < 50


@pytest.mark.multirank
@pytest.mark.timeout(300)
def test_lines_shown_are_lines_printed():
    """The virtual times of the README's small recipes, to the picosecond."""
    hello = run_ranks(4, ROOT / "examples/hello.py")
    assert set(hello.stdout.splitlines()) <= set(README.splitlines())
    assert len(hello.stdout.splitlines()) == 4
    schemes = run_ranks(16, ROOT / "examples/ep_schemes.py")
    assert schemes.stdout in README


@pytest.mark.multirank
@pytest.mark.timeout(300)
def test_the_survivors_of_the_readme_go_on():
    ran = run_ranks(8, ROOT / "examples/killed_rank.py", launcher="cli", options=("--keep-going",))
    assert len(ran.stdout.splitlines()) == 7
    assert "`rank 0: lost [3] at 2416972 ps, 7 go on`" in README
    assert {line.split(": ")[1] for line in ran.stdout.splitlines()} == {"lost [3] at 2416972 ps, 7 go on"}
