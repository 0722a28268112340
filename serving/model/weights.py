"""Safetensors files as views of one shared read-only mapping: hundreds of ranks on a host hold one copy.

The format (8-byte header length, JSON header, raw little-endian data) is read directly, because every rank
must get views of the page cache, never copies, and because an error must name the tensor and the file.
Mappings are private copy-on-write and never written.
"""

import json
import math
import mmap
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from emulator.errors import UsageError
from serving.model.fp8 import Block, dequantised, scale_name, scale_shape

__all__ = ["CheckpointFiles", "write_safetensors"]

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_ALIGN_BYTES = 64  # a cache line: every tensor we write starts on one
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_FP8 = "F8_E4M3"
_ENTRY = re.compile(rb"\s*:\s*(\{[^{}]*\})")
_WINDOW = 1 << 13
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


class _MappedFile:
    """One safetensors file: its header, and its data mapped on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            raise UsageError(f"{path}: checkpoint file is missing") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: cannot map checkpoint file: {error}") from None
        self._data_start = self._find_data()
        self._hint = 8  # tensors are asked for in about the order of the file

    def _find_data(self) -> int:
        size = len(self._map)
        length = struct.unpack("<Q", self._map[:8])[0] if size >= 8 else _MAX_HEADER_BYTES + 1
        if length > min(_MAX_HEADER_BYTES, size - 8):
            raise UsageError(
                f"{self.path}: not a safetensors file (header length {length}, file {size} bytes)"
            )
        if self._map[8:9] != b"{" or self._map[8 : 8 + length].rstrip()[-1:] != b"}":
            raise UsageError(f"{self.path}: safetensors header is not JSON")
        return 8 + length

    def _entry(self, name: str) -> dict[str, Any] | None:
        """The header's entry of one tensor, or None.

        Only entries asked for are parsed: the whole of a large header, as objects, costs each rank megabytes.
        """
        ahead = self._map[self._hint : min(self._hint + _WINDOW, self._data_start)]
        found = self._search(name, ahead, self._hint)
        return found or self._search(name, self._map[8 : self._data_start], 8)

    def _search(self, name: str, text: bytes, base: int) -> dict[str, Any] | None:
        key = json.dumps(name).encode()
        at = text.find(key)
        while at >= 0:
            match = _ENTRY.match(text, at + len(key))
            if match:
                self._hint = base + match.end()
                return self._parsed(name, match[1])
            at = text.find(key, at + 1)
        return None

    def _parsed(self, name: str, text: bytes) -> dict[str, Any]:
        try:
            entry: dict[str, Any] = json.loads(text)
        except ValueError:
            raise UsageError(f"{self.path}: safetensors header: entry of {name} is not JSON") from None
        missing = {"dtype", "shape", "data_offsets"} - entry.keys()
        if missing:
            raise UsageError(f"{self.path}: safetensors header: {name} lacks {', '.join(sorted(missing))}")
        return entry

    def check(self, name: str, shape: tuple[int, ...]) -> tuple[int, torch.dtype]:
        """Byte offset in the file, and type (bytes for 8-bit floats), of a tensor that is whole and as
        expected."""
        entry = self._entry(name)
        if entry is None:
            raise UsageError(f"{self.path}: tensor {name} is missing")
        dtype = torch.uint8 if entry["dtype"] == _FP8 else _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise UsageError(
                f"{self.path}: tensor {name} has dtype {entry['dtype']}; "
                f"only {', '.join(_DTYPES)} are supported"
            )
        if tuple(entry["shape"]) != shape:
            raise UsageError(
                f"{self.path}: tensor {name} has shape {list(entry['shape'])}; "
                f"config.json asks for {list(shape)}"
            )
        begin, end = entry["data_offsets"]
        count = math.prod(shape)
        size = dtype.itemsize * count
        if end - begin != size or self._data_start + end > len(self._map):
            raise UsageError(f"{self.path}: tensor {name} is cut short ({end - begin} of {size} bytes)")
        return int(self._data_start + begin), dtype

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor as float32; one of 8-bit floats as its bytes."""
        offset, dtype = self.check(name, shape)
        count = math.prod(shape)
        if offset % dtype.itemsize:  # the format does not promise alignment
            data = self._map[offset : offset + dtype.itemsize * count]
            return torch.frombuffer(bytearray(data), dtype=dtype).view(shape).to(torch.float32)
        found = torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset).view(shape)
        return found if dtype is torch.uint8 else found.to(torch.float32)  # float32 stays the view


class CheckpointFiles:
    """The tensors of a checkpoint directory, single-file or sharded; files are opened when first needed.

    Args:
        block: of scales, where weights are stored in 8-bit floats (`fp8.py`).
    """

    def __init__(self, directory: str | Path, block: Block | None = None) -> None:
        self.directory, self._block = Path(directory), block
        self._open: dict[str, _MappedFile] = {}
        self._weight_map = self._read_index()

    def _read_index(self) -> dict[str, str] | None:
        index = self.directory / INDEX_FILE
        if not index.exists():
            if not (self.directory / SINGLE_FILE).exists():
                raise UsageError(f"{self.directory}: holds neither {SINGLE_FILE} nor {INDEX_FILE}")
            return None
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{index}: not a safetensors index: {error!r}") from None
        return dict(weight_map)

    def _file_of(self, name: str) -> _MappedFile:
        file_name = SINGLE_FILE
        if self._weight_map is not None:
            if name not in self._weight_map:
                raise UsageError(f"{self.directory / INDEX_FILE}: tensor {name} is missing")
            file_name = self._weight_map[name]
        if file_name not in self._open:
            self._open[file_name] = _MappedFile(self.directory / file_name)
        return self._open[file_name]

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """Tensor `name` as float32 of `shape`: a view where it is stored so, else a copy.

        Raises:
            UsageError: the tensor or its file is missing, or has another shape, dtype or length.
        """
        found = self._file_of(name).tensor(name, shape)
        if found.dtype is not torch.uint8:
            return found
        block, scales = self._scales_of(name, shape)
        scale = self._file_of(scales).tensor(scales, scale_shape(shape, block))
        return torch.from_numpy(dequantised(found.numpy(), scale.numpy(), block))

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise what `tensor` would raise, without making the view."""
        _, dtype = self._file_of(name).check(name, shape)
        if dtype is torch.uint8:
            block, scales = self._scales_of(name, shape)
            self._file_of(scales).check(scales, scale_shape(shape, block))

    def _scales_of(self, name: str, shape: tuple[int, ...]) -> tuple[Block, str]:
        """The block of the scales of a weight in 8-bit floats, and their name."""
        if self._block is None or len(shape) != len(self._block):
            raise UsageError(
                f"{self.directory}: tensor {name} of shape {list(shape)} has dtype {_FP8}, which is read for "
                "matrices where config.json has a quantization_config with weight_block_size"
            )
        return self._block, scale_name(name)


def write_safetensors(path: Path, tensors: Sequence[tuple[str, torch.Tensor]]) -> int:
    """Write float32 tensors in the given order, each starting on a 64-byte boundary of the file.

    The format forbids gaps, so a tensor whose size is not a multiple of 64 bytes is put after all that are.
    Returns the number of data bytes.
    """
    tensors = sorted(tensors, key=lambda pair: pair[1].numel() * 4 % _ALIGN_BYTES != 0)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors:
        end = offset + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-(8 + len(encoded)) % _ALIGN_BYTES)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for _, tensor in tensors:
            file.write(tensor.contiguous().numpy().tobytes())
    return offset
