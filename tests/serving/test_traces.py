"""Traces: two formats read exactly, every bad line named by file and number."""

from pathlib import Path

import pytest

from emulator.errors import UsageError
from serving.traces import PS_PER_MS, TraceRequest, read_trace

MOONCAKE = (
    '{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}\n'
    '{"timestamp": 1000, "input_length": 512, "output_length": 1, "hash_ids": [0]}\n'
    '{"timestamp": 4000, "input_length": 1, "output_length": 9, "hash_ids": [8]}\n'
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:16:00.9951690,396,109"
)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text, newline="")
    return path


def test_mooncake_lines_become_requests_counted_from_the_first(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path, MOONCAKE)) == [
        TraceRequest(0, 600, 5, (0, 7)),
        TraceRequest(0, 512, 1, (0,)),
        TraceRequest(3000 * PS_PER_MS, 1, 9, (8,)),
    ]


def test_azure_rows_become_requests_with_exact_picoseconds(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path, AZURE)) == [
        TraceRequest(0, 374, 44, None),
        TraceRequest(14_314_579_000_000, 396, 109, None),
    ]


def test_only_the_requests_asked_for_are_read(tmp_path: Path) -> None:
    path = write(tmp_path, MOONCAKE + "garbage\n")
    assert len(read_trace(path, 3)) == 3
    with pytest.raises(UsageError, match="line 4: not JSON"):
        read_trace(path)


def test_arrivals_out_of_order_are_sorted(tmp_path: Path) -> None:
    lines = MOONCAKE.splitlines(keepends=True)
    requests = read_trace(write(tmp_path, lines[2] + lines[0]))
    assert [r.arrival_ps for r in requests] == [0, 3000 * PS_PER_MS]
    assert requests[0].input_length == 600


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("\n", "empty line"),
        ('{"timestamp": 0\n', "not JSON"),
        ("[1]\n", "not a JSON object"),
        ('{"input_length": 1, "output_length": 1, "hash_ids": [1]}\n', "'timestamp' is missing"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n', "timestamp must be"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n', "timestamp must be"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}\n', "input_length must be"),
        (
            '{"timestamp": 0, "input_length": 1.5, "output_length": 1, "hash_ids": [1]}\n',
            "input_length must be",
        ),
        (
            '{"timestamp": 0, "input_length": 1, "output_length": true, "hash_ids": [1]}\n',
            "output_length must",
        ),
        ('{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]}\n', "need 2 hash_ids"),
        ('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": ["a"]}\n', "list of integers"),
    ],
)
def test_corrupt_mooncake_line_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = write(tmp_path, MOONCAKE + line + MOONCAKE)
    with pytest.raises(UsageError, match=f"{path}, line 4: .*{reason}"):
        read_trace(path)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2023-11-16 18:15:46.6,1", "expected 3 fields, found 2"),
        ("2023-11-16 18:15:46.6,0,4", "ContextTokens must be"),
        ("2023-11-16 18:15:46.6,3,-4", "GeneratedTokens must be"),
        ("yesterday,3,4", "TIMESTAMP 'yesterday'"),
        ("2023-11-16 18:15:46.6x,3,4", "TIMESTAMP"),
    ],
)
def test_corrupt_azure_row_is_named(tmp_path: Path, row: str, reason: str) -> None:
    path = write(tmp_path, AZURE + "\n" + row)
    with pytest.raises(UsageError, match=f"{path}, line 4: .*{reason}"):
        read_trace(path)


def test_a_trace_that_ends_too_early_names_the_missing_line(tmp_path: Path) -> None:
    path = write(tmp_path, MOONCAKE)
    with pytest.raises(UsageError, match=r"line 4: missing; the file ends after 3 requests but 5"):
        read_trace(path, 5)


@pytest.mark.parametrize("text", ["", "a,b,c\n1,2,3\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n"])
def test_unknown_or_empty_traces_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="line [12]: "):
        read_trace(write(tmp_path, text))


def test_a_missing_file_and_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such.*cannot be read"):
        read_trace(tmp_path / "no-such")
    path = tmp_path / "binary"
    path.write_bytes(b'{"timestamp"\xff')
    with pytest.raises(UsageError, match="not text"):
        read_trace(path)
