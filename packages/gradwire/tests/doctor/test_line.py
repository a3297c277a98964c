from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.doctor.compare import check_lines, look_at_line, show_line
from gradwire.doctor.finding import Look
from gradwire.links import Link, Receiving, Sending, loopback
from gradwire.links.base import Wrapper
from support.distant import distant
from support.noise import likely, undisturbed


def look(link: Link) -> Look | None:
    if link.rank == 0:
        return look_at_line(link, 1)
    show_line(link, 0)
    return None


class SlowSender(Wrapper):
    """A link that carries what it sends at a rate; what comes in is not its business."""

    def __init__(self, inner: Link, nbytes_per_s: float) -> None:
        super().__init__(inner)
        self._nbytes_per_s = nbytes_per_s

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        time.sleep(frame.numel() / self._nbytes_per_s)
        return self._inner.isend(to, frame)

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        return self._inner.irecv(source, buffer)


@pytest.mark.parametrize(("there", "back"), [(40e6, 5e6), (5e6, 40e6)])
def test_each_direction_has_its_own_rate(
    run_ranks: Callable[..., list[Any]], there: float, back: float
) -> None:
    def attempt() -> None:
        ends = loopback(2, 30)
        seen, _ = run_ranks(2, look, links=[SlowSender(ends[0], there), SlowSender(ends[1], back)])
        assert seen.there_nbytes_per_s <= there
        assert seen.back_nbytes_per_s <= back
        assert seen.latency_s > 0
        likely(seen.there_nbytes_per_s > there / 3, seen)
        likely(seen.back_nbytes_per_s > back / 3, seen)
        likely(seen.latency_s < 1, seen)

    undisturbed(attempt)


def test_a_distant_link_is_measured_once_its_window_is_open(run_ranks: Callable[..., list[Any]]) -> None:
    rate, latency_s = 25e6, 0.025

    def attempt() -> None:
        seen, _ = run_ranks(2, look, links=distant(rate, latency_s))
        assert seen.latency_s >= latency_s
        for each in (seen.there_nbytes_per_s, seen.back_nbytes_per_s):
            likely(0.8 * rate < each < 1.15 * rate, seen)

    undisturbed(attempt)


def test_lines_that_are_alike_are_well_and_the_slowest_is_named() -> None:
    rate, directions = check_lines(
        {1: Look(1e-4, 1e8, 1e8), 2: Look(1e-4, 9e7, 1e8), 3: Look(1e-4, 1e8, 1e8)}
    )
    assert (rate.result, rate.detail) == ("ok", "slowest: ranks 0 and 2, 720mbit, 100us")
    assert directions.result == "ok"


def test_a_line_that_holds_up_the_rest_is_a_warning() -> None:
    rate, directions = check_lines(
        {1: Look(1e-4, 1e8, 1e8), 2: Look(2e-4, 1e8, 1e8), 3: Look(3e-4, 4e7, 4e7)}
    )
    assert rate.result == "warn"
    assert rate.detail.startswith("ranks 0 and 3: 320mbit, 300us, below the median of 800mbit")
    assert directions.result == "ok"


def test_directions_that_differ_are_a_warning() -> None:
    rate, directions = check_lines({1: Look(1e-4, 1e8, 1e8), 2: Look(1e-4, 1.2e8, 5.5e7)})
    assert rate.result == "ok"
    assert directions.result == "warn"
    assert directions.detail.startswith("960mbit from rank 0 to 2, 440mbit back")
