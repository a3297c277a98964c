"""The contract of ``links.base``, for every link that needs no processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links import Link, Port, ThrottledLink, loopback
from support.certificates import needs_openssl
from support.faulty_link import FaultyLink
from support.meshes import marked, sockets, tls

RunRanks = Callable[..., list[Any]]
MakeLinks = Callable[[int, float], list[Link]]


def throttled(world: int, timeout_s: float) -> list[Link]:
    return [ThrottledLink(link, Port(1e9)) for link in loopback(world, timeout_s)]


def faultless(world: int, timeout_s: float) -> list[Link]:
    return [FaultyLink(link, []) for link in loopback(world, timeout_s)]


BEYOND_ALL_BUFFERS = 64 << 20
"""Bytes that no kernel takes before somebody receives them."""


@pytest.fixture(
    params=[loopback, throttled, faultless, sockets, marked, pytest.param(tls, marks=needs_openssl)],
    ids=lambda make: make.__name__,
)
def make_links(request: pytest.FixtureRequest) -> MakeLinks:
    make: MakeLinks = request.param
    return make


def frame(number: int, nbytes: int = 100) -> torch.Tensor:
    return torch.full((nbytes,), number, dtype=torch.uint8)


def buffer(nbytes: int = 1000) -> torch.Tensor:
    return torch.zeros(nbytes, dtype=torch.uint8)


def test_every_rank_knows_its_place(make_links: MakeLinks) -> None:
    links = make_links(3, 0.5)
    assert [(link.rank, link.world, link.timeout_s) for link in links] == [(r, 3, 0.5) for r in range(3)]


@pytest.mark.parametrize("nbytes", [1, 32, 999, 1000])
def test_a_frame_arrives_as_it_was_sent_even_into_a_larger_buffer(
    make_links: MakeLinks, run_ranks: RunRanks, nbytes: int
) -> None:
    sent = torch.randint(256, (nbytes,), dtype=torch.uint8)

    def rank(link: Link) -> torch.Tensor | None:
        if link.rank == 0:
            link.isend(1, sent).wait()
            return None
        return link.irecv(0, buffer()).wait()

    assert torch.equal(run_ranks(2, rank, links=make_links(2, 5.0))[1][:nbytes], sent)


def test_frames_between_two_ranks_keep_their_order(make_links: MakeLinks, run_ranks: RunRanks) -> None:
    def rank(link: Link) -> list[int]:
        if link.rank == 0:
            sendings = [link.isend(1, frame(i)) for i in range(50)]
            for sending in sendings:
                sending.wait()
            return []
        receivings = [link.irecv(0, buffer()) for _ in range(50)]
        return [int(receiving.wait()[0]) for receiving in receivings]

    assert run_ranks(2, rank, links=make_links(2, 5.0))[1] == list(range(50))


def test_all_ranks_talk_at_once(make_links: MakeLinks, run_ranks: RunRanks) -> None:
    def rank(link: Link) -> list[int]:
        others = [r for r in range(link.world) if r != link.rank]
        receivings = [link.irecv(r, buffer()) for r in others]
        sendings = [link.isend(r, frame(10 * link.rank + r)) for r in others]
        came = [int(receiving.wait()[0]) for receiving in receivings]
        for sending in sendings:
            sending.wait()
        return came

    results = run_ranks(5, rank, links=make_links(5, 5.0))
    assert results == [[10 * r + me for r in range(5) if r != me] for me in range(5)]


def test_the_memory_of_a_frame_is_free_once_the_send_is_done(
    make_links: MakeLinks, run_ranks: RunRanks
) -> None:
    def rank(link: Link) -> int:
        if link.rank == 0:
            memory = frame(1)
            link.isend(1, memory).wait()
            memory.fill_(99)
            link.isend(1, frame(2)).wait()
            return 0
        first, second = link.irecv(0, buffer()), link.irecv(0, buffer())
        second.wait()
        return int(first.wait()[0])

    assert run_ranks(2, rank, links=make_links(2, 5.0))[1] == 1


@pytest.mark.parametrize("way", ["send", "receive"])
def test_waiting_for_a_peer_that_does_nothing_ends_in_a_timeout(make_links: MakeLinks, way: str) -> None:
    link, _peer = make_links(2, 0.1)
    started = time.monotonic()
    with pytest.raises(LinkTimeoutError, match=r"rank 0 .* rank 1: no progress within 0\.1 s"):
        (link.isend(1, frame(1, BEYOND_ALL_BUFFERS)) if way == "send" else link.irecv(1, buffer())).wait()
    assert 0.1 <= time.monotonic() - started < 5.0


@pytest.mark.parametrize("way", ["send", "receive"])
def test_closing_a_link_wakes_who_waits_for_it(make_links: MakeLinks, run_ranks: RunRanks, way: str) -> None:
    def rank(link: Link) -> None:
        if link.rank == 1:
            time.sleep(0.1)
            link.close()
            return
        (link.isend(1, frame(1, BEYOND_ALL_BUFFERS)) if way == "send" else link.irecv(1, buffer())).wait()

    started = time.monotonic()
    error, _ = run_ranks(2, rank, links=make_links(2, 30.0), errors="return")
    assert time.monotonic() - started < 20.0
    assert isinstance(error, LinkError)
    assert not isinstance(error, LinkTimeoutError)
    assert "rank 1 has closed its link" in str(error)


def test_a_closed_link_carries_nothing_and_closes_again(make_links: MakeLinks) -> None:
    links = make_links(2, 5.0)
    pending = links[1].isend(0, frame(1, BEYOND_ALL_BUFFERS))
    links[0].close()
    links[0].close()
    late: list[Callable[[], Any]] = [
        lambda: links[0].irecv(1, buffer()).wait(),
        lambda: links[0].isend(1, frame(2)).wait(),
        lambda: links[1].irecv(0, buffer()).wait(),
        pending.wait,
    ]
    for operation in late:
        with pytest.raises(LinkError, match=r"rank 0 has closed its link|this rank has closed its link"):
            operation()


def test_what_was_received_before_the_close_can_still_be_read(make_links: MakeLinks) -> None:
    links = make_links(2, 5.0)
    receiving = links[1].irecv(0, buffer())
    links[0].isend(1, frame(7)).wait()
    links[0].close()
    assert int(receiving.wait()[0]) == 7


def test_other_ranks_go_on_when_one_has_closed(make_links: MakeLinks, run_ranks: RunRanks) -> None:
    links = make_links(3, 5.0)
    links[0].close()

    def rank(link: Link) -> int:
        if link.rank == 1:
            link.isend(2, frame(3)).wait()
        return int(link.irecv(1, buffer()).wait()[0]) if link.rank == 2 else 0

    assert run_ranks(3, rank, links=links) == [0, 0, 3]


def served_last(link: Link, slow_s: float) -> int:
    """Rank 0 serves rank 1, which is slow, and then rank 2, which has waited meanwhile."""
    if link.rank == 1:
        for number in range(6):
            time.sleep(slow_s)
            link.isend(0, frame(number)).wait(0.8, keepalive=True)
        return 0
    if link.rank == 2:
        return int(link.irecv(0, buffer()).wait(0.8, keepalive=True)[0])
    for _ in range(6):
        link.irecv(1, buffer()).wait(0.8, keepalive=True)
    link.isend(2, frame(9)).wait(0.8, keepalive=True)
    return 0


def test_a_rank_that_is_served_last_does_not_take_the_others_for_dead(
    make_links: MakeLinks, run_ranks: RunRanks
) -> None:
    assert run_ranks(3, served_last, 0.25, links=make_links(3, 0.1)) == [0, 0, 9]


def test_the_timeout_of_a_wait_is_its_own(make_links: MakeLinks) -> None:
    link, _peer = make_links(2, 30.0)
    with pytest.raises(LinkTimeoutError, match=r"no progress within 0\.1 s"):
        link.irecv(1, buffer()).wait(0.1)
    assert link.timeout_s == 30.0


def test_a_link_that_holds_frames_back_keeps_the_waits_of_others_alive(
    make_links: MakeLinks, run_ranks: RunRanks
) -> None:
    def rank(link: Link) -> int:
        if link.rank == 1:
            return int(link.irecv(0, buffer()).wait(0.8, keepalive=True)[0])
        for _ in range(15):
            time.sleep(0.1)
            link.keep_alive(0.8)
        link.isend(1, frame(3)).wait()
        return 0

    assert run_ranks(2, rank, links=make_links(2, 0.1)) == [0, 3]


def test_a_frame_that_ends_with_floats_arrives_whole_between_others(
    make_links: MakeLinks, run_ranks: RunRanks
) -> None:
    sent = [torch.randint(256, (nbytes,), dtype=torch.uint8) for nbytes in (40, 400, 999, 8)]

    def rank(link: Link) -> list[bool]:
        if link.rank == 0:
            for floats_nbytes, each in zip((8, 0, 800, 8), sent, strict=True):
                if floats_nbytes:
                    link.isend_marked(1, each, floats_nbytes).wait()
                else:
                    link.isend(1, each).wait()
            return []
        receivings = [link.irecv(0, buffer()) for _ in sent]
        came = [receiving.wait() for receiving in receivings]
        return [torch.equal(each[: one.numel()], one) for each, one in zip(came, sent, strict=True)]

    assert run_ranks(2, rank, links=make_links(2, 5.0))[1] == [True] * 4
