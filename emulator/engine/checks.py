"""Argument checks: one clear line per mistake, before any time passes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.engine.api import ChainStep, Int32Array
from emulator.engine.codes import LIMIT_PS, ROW_LIMIT
from emulator.engine.primitives import Primitives
from emulator.errors import UsageError


class Checks(Primitives):
    """What may be passed to a call."""

    _open: dict[int, int]  # channel -> slot of an exchange posted and not yet waited for
    _finished: bool

    def _rank_arg(self, call: str, peer: int) -> None:
        if not 0 <= peer < self.num_ranks:
            raise UsageError(
                f"{call}: rank {peer} does not exist, ranks are 0 to {self.num_ranks - 1}", rank=self.rank
            )

    def _word_arg(self, call: str, word: int) -> None:
        if not 0 <= word < self.config.words_per_rank:
            last = self.config.words_per_rank - 1
            raise UsageError(f"{call}: word {word} does not exist, words are 0 to {last}", rank=self.rank)

    def _amount(self, call: str, name: str, value: int, limit: int = LIMIT_PS) -> None:
        if not 0 <= value <= limit:
            raise UsageError(f"{call}: {name} is {value}, must be 0 to {limit}", rank=self.rank)

    def _choice(self, call: str, name: str, value: int, allowed: Sequence[int]) -> None:
        if value not in allowed:
            raise UsageError(f"{call}: {name} is {value}, must be one of {list(allowed)}", rank=self.rank)

    def _alive(self, call: str) -> None:
        if self._finished:
            raise UsageError(f"{call}: rank {self.rank} has finished", rank=self.rank)

    def _explain_row(self, call: str, channel: int, row_bytes: int, meta_bytes: int) -> None:
        self._alive(call)
        self._choice(call, "channel", channel, range(self.config.channels))
        self._amount(call, "row_bytes", row_bytes, ROW_LIMIT)
        self._amount(call, "meta_bytes", meta_bytes, ROW_LIMIT)
        if channel in self._open:
            raise UsageError(
                f"{call}: channel {channel} has an open exchange, wait for it first", rank=self.rank
            )

    def _explain_chain(self, chain: Sequence[ChainStep]) -> None:
        if len(chain) > self.config.chain_steps:
            raise UsageError(
                f"exchange: the chain has {len(chain)} steps, at most {self.config.chain_steps}",
                rank=self.rank,
            )
        for step in chain:
            self._choice("exchange: chain", "channel", step.channel, range(self.config.channels))
            if step.channel in self._open or min(step) < 0:
                raise UsageError(f"exchange: {step} has an open channel or a negative number", rank=self.rank)

    def _copy_row(self, name: str, values: Any, into: Int32Array) -> None:
        """Numbers of a caller's array, checked."""
        if isinstance(values, np.ndarray) and values.dtype == np.int32 and values.shape == into.shape:
            into[:] = values
            return
        shape = np.shape(values)
        if shape != (self.num_ranks,):
            raise UsageError(
                f"exchange: {name} has shape {shape}, must be ({self.num_ranks},): one per rank",
                rank=self.rank,
            )
        try:
            np.copyto(into, values, casting="same_kind")
        except TypeError:
            kind = np.asarray(values).dtype
            raise UsageError(f"exchange: {name} is {kind}, must be integers", rank=self.rank) from None
