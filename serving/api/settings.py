"""What an HTTP server is told at its start, as one JSON file."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the API process.

    model_dir: the checkpoint. names: what clients may call the model; the first is what answers say. ranks:
    of the pod. max_model_len: positions a request may use, prompt and answer together. vocab_size: token
    ids from 0 to less. api_key: None: whoever connects may ask. max_queue: requests that may wait for a
    first token; None: no bound. seed: of requests that give none.
    """

    model_dir: str
    names: tuple[str, ...]
    ranks: int
    max_model_len: int
    vocab_size: int
    api_key: str | None = None
    max_queue: int | None = None
    seed: int = 0

    @staticmethod
    def read(path: str | Path) -> ServerSettings:
        fields = json.loads(Path(path).read_text())
        return ServerSettings(**{**fields, "names": tuple(fields["names"])})

    def write(self, path: str | Path) -> None:
        """Write it, readable by this user alone: it may hold the key."""
        file = Path(path)
        file.touch(mode=0o600)
        file.write_text(json.dumps(asdict(self)))


def url_of(listener: socket.socket) -> str:
    """Where a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
