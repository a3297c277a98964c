from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from gradwire.codecs import Identity
from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.exchange import Exchange
from gradwire.links import Link, Port, ThrottledLink, loopback, throttle
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from support.meshes import sockets

RunRanks = Callable[..., list[Any]]
RATE = 5e6  # bytes per second: 1 MB takes 200 ms, long beside what a busy machine adds
MEGABYTE = 1_000_000
SLACK_S = 0.08  # what a busy machine may add, in the best of some attempts


def throttled(world: int, rate: float | None = RATE, latency_s: float = 0.0) -> list[Link]:
    return [ThrottledLink(link, Port(rate, latency_s)) for link in loopback(world, 10.0)]


def megabyte() -> torch.Tensor:
    return torch.ones(MEGABYTE, dtype=torch.uint8)


def check_took(
    run_ranks: RunRanks, make_links: Callable[[], list[Link]], fn: Callable[[Link], None], closed_form: float
) -> None:
    """It never takes less than the closed form, and hardly more once the machine has time for it."""
    for attempt in range(5):
        links = make_links()
        started = time.monotonic()
        run_ranks(len(links), fn, links=links)
        seconds = time.monotonic() - started
        assert seconds >= closed_form
        if seconds < 1.15 * closed_form + SLACK_S:
            return
        time.sleep(0.2 * attempt)
    pytest.fail(f"took {seconds:.3f} s, but the closed form is {closed_form:.3f} s")


def test_a_frame_takes_its_length_over_the_rate_and_an_idle_receiver_adds_nothing(
    run_ranks: RunRanks,
) -> None:
    def rank(link: Link) -> None:
        if link.rank == 0:
            link.isend(1, megabyte()).wait()
        else:
            link.irecv(0, megabyte()).wait()

    check_took(run_ranks, lambda: throttled(2), rank, MEGABYTE / RATE)


def test_latency_comes_on_top_once_for_frames_in_a_row(run_ranks: RunRanks) -> None:
    def rank(link: Link) -> None:
        if link.rank == 0:
            sendings = [link.isend(1, megabyte()) for _ in range(3)]
            for sending in sendings:
                sending.wait()
        else:
            receivings = [link.irecv(0, megabyte()) for _ in range(3)]
            for receiving in receivings:
                receiving.wait()

    check_took(run_ranks, lambda: throttled(2, latency_s=0.3), rank, 3 * MEGABYTE / RATE + 0.3)


def test_both_directions_run_at_once(run_ranks: RunRanks) -> None:
    def rank(link: Link) -> None:
        other = 1 - link.rank
        receiving = link.irecv(other, megabyte())
        sending = link.isend(other, megabyte())
        receiving.wait()
        sending.wait()

    check_took(run_ranks, lambda: throttled(2), rank, MEGABYTE / RATE)


@pytest.mark.parametrize("senders", [1, 2, 4])
def test_senders_to_one_host_share_its_incoming_rate(run_ranks: RunRanks, senders: int) -> None:
    def rank(link: Link) -> None:
        if link.rank == 0:
            for receiving in [link.irecv(r, megabyte()) for r in range(1, link.world)]:
                receiving.wait()
        else:
            link.isend(0, megabyte()).wait()

    check_took(run_ranks, lambda: throttled(senders + 1), rank, senders * MEGABYTE / RATE)


def test_links_that_share_a_port_share_its_rate(run_ranks: RunRanks) -> None:
    """Two senders of one host, to two receivers of other hosts."""

    def make_links() -> list[Link]:
        port = Port(RATE)
        pairs = [loopback(2, 10.0) for _ in range(2)]
        return [
            *(ThrottledLink(pair[0], port) for pair in pairs),
            *(ThrottledLink(pair[1], Port(None)) for pair in pairs),
        ]

    def rank(link: Link) -> None:
        if link.rank == 0:
            link.isend(1, megabyte()).wait()
        else:
            link.irecv(0, megabyte()).wait()

    check_took(run_ranks, make_links, rank, 2 * MEGABYTE / RATE)


@pytest.mark.parametrize(
    ("algorithm", "world", "buckets"),
    [
        *(("ring", world, 2 * (world - 1) / world) for world in (2, 3, 4)),
        *(("butterfly", world, 2 * (world - 1) / world) for world in (2, 4)),
        *(("star", world, 2 * world - 3) for world in (2, 3, 4)),
        *(("tree", world, 2 * height - 1) for world, height in ((2, 1), (3, 2), (4, 2))),
    ],
)
def test_an_exchange_takes_what_its_card_says(
    run_ranks: RunRanks, algorithm: str, world: int, buckets: float
) -> None:
    """What has to travel one after the other, over the rate.

    In the star and the tree the root sends on the last bucket that it receives segment by segment, so that
    one of the buckets on its critical path does not count.
    """
    n = 24 * SEGMENT_UNIT_NBYTES
    rate = 2e6  # a segment takes 8 ms, long beside the time that threads take to change
    plan = Plan(Identity(), algorithm, SEGMENT_UNIT_NBYTES)

    def rank(link: Link) -> None:
        Exchange(link, plan).all_reduce(torch.ones(n // 4))

    check_took(run_ranks, lambda: throttled(world, rate), rank, buckets * n / rate)


def test_an_unlimited_port_adds_nothing(run_ranks: RunRanks) -> None:
    def rank(link: Link) -> None:
        Exchange(link, Plan()).all_reduce(torch.ones(100_000))

    check_took(run_ranks, lambda: throttled(3, rate=None), rank, 0.0)


def test_a_slow_star_is_no_timeout_while_frames_move(run_ranks: RunRanks) -> None:
    n, rate, world, timeout_s = 600_000, 2e6, 6, 1.0
    plan = Plan(Identity(), "star", SEGMENT_UNIT_NBYTES)
    links = [ThrottledLink(link, Port(rate)) for link in loopback(world, timeout_s)]

    def rank(link: Link) -> None:
        Exchange(link, plan).all_reduce(torch.ones(n // 4))

    assert (world - 1) * n / rate > timeout_s, "the first to send waits longer than that for the sum"
    run_ranks(world, rank, links=links)


@pytest.mark.parametrize("make", [loopback, sockets])
def test_a_star_with_one_segment_for_each_rank_is_no_timeout(
    run_ranks: RunRanks, make: Callable[[int, float], Sequence[Link]]
) -> None:
    """The frames of all ranks share the root's port: the last has its turn after several timeouts."""
    n, rate, world, timeout_s = 100_000, 2e5, 5, 0.8
    plan = Plan(Identity(), "star", 1 << 20)
    links = [ThrottledLink(link, Port(rate)) for link in make(world, timeout_s)]

    def rank(link: Link) -> torch.Tensor:
        tensor = torch.ones(n // 4)
        Exchange(link, plan).all_reduce(tensor)
        return tensor

    assert (world - 1) * n / rate > 2 * timeout_s > n / rate
    assert all(bool((each == 1).all()) for each in run_ranks(world, rank, links=links))


def test_a_frame_that_takes_longer_than_the_timeout_is_no_timeout_with_keepalive(run_ranks: RunRanks) -> None:
    links = [ThrottledLink(link, Port(1e5)) for link in loopback(2, 0.3)]

    def rank(link: Link) -> None:
        frame = torch.ones(100_000, dtype=torch.uint8)
        (link.irecv(0, frame) if link.rank else link.isend(1, frame)).wait(keepalive=True)

    started = time.monotonic()
    run_ranks(2, rank, links=links)
    assert time.monotonic() - started >= 1.0


def test_a_transfer_longer_than_the_timeout_is_a_timeout_at_once() -> None:
    links = [ThrottledLink(link, Port(1000.0)) for link in loopback(2, 5.0)]
    receiving = links[1].irecv(0, megabyte())
    sending = links[0].isend(1, megabyte())
    started = time.monotonic()
    for waiting in (receiving, sending):
        with pytest.raises(
            LinkTimeoutError, match=r"rank . .* rank .: the frame takes more than 5 s at this rate"
        ):
            waiting.wait()
    assert time.monotonic() - started < 4


@pytest.mark.parametrize("nbytes", [8, 100])
def test_a_frame_of_an_unthrottled_sender_is_refused(nbytes: int) -> None:
    plain, inner = loopback(2, 5.0)
    receiving = ThrottledLink(inner, Port(RATE)).irecv(0, torch.zeros(1000, dtype=torch.uint8))
    plain.isend(1, torch.full((nbytes,), 255, dtype=torch.uint8))
    with pytest.raises(
        LinkError, match="rank 1 receiving from rank 0: expected a frame from a throttled link"
    ):
        receiving.wait()


def test_receives_of_any_sizes_hold_no_more_buffers_than_are_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def noted(nbytes: int) -> torch.Tensor:
        memory = torch.zeros(nbytes, dtype=torch.uint8)
        made.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(throttle, "frame_memory", noted)
    sender, receiver = throttled(2, rate=None)

    def exchange(*sizes: int) -> None:
        receivings = [receiver.irecv(0, torch.zeros(nbytes, dtype=torch.uint8)) for nbytes in sizes]
        for nbytes in sizes:
            sender.isend(1, torch.full((nbytes,), 7, dtype=torch.uint8))
        for receiving, nbytes in zip(receivings, sizes, strict=True):
            assert receiving.wait().tolist() == [7] * nbytes

    for _ in range(5):
        exchange(1000, 10)
    assert len(made) == 2
    for nbytes in (2000, 3000, 4000):
        exchange(nbytes, nbytes)
    assert sum(each() is not None for each in made) == 2


def test_a_link_without_a_rate_stays_as_it_is() -> None:
    link = loopback(1)[0]
    assert throttle.throttled(link, None) is throttle.throttled(link, "unlimited") is link
    paced = throttle.throttled(link, "8mbit")
    assert isinstance(paced, ThrottledLink)
    begin_ns, end_ns = paced._port.leave(1000)
    assert end_ns - begin_ns == 1_000_000, "1000 bytes in a millisecond"
