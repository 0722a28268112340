"""What a low-latency dispatch returns: arrays whose shape does not depend on the routing."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from collectives.ep import wire
from collectives.ep.faces import give_codes, plain

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


class FixedShape:
    """Outputs of a dispatch in the fixed shape, zero until the rows are in.

    Attributes:
        rows: [slots, room, hidden] as the caller wants them, or (fp8, scales). counts: int32 [slots].
        src_info: int32 [slots, room], token at its source, -1 for none. layout_range: int64 [slots, R].
    """

    def __init__(
        self, slots: int, room: int, ranks: int, hidden: int, kind: str, torch: bool, ue8m0: bool
    ) -> None:
        self._hidden, self._kind, self._torch, self._ue8m0, self._ranks = hidden, kind, torch, ue8m0, ranks
        self._values = np.zeros((slots, room, hidden), np.uint8 if kind == "fp8" else np.float32)
        self._scales = np.zeros((slots, room, -(-hidden // wire.BLOCK)), np.float32)
        self._bits = np.zeros((slots, room, hidden), np.uint16) if kind == "bfloat16" else None
        self._packed = np.zeros((slots, room, -(-hidden // 512)), np.int32) if ue8m0 else None
        self._info, self._range = np.full((slots, room), -1, np.int32), np.zeros((slots, ranks), np.int64)
        self.counts = plain(np.zeros(slots, np.int32), torch)
        self.src_info, self.layout_range = plain(self._info, torch), plain(self._range, torch)
        self.rows = self._face()

    def _face(self) -> Any:
        if self._kind == "fp8":
            scales = self._scales if self._packed is None else self._packed
            return give_codes(self._values.view(np.uint8), self._torch), plain(scales, self._torch)
        if self._bits is not None:
            return self._bits if not self._torch else _as_bfloat16(self._bits)
        return plain(self._values, self._torch)

    def write(self, raw: Float32, position: Int64, slot: Int64, source: Int64) -> None:
        """Put received rows (words of the values, then the token) at their positions."""
        body = np.ascontiguousarray(raw[:, :-1])
        self._info.reshape(-1)[position] = np.ascontiguousarray(raw[:, -1:]).view(np.int32)[:, 0]
        if self._kind == "fp8":
            codes, scales = wire.split_fp8(body, self._hidden)
            self._values.reshape(-1, self._hidden)[position] = codes
            self._scales.reshape(-1, scales.shape[1])[position] = scales
            if self._packed is not None:
                self._packed[...] = _ue8m0(self._scales, self._packed.shape[2])
        elif self._bits is not None:
            data = body.view(np.uint16)[:, : self._hidden]
            self._bits.reshape(-1, self._hidden)[position] = data
        else:
            self._values.reshape(-1, self._hidden)[position] = body[:, : self._hidden]
        counts = np.zeros(self._range.shape, np.int64)
        np.add.at(counts, (slot, source), 1)
        self._range[...] = (np.cumsum(counts, axis=1) - counts) << 32 | counts


def _as_bfloat16(bits: npt.NDArray[np.uint16]) -> Any:
    torch = sys.modules["torch"]
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def _ue8m0(scales: Float32, width: int) -> Int32:
    """Exponents of powers of two, four to an int32."""
    exponents = ((scales.view(np.uint32) >> np.uint32(23)) & np.uint32(255)).astype(np.uint8)
    out = np.zeros((*scales.shape[:2], 4 * width), np.uint8)
    out[:, :, : scales.shape[2]] = exponents
    return out.view(np.int32)
