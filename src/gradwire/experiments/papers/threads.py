"""Ranks as threads of this process, over links that keep to a rate and a latency."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # torch's import takes seconds
    from gradwire.links import Link

Result = TypeVar("Result")
TIMEOUT_S = 60.0


def on_threads(
    world: int, work: Callable[[Link], Result], nbytes_per_s: float | None, latency_s: float = 0.0
) -> list[Result]:
    """Call ``work`` with each rank's link on a thread of its own; return the results by rank.

    Every rank has a port of ``nbytes_per_s`` each way (None: unlimited). The first error of a rank closes all
    links and is raised.
    """
    from gradwire.links import loopback
    from gradwire.links.throttle import Port, ThrottledLink

    links: list[Link] = [
        ThrottledLink(link, Port(nbytes_per_s, latency_s)) for link in loopback(world, TIMEOUT_S)
    ]
    with ThreadPoolExecutor(world, thread_name_prefix="rank") as pool:
        futures = [pool.submit(work, link) for link in links]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            for link in links:
                link.close()
    return [future.result() for future in futures]


def exchange_s(
    world: int,
    algorithm: str,
    codec: str,
    nbytes: int,
    nbytes_per_s: float | None,
    latency_s: float,
    repeats: int,
) -> list[float]:
    """Return the seconds of ``repeats`` all-reduces of ``nbytes`` bytes of float32, of the slowest rank.

    Each chunk travels as one segment, as the papers' formulas have it. One more is made before, which isn't
    timed.
    """
    import time

    import torch

    from gradwire.codecs import parse
    from gradwire.exchange import Exchange
    from gradwire.plan import MAX_SEGMENT_NBYTES, SEGMENT_UNIT_NBYTES, Plan

    most = min(MAX_SEGMENT_NBYTES, max(SEGMENT_UNIT_NBYTES, 1 << 24))
    plan = Plan(parse(codec), algorithm, most)

    def work(link: Link) -> list[tuple[float, float]]:
        exchange = Exchange(link, plan)
        generator = torch.Generator().manual_seed(link.rank)
        gradient = torch.randn(nbytes // 4, generator=generator) * 1e-3
        times = []
        for _ in range(repeats + 1):
            bucket = gradient.clone()
            _meet(link)
            began = time.perf_counter()
            exchange.all_reduce(bucket)
            times.append((began, time.perf_counter()))
        return times[1:]

    ranks = on_threads(world, work, nbytes_per_s, latency_s)
    return [
        max(end for _, end in each) - min(begin for begin, _ in each) for each in zip(*ranks, strict=True)
    ]


def _meet(link: Link) -> None:
    """Wait until all ranks are here: to rank 0 and back."""
    import torch

    word = torch.zeros(1, dtype=torch.uint8)
    others = [rank for rank in range(link.world) if rank]
    if link.rank:
        link.isend(0, word).wait()
        link.irecv(0, word.clone()).wait()
        return
    for arriving in [link.irecv(rank, word.clone()) for rank in others]:
        arriving.wait()
    for leaving in [link.isend(rank, word) for rank in others]:
        leaving.wait()
