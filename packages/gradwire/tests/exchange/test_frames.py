from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire import wire
from gradwire.codecs import parse
from gradwire.collectives.frame_order import AHEAD
from gradwire.errors import FrameError
from gradwire.exchange import Exchange
from gradwire.exchange.frames import Buffers, Framer, incoming_buffers
from gradwire.links import Link, loopback
from gradwire.plan import Plan
from gradwire.wire import HEADER_NBYTES, MAX_FRAME_NBYTES, Header, Sequences, frame_memory, renumber_frame

RunRanks = Callable[..., list[Any]]


def header(frame: torch.Tensor) -> Header:
    return Header.unpack(bytes(frame[:HEADER_NBYTES].tolist()))


def test_buffers_go_round() -> None:
    buffers = Buffers(100)
    first, second = buffers.take(), buffers.take()
    assert first.data_ptr() != second.data_ptr()
    buffers.give(first)
    assert buffers.take().data_ptr() == first.data_ptr()
    assert first.numel() == 100


def test_buffers_outlive_the_inference_mode_and_ignore_the_default_device() -> None:
    with torch.inference_mode(), torch.device("meta"):
        buffer = Buffers(100).take()
    buffer[:2] = 7
    assert buffer[:2].tolist() == [7, 7]


def test_incoming_buffers_hold_any_frame_and_are_a_links_own() -> None:
    one, other = loopback(2)
    assert incoming_buffers(one).take().numel() == MAX_FRAME_NBYTES
    assert incoming_buffers(one) is incoming_buffers(one)
    assert incoming_buffers(one) is not incoming_buffers(other)


def test_plans_that_come_and_go_take_no_incoming_buffers_of_their_own(
    run_ranks: RunRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(nbytes: int) -> torch.Tensor:
        made.append(nbytes)
        return frame_memory(nbytes)

    monkeypatch.setattr(wire, "frame_memory", counted)

    def exchange_with_many_plans(link: Link) -> None:
        for digits in range(20):
            Exchange(link, Plan(parse(f"errbound:2^-{digits + 4}"))).all_reduce(torch.ones(100))

    run_ranks(2, exchange_with_many_plans)
    assert made.count(MAX_FRAME_NBYTES) <= 2 * (AHEAD + 1), "of two ranks"


def test_sequences_count_per_peer_and_wrap_around() -> None:
    sequences = Sequences()
    sequences.resume(1, 2**32 - 2)
    assert [sequences.take(1) for _ in range(3)] == [2**32 - 2, 2**32 - 1, 0]
    assert sequences.take(2) == 0


@pytest.mark.parametrize("spec", ["identity", "errbound:2^-10"])
def test_a_segment_goes_out_and_comes_in(spec: str) -> None:
    codec = parse(spec)
    framer, x = Framer(codec, 1000), torch.linspace(-1, 1, 700)
    outgoing = framer.encode(x, sequence=6)
    payload = framer.open(outgoing.frame, 700, sequence=6)
    assert torch.equal(payload, codec.encode(x))
    assert header(outgoing.frame).count == 700
    assert header(outgoing.frame).fingerprint == codec.fingerprint


def test_framers_may_share_buffers_of_one_size() -> None:
    pools: dict[int, Buffers] = {}
    half, other, whole = (Framer(parse(spec), 10, pools) for spec in ("fp16", "bf16", "identity"))
    sent = half.encode(torch.ones(10), sequence=0)
    assert other.encode(torch.ones(10), sequence=1).buffer is not sent.buffer, "it is in use"
    sent.home.give(sent.buffer)
    assert whole.encode(torch.ones(10), sequence=2).buffer is not sent.buffer, "it is too small"
    assert other.encode(torch.ones(10), sequence=3).buffer is sent.buffer
    assert len(pools) == 2


def test_a_frame_that_is_sent_once_more_differs_in_its_number_only() -> None:
    framer = Framer(parse("fp16"), 10)
    outgoing = framer.encode(torch.ones(10), sequence=6)
    payload = framer.open(outgoing.frame, 10, sequence=6).clone()
    assert torch.equal(framer.open(renumber_frame(outgoing.frame, 9), 10, sequence=9), payload)
    with pytest.raises(FrameError, match="expected frame 6, got frame 9"):
        framer.open(outgoing.frame, 10, sequence=6)
