"""What ends an answer: an end-of-sequence token, a stop token, a stop string, or its length.

Pure and without state: a function of the outputs so far, so a request that is computed anew, or goes on at
another rank, ends at the same token. A stop string may cross any number of token borders; it is looked for in
the tokens' bytes (`TokenBytes`), which needs no tokenizer. Order as in vLLM (`v1/core/sched/utils.py`):
tokens first, then strings, then length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from serving.model.sampling_params import SamplingParams

BYTES_FILE, ENDS_FILE = "token_bytes.npy", "token_ends.npy"


@dataclass(frozen=True)
class Finish:
    """Why an answer has ended. stop_reason: the stop token or string; None for end of sequence and length."""

    reason: Literal["stop", "length"]
    stop_reason: int | str | None = None


class TokenBytes:
    """The bytes each token adds to a text, and which tokens are special.

    blob: uint8[all bytes]; ends: int64[vocabulary, 2], the end of each token's bytes in it, and 1 if special.
    """

    def __init__(self, blob: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._blob, self._ends = blob, ends

    @staticmethod
    def of(pieces: Sequence[bytes], special: frozenset[int] = frozenset()) -> TokenBytes:
        """From the bytes of every token in order of id."""
        ends = np.zeros((len(pieces), 2), np.int64)
        ends[:, 0] = np.cumsum([len(piece) for piece in pieces])
        ends[list(special), 1] = 1
        return TokenBytes(np.frombuffer(b"".join(pieces), np.uint8), ends)

    @staticmethod
    def read(directory: str | Path) -> TokenBytes | None:
        """What `write` left in a directory, memory-mapped; None where there is nothing."""
        if not (Path(directory) / ENDS_FILE).exists():
            return None
        blob, ends = (np.load(Path(directory) / name, mmap_mode="r") for name in (BYTES_FILE, ENDS_FILE))
        return TokenBytes(blob, ends)

    def write(self, directory: str | Path) -> None:
        """Write it into a directory for the ranks."""
        np.save(Path(directory) / BYTES_FILE, self._blob)
        np.save(Path(directory) / ENDS_FILE, self._ends)

    def piece(self, token: int, skip_special: bool) -> bytes:
        """Bytes of one token; none for an unknown id, or for a special token that is to be skipped."""
        if not 0 <= token < len(self._ends) or (skip_special and self._ends[token, 1]):
            return b""
        start = int(self._ends[token - 1, 0]) if token else 0
        return self._blob[start : int(self._ends[token, 0])].tobytes()


def finish_of(
    params: SamplingParams, outputs: Sequence[int], max_output: int, table: TokenBytes | None
) -> Finish | None:
    """Whether the last output ends the answer, none of those before having done so.

    Args:
        outputs: all outputs so far, at least one.
        max_output: most outputs of this request.
        table: bytes of the tokens; None: stop strings are not looked for.
    """
    token = outputs[-1]
    if len(outputs) > params.min_tokens:
        if not params.ignore_eos and token in params.eos_token_ids:
            return Finish("stop")
        if token in params.stop_token_ids:
            return Finish("stop", token)
        if params.stop and table is not None:
            found = stop_string(params, outputs, table)
            if found is not None:
                return Finish("stop", found)
    return Finish("length") if len(outputs) >= max_output else None


def stop_string(params: SamplingParams, outputs: Sequence[int], table: TokenBytes) -> str | None:
    """The first of `params.stop` that the last output completes."""
    skip = params.skip_special_tokens
    last = table.piece(outputs[-1], skip)
    if not last:
        return None
    wanted = [s.encode() for s in params.stop]
    tail, most = last, max(map(len, wanted)) - 1 + len(last)
    for token in reversed(outputs[:-1]):
        if len(tail) >= most:
            break
        tail = table.piece(token, skip) + tail
    for text, stop in zip(wanted, params.stop, strict=True):
        if tail.find(text, max(0, len(tail) - len(last) - len(text) + 1)) >= 0:
            return stop
    return None
