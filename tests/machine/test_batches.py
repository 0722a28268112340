"""A batch is a loop of single posts, in virtual time, trace and memory, whatever pieces it has."""

import hashlib

import numpy as np
import pytest

from emulator.board import CHUNK
from emulator.device import Device
from emulator.engine import core_available
from emulator.engine.posts import K_PUT, new_posts
from emulator.errors import SizeError, UsageError
from emulator.solo import solo_device
from emulator.tracing import Op

KINDS = ["python"] + ["c"] * core_available()


def state(device: Device) -> tuple[object, ...]:
    device.quiet()
    device.trace.flush()
    heap = hashlib.sha256(device.heap.tobytes()).hexdigest()
    return device.now_ps, device.trace.finish(), heap, device.engine.digest(0), int(device.board.pool.sum())


def pieces(seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = rng.choice([0, 1, 5, 8, 64, 1000, CHUNK, CHUNK + 1, 5 * CHUNK], 60)
    data = [rng.integers(1, 256, size, dtype=np.uint8) for size in sizes]
    return data, np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)


@pytest.mark.parametrize("engine", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_a_batch_equals_the_loop(engine: str, seed: int) -> None:
    print(f"seed {seed}")
    data, offsets = pieces(seed)
    sizes = np.array([piece.size for piece in data])
    loop, batch, flat = (solo_device(engine=engine) for _ in range(3))
    for piece, offset in zip(data, offsets.tolist(), strict=True):
        loop.put(0, offset, piece, piece.size)
    posts = new_posts(len(data), kind=K_PUT, nbytes=sizes, offset=offsets)
    batch.post(posts, data, Op.PUT)
    posts["real_bytes"] = sizes
    flat.post(posts, np.concatenate(data), Op.PUT)
    assert flat.heap[: sizes.sum()].any() == False  # noqa: E712 (nothing is there before an observation)
    assert state(loop) == state(batch) == state(flat)
    assert np.array_equal(flat.heap[: sizes.sum()], np.concatenate(data))


@pytest.mark.parametrize("engine", KINDS)
def test_a_batch_larger_than_the_pool_spills_and_leaves_nothing(engine: str) -> None:
    device = solo_device(engine=engine, staging_bytes=8192)
    data = np.random.default_rng(0).integers(0, 256, 60_000, dtype=np.uint8)
    posts = new_posts(20, kind=K_PUT, nbytes=3000, real_bytes=3000, offset=3000 * np.arange(20))
    device.post(posts, data)
    device.quiet()
    assert np.array_equal(device.heap[:60_000], data)
    assert device.board.spilled[0] > 0
    assert device.board.pool.sum() == 0
    assert not device.memory._spills


def test_neighbours_in_one_chunk_are_freed_one_by_one() -> None:
    """Mutation: marking a chunk 1 whatever the number of its pieces frees it with the first."""
    device = solo_device(engine="python")
    posts = new_posts(128, kind=K_PUT, nbytes=8, real_bytes=8, offset=8 * np.arange(128))
    device.post(posts, np.arange(128).view(np.uint8))
    assert device.board.pool[0, :2].tolist() == [128, 0]
    places = device.memory.stage_pieces(0, np.zeros(7, np.uint8), np.array([3, 0, 4]), 0)
    assert places.file_offsets.tolist() == [CHUNK, 0, CHUNK + 8]
    assert device.board.pool[0, :2].tolist() == [128, 2]
    device.memory.take(0, CHUNK, 3)
    assert device.board.pool[0, :2].tolist() == [128, 1]
    device.quiet()
    assert device.board.pool[0, :2].tolist() == [0, 1]


def test_payloads_must_be_what_the_posts_say() -> None:
    device = solo_device(engine="python")
    with pytest.raises(SizeError, match="2 payloads for 1 posts"):
        device.post(new_posts(1, kind=K_PUT), [np.zeros(1, np.uint8)] * 2)
    with pytest.raises(SizeError, match="real_bytes are 4 in all, the payload has 3"):
        device.post(new_posts(1, kind=K_PUT, real_bytes=4), np.zeros(3, np.uint8))
    with pytest.raises(UsageError, match="16384 puts and gets to rank 0"):
        device.post(new_posts(16385, kind=K_PUT, real_bytes=1), np.zeros(16385, np.uint8))
    assert device.now_ps == 0
