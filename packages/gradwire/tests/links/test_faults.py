from __future__ import annotations

import time

import pytest
import torch

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links import Link, Receiving, loopback
from support.faulty_link import Fault, FaultyLink

FRAME = torch.arange(40, dtype=torch.uint8)


def sent_under(*faults: Fault, frames: int = 1) -> tuple[Link, list[Receiving]]:
    """Send frames from rank 0 under faults; return that link and what rank 1 receives."""
    sender, receiver = loopback(2, timeout_s=0.2)
    receivings = [receiver.irecv(0, torch.zeros(100, dtype=torch.uint8)) for _ in range(frames + 1)]
    faulty = FaultyLink(sender, faults)
    for _ in range(frames):
        faulty.isend(1, FRAME).wait()
    return faulty, receivings


@pytest.mark.parametrize("bit", [0, 7, 8, 319, -1, 320])
def test_corrupt_flips_one_bit_of_what_is_sent_and_leaves_the_senders_memory(bit: int) -> None:
    before = FRAME.clone()
    _, (receiving, _) = sent_under(Fault("corrupt", rank=0, step=0, bit=bit))
    changed = receiving.wait() ^ FRAME
    assert [bin(byte).count("1") for byte in changed.tolist() if byte] == [1]
    assert changed[bit % 320 // 8] == 1 << bit % 8
    assert torch.equal(before, FRAME)


def test_truncate_sends_the_first_half() -> None:
    _, (receiving, _) = sent_under(Fault("truncate", rank=0, step=0))
    assert torch.equal(receiving.wait(), FRAME[:20])


def test_drop_sends_nothing() -> None:
    _, (receiving, _) = sent_under(Fault("drop", rank=0, step=0))
    with pytest.raises(LinkTimeoutError):
        receiving.wait()


def test_duplicate_sends_twice() -> None:
    _, receivings = sent_under(Fault("duplicate", rank=0, step=0))
    assert all(torch.equal(receiving.wait(), FRAME) for receiving in receivings)


def test_delay_sends_later() -> None:
    started = time.monotonic()
    _, (receiving, _) = sent_under(Fault("delay", rank=0, step=0, seconds=0.05))
    assert time.monotonic() - started >= 0.05
    assert torch.equal(receiving.wait(), FRAME)


def test_fail_breaks_the_link_for_both() -> None:
    sender, receiver = loopback(2, timeout_s=5.0)
    receiving = receiver.irecv(0, torch.zeros(100, dtype=torch.uint8))
    with pytest.raises(LinkError, match="rank 0 sending to rank 1: the link broke"):
        FaultyLink(sender, [Fault("fail", rank=0, step=0)]).isend(1, FRAME)
    with pytest.raises(LinkError, match="rank 0 has closed its link"):
        receiving.wait()


def test_a_fault_happens_to_its_rank_and_frame_only() -> None:
    elsewhere = Fault("drop", rank=1, step=0)
    second = Fault("corrupt", rank=0, step=1)
    _, receivings = sent_under(elsewhere, second, frames=3)
    intact = [torch.equal(receiving.wait(), FRAME) for receiving in receivings[:3]]
    assert intact == [True, False, True]


def test_faults_on_one_frame_add_up() -> None:
    _, (receiving, _) = sent_under(Fault("truncate", 0, 0), Fault("corrupt", 0, 0, bit=3))
    assert receiving.wait().tolist() == [8, *range(1, 20)]
