"""What a rank says outside virtual time about why others may wait for it in vain. Reports of deadlocks end
with it: a rank that was refused a call does not come to it, and the others cannot know why.
"""

from __future__ import annotations

import numpy as np

from emulator.board import REMARK, Board
from emulator.engine.reports import ranges


def remark(board: Board, rank: int, text: str) -> None:
    """Say something in the place of what the rank said before, cut to `REMARK` bytes."""
    board.remark[rank] = np.frombuffer(text.encode()[:REMARK].ljust(REMARK, b"\0"), np.uint8)


def _who_spoke(board: Board) -> list[int]:
    """Ranks with a remark: of a copy, because NumPy refuses to list what others write meanwhile."""
    return np.flatnonzero(board.remark[:, 0] != 0).tolist()


def remarked(board: Board, beginning: str) -> dict[int, str]:
    """What ranks have said after `beginning`, by rank."""
    begin, said = beginning.encode(), {}
    for rank in _who_spoke(board):
        text = board.remark[rank].tobytes().rstrip(b"\0")
        if text.startswith(begin):
            said[rank] = text[len(begin) :].decode(errors="ignore")
    return said


def remarks(board: Board, most: int = 6) -> str:
    """All remarks, those of one text together, as the end of a sentence."""
    said: dict[str, list[int]] = {}
    for rank in _who_spoke(board):
        text = board.remark[rank].tobytes().rstrip(b"\0").decode(errors="ignore")
        said.setdefault(text, []).append(rank)
    parts = [f"; {ranges(ranks)}: {text}" for text, ranks in list(said.items())[:most]]
    return "".join(parts) + (f"; and {len(said) - most} other remarks" if len(said) > most else "")
