"""Keys, queue pair numbers, state words, user fields: what goes in comes out, and nothing else fits."""

import itertools

import numpy as np
import pytest

from memsem.verbs.keys import (
    MAX_QP,
    RNR_TIMER_PS,
    Layout,
    QPNumber,
    decode_qp,
    encode_key,
    key_slot,
    state_masks,
    state_value,
    timeout_ps,
)
from memsem.verbs.rows import context_of, signed
from memsem.verbs.users import (
    QKEY_MASK,
    SRQ_QUEUE,
    Message,
    Mine,
    decode_message,
    decode_mine,
    match_context,
    message_tag,
    tag_imm,
)

WRITE, READ, ATOMIC = 2, 4, 8


def test_queue_pair_numbers_are_24_bits_and_unique():
    numbers = {
        QPNumber(slot, srq, generation).encode(): (slot, srq, generation)
        for slot in (0, 1, MAX_QP - 1)
        for srq in (-1, 0, 62)
        for generation in (0, 1, 255)
    }
    assert len(numbers) == 27
    assert all(1 < n < 1 << 24 and decode_qp(n) == parts for n, parts in numbers.items())
    assert decode_qp(0).slot < 0 and decode_qp(1).slot < 0  # QP0 and QP1 stay reserved


def test_a_number_is_another_one_when_its_slot_is_given_out_again():
    assert QPNumber(3, -1, 0).encode() != QPNumber(3, -1, 1).encode()


def test_keys():
    assert key_slot(encode_key(5, 7)) == 5 and encode_key(5, 7) != encode_key(5, 8)
    assert encode_key(5, 7) == encode_key(5, 7 + 4096)
    layout = Layout(100, max_qp=8, max_mr=4)
    assert layout.region(encode_key(2, 9)) == (100 + 4 + 8 + 8, encode_key(2, 9))
    for forged in (0, 1, encode_key(4, 0), (1 << 32) - 1):
        assert layout.region(forged) == layout.closed == (100, 1)
    words = [layout.qp_word(s) for s in range(8)] + [
        layout.mr_word(s) + i for s in range(4) for i in range(4)
    ]
    assert len(set(words)) == len(words) == Layout.words(8, 4) - 4 and min(words) == 104
    assert layout.qp_word(8) == layout.qp_word(-1) == 101  # a word that stays 0: never ready


@pytest.mark.parametrize("generation", range(8))
@pytest.mark.parametrize("need", [0, WRITE, READ, ATOMIC])
def test_state_word_answers_exactly_its_own_generation_and_access(generation, need):
    ready, denied = state_masks(generation, need)
    assert 0 < ready < 1 << 63
    for other, receiving, access in itertools.product(range(8), (False, True), range(0, 16, 2)):
        code = state_value(other, receiving, access, RNR_TIMER_PS[1]) & 63
        answers = receiving and other % 7 == generation % 7
        assert bool(ready >> code & 1) == answers
        assert bool(denied >> code & 1) == (answers and bool(need & ~access))
    assert not ready & 1 or generation % 7  # a word nobody has written is ready for no one
    assert not ready & 1


def test_rnr_time_travels_in_the_state_word():
    assert state_value(1, True, WRITE, RNR_TIMER_PS[12]) >> 6 == 640_000_000  # 0.64 ms
    assert len(RNR_TIMER_PS) == 32
    assert RNR_TIMER_PS[0] == 655_360_000_000 and RNR_TIMER_PS[1] == 10_000_000
    assert RNR_TIMER_PS[31] == 491_520_000_000 and list(RNR_TIMER_PS[1:]) == sorted(RNR_TIMER_PS[1:])


def test_timeouts():
    assert timeout_ps(1) == 8_192_000 and timeout_ps(14) == 4_096_000 << 14
    assert timeout_ps(0) == timeout_ps(31) < 1 << 60


def test_user_fields():
    rng = np.random.default_rng(1)
    for _ in range(200):
        queue, number = (int(x) for x in rng.integers(0, (1 << 25, 1 << 28)))
        mine = Mine(queue, number, bool(rng.integers(2)))
        assert decode_mine(mine.encode()) == mine and 0 < mine.encode() < 1 << 63
        a, b = (int(x) for x in rng.integers(0, 1 << 24, 2))
        message = Message(a, b, *(bool(x) for x in rng.integers(0, 2, 3)))
        assert decode_message(message.encode()) == message and message.encode() < 1 << 63


@pytest.mark.parametrize("imm", [0, 1, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("qkey", [0, 0x11111111, 0x80000000, 0xFFFFFFFF])
def test_tags(imm, qkey):
    tag = message_tag(imm, qkey)
    assert -(1 << 63) <= tag < 1 << 63 and tag_imm(tag) == imm
    assert tag & QKEY_MASK == message_tag(0, qkey)
    assert tag & QKEY_MASK != message_tag(0, qkey ^ 4)


def test_a_message_goes_to_the_shared_queue_the_number_names():
    layout, own, shared = Layout(0, 16, 1), QPNumber(3, -1, 2).encode(), QPNumber(3, 5, 2).encode()
    assert context_of(own, layout) == match_context(own)
    assert context_of(shared, layout) == context_of(QPNumber(9, 5, 0).encode(), layout)
    assert context_of(shared, layout) == match_context(SRQ_QUEUE | 5)


def test_64_bit_operands():
    assert signed((1 << 64) - 1) == -1 and signed(-1) == -1 and signed(1 << 63) == -(1 << 63)
