"""What stub and fork server say to each other over a Unix stream socket.

A stub opens with a header (`HEADER`), its standard files 0, 1, 2 as SCM_RIGHTS, and a body of
NUL-terminated strings: directory, arguments, environment entries.  After that both sides send notes
(`NOTE`: kind, value):

| kind | from | value |
|---|---|---|
| `STARTED` | server | process id of the rank |
| `DIRECTORY` | server | length of the path that follows: the job's shared-memory directory |
| `ENDED` | server | exit status of the rank, or minus the signal that ended it |
| `FAILED` | server | length of the text that follows: why there is no rank |
| `SIGNAL` | stub | a signal for the rank |

End of file without `ENDED` means the other side was killed.  native/stub.c speaks the same.
"""

import contextlib
import os
import socket
import struct
from dataclasses import dataclass

HEADER = struct.Struct("<4sIII")  # magic, body bytes, number of arguments, umask
MAGIC = b"SPD1"
SERVER_MAGIC = b"SPS1"  # instead of a rank, a private fork server is asked for (warm.py)
FILES = {MAGIC: 3, SERVER_MAGIC: 5}  # 0, 1, 2; or 0, 2 and the run's listener, owner socket and lock
NOTE = struct.Struct("<Ii")  # kind, value
STARTED, ENDED, FAILED, DIRECTORY, SIGNAL = (ord(c) for c in "PEXDS")
MAX_BODY = 1 << 20


class WireError(Exception):
    """The peer is gone or does not speak this protocol."""


@dataclass(frozen=True)
class Hello:
    """What a stub hands over: everything its rank needs to become the program."""

    cwd: bytes
    argv: tuple[bytes, ...]
    environment: dict[bytes, bytes]
    umask: int

    @staticmethod
    def unpack(body: bytes, num_args: int, umask: int) -> "Hello":
        words = body.split(b"\0")[:-1]
        if len(words) < 1 + num_args:
            raise WireError("short hello")
        entries = dict(w.split(b"=", 1) for w in words[1 + num_args :] if b"=" in w)
        return Hello(words[0], tuple(words[1 : 1 + num_args]), entries, umask)

    def pack(self, magic: bytes = MAGIC) -> bytes:
        words = [self.cwd, *self.argv, *(k + b"=" + v for k, v in self.environment.items())]
        body = b"".join(w + b"\0" for w in words)
        return HEADER.pack(magic, len(body), len(self.argv), self.umask) + body

    def get(self, key: str, default: str = "") -> str:
        return os.fsdecode(self.environment.get(key.encode(), default.encode()))

    def number(self, key: str, default: int) -> int:
        text = self.get(key)
        return int(text) if text.isdigit() else default


def read_exactly(c: socket.socket, size: int) -> bytes:
    """Read `size` bytes. Raises WireError at end of file."""
    parts = bytearray()
    while len(parts) < size:
        more = c.recv(size - len(parts))
        if not more:
            raise WireError("end of file")
        parts += more
    return bytes(parts)


def receive_hello(c: socket.socket) -> tuple[bytes, list[int]]:
    """Read a hello; return it unparsed (header and body) with the files received: three of a stub, five of a
    command that wants a server."""
    head, files, _, _ = socket.recv_fds(c, HEADER.size, max(FILES.values()), socket.MSG_WAITALL)
    try:
        if len(head) < HEADER.size:
            raise WireError("end of file")
        magic, size, _, _ = HEADER.unpack(head)
        if size > MAX_BODY or len(files) != FILES.get(magic):
            raise WireError("not a hello")
        return head + read_exactly(c, size), files
    except (WireError, OSError):
        for f in files:
            os.close(f)
        raise


def wants_server(message: bytes) -> bool:
    """Whether this hello asks for a private fork server."""
    return message.startswith(SERVER_MAGIC)


def parse_hello(message: bytes) -> Hello:
    _, size, num_args, umask = HEADER.unpack_from(message)
    return Hello.unpack(message[HEADER.size : HEADER.size + size], num_args, umask)


def send_note(c: socket.socket, kind: int, value: int | bytes) -> None:
    """Send a note, with text where `value` is bytes; a peer that is gone does not matter."""
    note = NOTE.pack(kind, len(value)) + value if isinstance(value, bytes) else NOTE.pack(kind, value)
    with contextlib.suppress(OSError):
        c.sendall(note, socket.MSG_NOSIGNAL)
