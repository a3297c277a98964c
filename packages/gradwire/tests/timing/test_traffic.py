"""Messages between two ranks: how many go, which way, and how many are under way at once."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.links import Link, loopback
from gradwire.links.base import Receiving, Sending, Wrapper
from gradwire.timing.line_rate import Pair

RunRanks = Callable[..., list[Any]]


class Counting(Wrapper):
    """Counts the messages that a rank sends, by their sizes, and the most that are under way."""

    def __init__(self, inner: Link) -> None:
        super().__init__(inner)
        self.sent = Counter[int]()
        self.under_way = self.most_under_way = 0

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        self.sent[frame.numel()] += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        return _CountedSending(self, self._inner.isend(to, frame))

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        return self._inner.irecv(source, buffer)


class _CountedSending:
    def __init__(self, link: Counting, inner: Sending) -> None:
        self._link, self._inner = link, inner

    def wait(self, timeout_s: float | None = None, keepalive: bool = False) -> None:
        self._inner.wait(timeout_s, keepalive)
        self._link.under_way -= 1


def counting() -> list[Counting]:
    return [Counting(link) for link in loopback(2)]


def test_a_round_trip_is_one_message_each_way(run_ranks: RunRanks) -> None:
    links = counting()
    trips, nothing = run_ranks(2, lambda link: Pair(link, 1 - link.rank, 4).round_trips(64, 7), links=links)
    assert len(trips) == 7
    assert min(trips) > 0
    assert nothing == []
    assert [link.sent for link in links] == [{64: 7}, {64: 7}]


@pytest.mark.parametrize("window", [1, 3, 100])
def test_a_stream_goes_one_way_within_its_window(run_ranks: RunRanks, window: int) -> None:
    links = counting()
    run_ranks(2, lambda link: Pair(link, 1 - link.rank, window).stream(64, 20), links=links)
    assert [link.sent for link in links] == [{64: 20}, {1: 1}], "the other rank only says that all is there"
    assert links[0].most_under_way == min(window, 20)


def test_a_duplex_stream_goes_both_ways(run_ranks: RunRanks) -> None:
    links = counting()
    run_ranks(2, lambda link: Pair(link, 1 - link.rank, 4).duplex(64, 20), links=links)
    assert [link.sent for link in links] == [{64: 20, 1: 1}] * 2
