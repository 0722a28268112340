"""What one rank did, as a stream of fixed records: hashed always, written to a file when the run asks for it.

The hash of a run, `trace_sha256`, covers for each rank this stream (program order) and the engine's
digest of its ports and calls (key order). A record is 40 bytes, little endian, see `TRACE_DTYPE`; the
file of rank r is `rank-<r>.trace` in the trace directory, beside `ports.trace` with the engine's
`RECORD_DTYPE`. Read either with `numpy.fromfile`.
"""

from __future__ import annotations

import enum
import hashlib
import os
import struct
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

TRACE_DTYPE = np.dtype(
    [
        ("start_ps", "<i8"),
        ("end_ps", "<i8"),
        ("nbytes", "<i8"),  # charged bytes; of an exchange: bytes per row
        ("checksum", "<u8"),  # of the payload; of an exchange: of the rows received
        ("peer", "<i4"),  # the other rank, -1 for none; of a compute region: its label
        ("op", "<i4"),  # an Op
    ]
)
_RECORD = struct.Struct("<qqqQii")
_FLUSH_BYTES = 1 << 16


class Op(enum.IntEnum):
    """What a record says was done."""

    COMPUTE = 1
    SLEEP = 2
    PUT = 3
    GET = 4
    WAIT_GET = 5
    WAIT = 6
    TEST = 7
    READ = 8
    FENCE = 9
    QUIET = 10
    OBSERVE = 11
    ATOMIC = 12
    EXCHANGE = 13
    FINISH = 14
    ROWS = 15
    EXCHANGE_POST = 16
    SCHEDULE = 18  # steps carried out asleep; charged bytes of all their puts
    POST = (
        17  # a work request, message or other posted operation; peer, charged bytes, checksum of its payload
    )


class RankTrace:
    """The stream of one rank.

    Attributes:
        buffer, used: records not hashed yet, and how many bytes of them, int64 [1]; the compiled operations
            append here too.
    """

    def __init__(self, rank: int, directory: str | None) -> None:
        self._hash = hashlib.sha256()
        self.buffer = bytearray(_FLUSH_BYTES // _RECORD.size * _RECORD.size)
        self.used = np.zeros(1, np.int64)
        self._file: BinaryIO | None = None
        if directory is not None:
            self._file = open(os.path.join(directory, f"rank-{rank}.trace"), "wb")  # noqa: SIM115 (closed in finish)

    def add(
        self, op: Op, start_ps: int, end_ps: int, peer: int = -1, nbytes: int = 0, checksum: int = 0
    ) -> None:
        """Append one record."""
        at = self.used.item()
        if at == len(self.buffer):
            self.flush()
            at = 0
        _RECORD.pack_into(self.buffer, at, start_ps, end_ps, nbytes, checksum, peer, op)
        self.used[0] = at + _RECORD.size

    def add_batch(self, records: npt.NDArray[np.void]) -> None:
        """Append records (TRACE_DTYPE), in order."""
        data = memoryview(records.tobytes())
        while data:
            at = self.used.item()
            if at == len(self.buffer):
                self.flush()
                at = 0
            part = data[: len(self.buffer) - at]
            self.buffer[at : at + len(part)] = part
            self.used[0] = at + len(part)
            data = data[len(part) :]

    def flush(self) -> None:
        """Hash what is in the buffer, write it if asked for, and empty it."""
        full = memoryview(self.buffer)[: self.used.item()]
        self._hash.update(full)
        if self._file is not None:
            self._file.write(full)
        self.used[0] = 0

    def finish(self) -> bytes:
        """Close the stream; returns its 32-byte hash."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
        return self._hash.digest()


def combine_digests(streams: list[bytes], ports: list[bytes]) -> str:
    """Return the hash of a run (hex) from the hash of each rank's stream and of its ports, ranks
    ascending."""
    total = hashlib.sha256()
    for stream, port in zip(streams, ports, strict=True):
        total.update(stream)
        total.update(port)
    return total.hexdigest()
