from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from threading import Timer
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.codecs import Identity, parse
from gradwire.collectives import backend, get, ring
from gradwire.errors import ExchangeError, LinkError
from gradwire.exchange import Exchange, Norms
from gradwire.exchange.backend import NativeAllReduce
from gradwire.exchange.request import BucketRequest, Half
from gradwire.exchange.views import ParameterViews
from gradwire.links import Link, ProcessGroupLink, loopback
from gradwire.plan import Plan
from gradwire.wire import HEADER_NBYTES
from support.summing import Summing

RunRanks = Callable[..., list[Any]]
RunProcesses = RunRanks
PLAN = Plan(algorithm="backend", segment_nbytes=1 << 14)
COUNT = 10_001


def test_its_steps_are_the_rings() -> None:
    assert get("backend") is backend
    for world in range(1, 6):
        for rank in range(world):
            assert list(backend.schedule(rank, world)) == list(ring.schedule(rank, world))


def test_the_first_bucket_of_every_length_walks_and_later_ones_do_not(run_ranks: RunRanks) -> None:
    links = [Summing(link) for link in loopback(2)]

    def act(link: Link) -> list[tuple[float, int]]:
        exchange, found = Exchange(link, PLAN), []
        for count in (5, 7, 5, 5, 7, 0, 0):
            bucket = torch.ones(count)
            cost = exchange.all_reduce(bucket, average=False)
            found.append((float(bucket.sum()) / max(1, count), cost.frames))
        return found

    for link, found in zip(links, run_ranks(2, act, links=links), strict=True):
        assert [value for value, _ in found] == [2, 2, 2, 2, 2, 0, 0]
        assert [frames for _, frames in found[:5]] == [2, 2, 1, 1, 1], "an announcement, but no walk"
        assert link.summed == [5, 5, 7]


@pytest.mark.parametrize("spec", ["quantize:8", "lossless"])
def test_a_codec_is_never_left_out(run_ranks: RunRanks, spec: str) -> None:
    links = [Summing(link) for link in loopback(2)]

    def act(link: Link) -> list[int]:
        exchange = Exchange(link, Plan(parse(spec), "backend"))
        return [exchange.all_reduce(torch.ones(64)).frames for _ in range(3)]

    for frames in run_ranks(2, act, links=links):
        assert all(number > 0 for number in frames)
    assert [link.summed for link in links] == [[], []]


def test_a_link_without_one_walks(run_ranks: RunRanks) -> None:
    def act(link: Link) -> list[int]:
        exchange = Exchange(link, PLAN)
        return [exchange.all_reduce(torch.ones(64)).frames for _ in range(2)]

    assert all(min(frames) > 0 for frames in run_ranks(3, act))


def sums() -> tuple[list[bytes], list[int], int, int, float]:
    assert dist.group.WORLD is not None
    link = ProcessGroupLink(dist.group.WORLD, timeout_s=5.0)
    exchange, generator = Exchange(link, PLAN), torch.Generator().manual_seed(link.rank)
    bits, frames = [], []
    for _ in range(3):
        bucket = torch.randn(COUNT, generator=generator)
        bucket[link.rank] = float("nan")
        cost = exchange.all_reduce(bucket)
        bits.append(bucket.numpy().tobytes())
        frames.append(cost.frames)
    residual = torch.full((COUNT,), 0.5)
    bucket = torch.full((COUNT,), float(link.rank))
    exchange.all_reduce(bucket, average=False, residual=residual)
    assert torch.equal(bucket, torch.full((COUNT,), 0 + 1 + 2 + 3 * 0.5))
    link.close()
    return bits, frames, int(cost.raw_nbytes), int(cost.wire_nbytes), float(residual.abs().max())


@pytest.mark.processes
def test_gloo_sums_on_all_ranks_alike(run_processes: RunProcesses) -> None:
    ranks = run_processes(3, sums)
    generators = [torch.Generator().manual_seed(rank) for rank in range(3)]
    for step in range(3):
        drawn = [torch.randn(COUNT, generator=generator) for generator in generators]
        exact = torch.stack(drawn).double().mean(0)
        for bits, *_ in ranks:
            got = torch.frombuffer(bytearray(bits[step]), dtype=torch.float32)
            assert got[:3].isnan().all()
            assert torch.allclose(got[3:].double(), exact[3:], atol=1e-6)
        assert len({bits[step] for bits, *_ in ranks}) == 1
    for _, frames, raw_nbytes, wire_nbytes, residual in ranks:
        assert frames[0] > 1
        assert frames[1:] == [1, 1]
        assert raw_nbytes == round(2 * 2 / 3 * 4 * COUNT)
        assert wire_nbytes == raw_nbytes + HEADER_NBYTES
        assert residual == 0


def failing(how: str) -> str:
    assert dist.group.WORLD is not None
    link = ProcessGroupLink(dist.group.WORLD, timeout_s=1.0)
    exchange = Exchange(link, PLAN)
    exchange.all_reduce(torch.ones(100))
    length = 100
    if link.rank == 2:
        if how == "dies":
            os._exit(1)
        elif how == "sleeps":
            time.sleep(4.0)
            return ""
        length = 60
    elif how == "differs":
        length = 80
    started = time.monotonic()
    with pytest.raises(ExchangeError) as caught:
        exchange.all_reduce(torch.ones(length))
    assert time.monotonic() - started < 4.0
    with pytest.raises(ExchangeError, match="can no longer be used"):
        exchange.all_reduce(torch.ones(100))
    return str(caught.value)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("how", "absent", "wanted"),
    [
        ("dies", (2,), "rank 2 has closed its link|rank 0 has closed its link"),
        (
            "sleeps",
            (2,),
            "receiving from rank 2: no progress within 1 s|Gloo's all-reduce of 100 values",
        ),
        ("differs", (), "ring|backend"),
    ],
)
def test_a_failure_is_an_error_on_every_rank(
    run_processes: RunProcesses, how: str, absent: tuple[int, ...], wanted: str
) -> None:
    for text in run_processes(3, failing, how, absent=absent)[:2]:
        assert any(part in text for part in wanted.split("|")), text
        assert "rank" in text


def meeting(how: str) -> tuple[str, float]:
    """Two lengths are known; then one rank does what another does not."""
    assert dist.group.WORLD is not None
    link = ProcessGroupLink(dist.group.WORLD, timeout_s=3.0)
    exchange = Exchange(link, PLAN)
    for length in (100, 300) * (2 if "connected" in how else 1):
        exchange.all_reduce(torch.ones(length))
    last = link.rank == link.world - 1
    if last and "dies" in how:
        os._exit(1)
    lengths = [300, 100] if last and "out of order" in how else [100, 300]
    started = time.monotonic()
    try:
        for length in lengths:
            average = not (last and "sum" in how)
            exchange.all_reduce(torch.ones(length), average, timeout_s=50.0)  # as at the begin of a step
    except ExchangeError as error:
        return str(error), time.monotonic() - started
    return "no error", 0.0


@pytest.mark.processes
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("how", ["out of order", "out of order, connected", "a sum", "a sum, connected"])
def test_ranks_that_call_differently_are_told_so_before_gloo_begins(
    run_processes: RunProcesses, how: str, world: int
) -> None:
    found = run_processes(world, meeting, how)
    wanted = "a(n average| sum), got one of a" if "sum" in how else "(1|3)00 elements, got (1|3)00"
    first, last = found[0][0], found[-1][0]
    assert re.search(
        f"backend all-reduce: rank 0 receiving from rank {world - 1}: expected a frame of {wanted}", first
    )
    assert re.search(f"rank {world - 1} receiving from rank {world - 2}: expected a frame of {wanted}", last)
    for text, seconds in found:
        assert "rank" in text
        assert seconds < 20.0


@pytest.mark.processes
@pytest.mark.parametrize("how", ["dies", "dies, connected"])
def test_a_peer_that_is_dead_when_gloo_connects_is_noticed_at_once(
    run_processes: RunProcesses, how: str
) -> None:
    for rank, (text, seconds) in enumerate(run_processes(4, meeting, how, absent=(3,))[:3]):
        assert f"rank {rank}" in text
        assert seconds < 10.0


def broken_off(how: str) -> str:
    """A thread is in Gloo, which waits for a peer, when another closes the link."""
    assert dist.group.WORLD is not None
    link = ProcessGroupLink(dist.group.WORLD, timeout_s=30.0)
    tensor = torch.ones(100)
    if "connected" in how:
        link.all_reduce(tensor)
    dist.barrier()
    if link.rank == 1:
        dist.barrier()
        return ""
    Timer(0.3, link.close).start()
    started = time.monotonic()
    with pytest.raises(LinkError, match="this rank has closed its link") as caught:
        link.all_reduce(tensor)
    assert time.monotonic() - started < 5.0
    dist.barrier()
    return str(caught.value)


@pytest.mark.processes
@pytest.mark.parametrize("how", ["connecting", "connected"])
def test_closing_a_link_ends_a_wait_within_gloo(run_processes: RunProcesses, how: str) -> None:
    text = run_processes(2, broken_off, how, alone=True)[0]
    assert text == "rank 0 in Gloo's all-reduce of 100 values over 2 ranks: this rank has closed its link"


def begun(exchange: Exchange, bucket: torch.Tensor) -> NativeAllReduce:
    """Let the transport begin with a bucket of a length that it knows."""
    found = exchange.start(bucket, BucketRequest(timeout_s=20.0))
    assert found is not None
    return found


def known(exchange: Exchange) -> list[int]:
    """Return which of some lengths the transport begins with; all ranks try the same ones."""
    lengths = []
    for count in (0, 7, 8, COUNT):
        found = exchange.start(torch.ones(count), BucketRequest(timeout_s=20.0))
        if found is not None:
            found.wait(20.0)
            lengths.append(count)
    return lengths


def apart() -> tuple[list[list[int]], list[bytes], list[bytes], list[int]]:
    """Exchange two lengths until both are known, then average them both ways."""
    assert dist.group.WORLD is not None
    link = ProcessGroupLink(dist.group.WORLD, timeout_s=20.0)
    exchange = Exchange(link, PLAN)
    lengths = [known(exchange)]
    for count in (COUNT, 7, 7):
        exchange.all_reduce(torch.ones(count))
        lengths.append(known(exchange))
    buckets = [torch.randn(n, generator=torch.Generator().manual_seed(link.rank)) for n in (COUNT, 7)]
    buckets[1][0] = float("inf")
    for request in (
        BucketRequest(Half.REDUCE),
        BucketRequest(average=False),
        BucketRequest(codec=Identity()),
        BucketRequest(residual=torch.zeros(7)),
        BucketRequest(norms=Norms([0, 7])),
        BucketRequest(views=ParameterViews((7,), (Identity(),))),
    ):
        assert exchange.start(buckets[1], request) is None, request
    assert exchange.start(buckets[1].bfloat16(), BucketRequest()) is None
    walked = [bucket.clone() for bucket in buckets]
    costs = [exchange.all_reduce(bucket) for bucket in walked]
    sums = [begun(exchange, bucket) for bucket in buckets]
    costs += [each.wait(20.0) for each in reversed(sums)]
    for plan in (Plan(parse("fp8")), PLAN):  # what is known stays known
        exchange.follow(plan)
        lengths.append(known(exchange))
    exchange.close()
    with pytest.raises(ExchangeError, match="can no longer be used"):
        exchange.start(buckets[0], BucketRequest())
    first, second = ([each.numpy().tobytes() for each in found] for found in (walked, buckets))
    return lengths, first, second, [cost.nonfinite for cost in costs] + [int(costs[3].wire_nbytes)]


@pytest.mark.processes
def test_known_lengths_need_no_walk_and_no_announcement(run_processes: RunProcesses) -> None:
    for lengths, walked, begun, counted in run_processes(3, apart):
        # Gloo connects with the first length that comes twice.
        assert lengths == [[], [], [], [7, COUNT], [], [7, COUNT]]
        assert walked == begun
        assert counted == [0, 1, 1, 0, round(2 * 2 / 3 * 4 * COUNT)]
