"""The windows of one stream: what is posted ahead, what is in flight, and which buffers come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from gradwire.codecs import Identity, parse
from gradwire.collectives.frame_order import AHEAD
from gradwire.costs import ExchangeCost, Scales
from gradwire.errors import FrameError
from gradwire.exchange import Exchange
from gradwire.exchange.frames import Buffers, Framer
from gradwire.exchange.walk import FrameStream, StreamResources
from gradwire.links import loopback
from gradwire.links.base import Link, Receiving, Sending, Wrapper
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from gradwire.wire import HEADER_NBYTES, Sequences

COUNT = 8
NBYTES = HEADER_NBYTES + 4 * COUNT


@dataclass(frozen=True)
class At:
    """Where a frame of these tests goes or comes from."""

    number: int
    peer: int = 1
    keep: bool = False

    @property
    def order(self) -> tuple[int, int]:
        return (self.number, 0)


class Watched(Wrapper):
    """Notes what is posted, what is sent, and what is waited for."""

    def __init__(self, inner: Link) -> None:
        super().__init__(inner)
        self.posted = 0
        self.under_way = 0

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        self.under_way += 1
        sending = self._inner.isend(to, frame)

        class _Noted:
            def wait(_, timeout_s: float | None = None, keepalive: bool = False) -> None:  # noqa: N805
                sending.wait(timeout_s, keepalive)
                self.under_way -= 1

        return _Noted()

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        self.posted += 1
        return self._inner.irecv(source, buffer)


class Counted(Buffers):
    """Knows how many buffers came back."""

    back = 0

    def give(self, buffer: torch.Tensor) -> None:
        self.back += 1
        super().give(buffer)


def pair() -> list[tuple[FrameStream[At], Watched, Framer]]:
    """Return the streams of two ranks, with their links and framers."""
    found = []
    for link in loopback(2, timeout_s=5.0):
        watched, framer = Watched(link), Framer(Identity(), COUNT)
        own = StreamResources(watched, Buffers(NBYTES), Sequences(), Sequences(), 0, 5.0)
        found.append((FrameStream[At](own), watched, framer))
    return found


def listening(link: Link, frames: int) -> None:
    """Let a rank take so many frames, in which nobody looks."""
    for _ in range(frames):
        link.irecv(0, torch.empty(NBYTES, dtype=torch.uint8))


def numbers(seed: int) -> torch.Tensor:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(seed))


def test_frames_come_in_their_order_with_a_window_posted_ahead() -> None:
    (ours, our_link, framer), (theirs, their_link, their_framer) = pair()
    theirs.expect(At(number, peer=0) for number in range(10))
    assert their_link.posted == AHEAD
    for number in range(10):
        ours.send(At(number), ours.encode(At(number), framer, numbers(number)), 4 * COUNT)
        came = theirs.receive(their_framer, COUNT)
        assert torch.equal(came.payload.view(torch.float32), numbers(number))
        assert came.sequence == number
        assert their_link.posted == min(10, AHEAD + number + 1)
    ours.flush()
    assert our_link.under_way == 0
    cost = ours.accounting
    assert (cost.frames, cost.raw_nbytes, cost.wire_nbytes) == (10, 40 * COUNT, 10 * NBYTES)


def test_no_more_than_a_window_is_in_flight() -> None:
    (ours, link, framer), (_, their_link, _) = pair()
    listening(their_link, 3 * AHEAD)
    for number in range(3 * AHEAD):
        ours.send(At(number), ours.encode(At(number), framer, numbers(number)))
        assert link.under_way <= AHEAD
    assert link.under_way == AHEAD
    ours.flush()
    assert link.under_way == 0


def test_no_send_is_waited_for_whose_order_is_not_posted_yet() -> None:
    """Such a wait could be one for a peer that waits for this rank."""
    (ours, link, framer), _ = pair()
    ours.expect([At(0), *(At(100 + number) for number in range(10))])
    ours._posted_up_to = (0, 0)
    for number in range(1, 3 * AHEAD):
        ours.send(At(number), ours.encode(At(number), framer, numbers(number)))
    assert link.under_way == 3 * AHEAD - 1


@pytest.mark.parametrize("keep", [False, True])
def test_a_frames_buffer_comes_back_unless_it_is_kept(keep: bool) -> None:
    (ours, _, framer), (_, their_link, _) = pair()
    listening(their_link, 1)
    home = Counted(NBYTES)
    framer._outgoing = home
    outgoing = ours.encode(At(0), framer, numbers(0))
    ours.send(At(0, keep=keep), outgoing)
    ours.await_leaving(outgoing)
    assert home.back == (not keep)


def test_a_frame_of_another_length_does_not_pass() -> None:
    (ours, _, framer), (theirs, _, their_framer) = pair()
    theirs.expect([At(0, peer=0)])
    ours.send(At(0), ours.encode(At(0), framer, numbers(0)))
    with pytest.raises(FrameError):
        theirs.receive(their_framer, COUNT - 1)


def test_costs_say_what_frames_were_scaled_by(run_ranks: Callable[..., list[Any]]) -> None:
    n = SEGMENT_UNIT_NBYTES // 4  # of each of a ring's two chunks

    def rank(link: Link) -> ExchangeCost:
        x = torch.cat((torch.full((n,), 2.0**-20), torch.zeros(n)))
        return Exchange(link, Plan(parse("errbound:2^-8"), "ring", scale="auto")).all_reduce(x, average=False)

    total = sum(run_ranks(2, rank), ExchangeCost())
    assert total.frames == 4
    assert total.scales == Scales(18, 19, 2), "a share, the sum, and zeros"
