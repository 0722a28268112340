"""Both ends of a transfer against each other, without a device: room, order, stale records, disagreement."""

import numpy as np

from collectives.xccl.layout import CORES_SHIFT
from collectives.xccl.sides import Field, ReceiveSide, SendSide, Shares
from collectives.xccl.waves import cut

SEED = 7


def record(side, event, waves, cores=4):
    size = cores << CORES_SHIFT | sum(w.nbytes for w in waves)
    return Field(event, 0, side.tail % (1 << 32), size, 100)


def test_a_sender_never_overfills_the_ring_and_both_ends_meet():
    """Random sizes and rings; acknowledgements come late and in lumps.

    Broken build: `has_room` that compares with the slots of the transfer rather than those in flight.
    """
    rng = np.random.default_rng(SEED)
    for case in range(300):
        slots, cores = int(rng.integers(1, 20)), int(rng.integers(1, 9))
        control = ("chunk", "transfer")[case % 2]
        waves = cut(int(rng.integers(0, 4000)), cores, 64, slots, control)
        base = (1 << 32) - int(rng.integers(0, 50))  # tail pointers pass 2^32
        send, receive = SendSide(waves, slots, base), ReceiveSide(9, 100, cores, slots, base)
        receive.waves, rounds = waves, 0
        while not send.is_done:
            where, rounds = f"seed {SEED}, case {case}", rounds + 1
            assert rounds < 5000, where
            told = None
            while send.has_room():
                wave = send.fill()
                assert send.tail - receive.head <= slots, where
                told = record(send, 9, waves) if wave.records else told
            assert send.acknowledgements() > 0, where
            if told is not None:
                assert receive.is_news(told), where
                for _ in range(receive.arrived(told)):
                    receive.empty()
            send.acknowledge(receive.head % (1 << 32))
        assert receive.is_done and receive.head == send.tail, f"seed {SEED}, case {case}"


def test_how_many_acknowledgements_there_must_be():
    waves = cut(10 * 64, 1, 64, 4, "chunk")
    send = SendSide(waves, 4, 0)
    for _ in range(4):
        send.fill()
    assert not send.has_room() and send.acknowledgements() == 1
    send.acknowledge(3)
    assert send.has_room() and send.acknowledgements() == 1
    while send.has_room():
        send.fill()
    assert send.posted == 7 and send.acknowledgements() == 4


def test_stale_records_are_no_news():
    """Broken build: `is_news` without the comparison of events."""
    waves = cut(640, 4, 64, 16, "chunk")
    receive = ReceiveSide(9, 100, 4, 16, 40)
    size = 4 << CORES_SHIFT | 640
    assert receive.is_news(Field(9, 0, 44, size, 100))
    assert not receive.is_news(Field(8, 0, 44, size, 100))  # another event
    assert not receive.is_news(Field(9, 0, 40, size, 100))  # nothing new
    assert not receive.is_news(Field(9, 0, 38, size, 100))  # older than what was copied
    assert not receive.is_news(Field(9, 0, 57, size, 100))  # more than a ring holds
    receive.waves = waves
    assert receive.arrived(Field(9, 0, 47, size, 100)) == 1  # a wave of 4, and 3 of the next


def test_disagreement_names_both():
    receive = ReceiveSide(1, 100, 4, 16, 0)
    assert receive.disagreement(Field(1, 0, 4, 4 << CORES_SHIFT | 640, 100)) == ""
    assert "96 bytes, the receiver takes 100" in receive.disagreement(Field(1, 0, 4, 4 << 56, 96))
    assert "8 AIV cores, the receiver 4" in receive.disagreement(Field(1, 0, 4, 8 << 56, 100))


def test_real_bytes_are_shared_out_as_the_charged_ones():
    waves = cut(1000, 2, 100, 9, "chunk")
    same = Shares(waves, 1000)
    assert [same.of(i) for i in range(5)] == [(200 * i, 200 * i + 200) for i in range(5)]
    few = Shares(waves, 7)
    assert [few.of(i) for i in range(5)] == [(0, 1), (1, 2), (2, 4), (4, 5), (5, 7)]
    huge = Shares(cut(3 << 31, 48, 1 << 24, 192, "chunk"), 1 << 20)
    assert huge.of(0)[0] == 0 and huge.of(7)[1] == 1 << 20
