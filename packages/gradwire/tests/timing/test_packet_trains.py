"""Trains of messages between two ranks: what they show of a link whose rate and delay are known."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

from gradwire.errors import LinkError
from gradwire.links import Link, Port, Receiving, Sending, ThrottledLink, loopback
from gradwire.links.base import Wrapper
from gradwire.timing.line import Line
from gradwire.timing.packet_trains import MESSAGES, Direction, Train, answer, message_s_of
from gradwire.wire import frame_memory, frame_of
from support.distant import distant
from support.meshes import sockets, tls
from support.noise import likely, undisturbed

RunRanks = Callable[..., list[Any]]
ADVICE = "; use the same version of gradwire on all ranks$"
PIECES, DUPLEX_PIECES, BUDGET_S = 8, 3, 0.02


def _measured(link: Link) -> tuple[Direction, list[float]]:
    """Measure from rank 0 to rank 1, as a training run does; return the pieces' seconds, too."""
    own, seconds, answered = Direction(1 - link.rank), list[float](), 0
    for _ in range(PIECES):
        began = time.perf_counter()
        if link.rank == 0:
            own.send(link, BUDGET_S)
        else:
            answered = answer(link, 0)
        seconds.append(time.perf_counter() - began)
    own.nbytes = answered or own.nbytes
    for _ in range(DUPLEX_PIECES):
        own.send_and_answer(link, 1 - link.rank)
    return own, seconds


def _train_a_step(link: Link) -> None:
    """Send what opens TCP's window, as the steps before a choice do."""
    frames = [frame_memory(1 << 19).zero_() for _ in range(16)]
    receivings = [link.irecv(1 - link.rank, frame_memory(1 << 19)) for _ in frames]
    for sending in [link.isend(1 - link.rank, frame) for frame in frames]:
        sending.wait()
    for receiving in receivings:
        receiving.wait()


def _measured_in_training(link: Link) -> tuple[Direction, list[float]]:
    _train_a_step(link)
    return _measured(link)


def _line(own: Direction) -> Line:
    assert own.line is not None
    return own.line


def test_a_near_link_has_the_rate_and_delay_that_it_was_given(run_ranks: RunRanks) -> None:
    rate, latency_s = 20e6, 0.0005

    def attempt() -> None:
        links = [ThrottledLink(link, Port(rate, latency_s)) for link in loopback(2)]
        (own, _), (other, _) = run_ranks(2, _measured, links=links)
        line = _line(own)
        assert other.line is None, "it has only answered"
        assert line.latency_s >= latency_s
        likely(line.latency_s < 5 * latency_s, line)
        likely(0.85 * rate < line.nbytes_per_s < 1.15 * rate, line)
        likely(line.duplex_share > 0.8, line)  # the directions do not share a rate

    undisturbed(attempt)


@pytest.mark.parametrize("latency_s", [0.005, 0.025, 0.05])
def test_a_distant_link_has_its_rate_and_no_piece_takes_long(run_ranks: RunRanks, latency_s: float) -> None:
    rate = 25e6

    def attempt() -> None:
        links = distant(rate, latency_s)
        (own, seconds), _ = run_ranks(2, _measured_in_training, links=links)
        line = _line(own)
        assert line.latency_s >= latency_s
        likely(0.85 * rate < line.nbytes_per_s < 1.15 * rate, line)
        most_s = 2 * latency_s + 1.5 * BUDGET_S
        likely(max(seconds[5:]) < 2 * latency_s + most_s, seconds)

    undisturbed(attempt)


def test_a_link_with_tls_is_measured_both_ways(run_ranks: RunRanks) -> None:
    def attempt() -> None:
        ranks = run_ranks(2, _measured, links=tls(2, 20.0))
        assert [len(own.both) for own, _ in ranks] == [DUPLEX_PIECES] * 2
        line = _line(ranks[0][0])
        plain = _line(run_ranks(2, _measured, links=sockets(2, 20.0))[0][0])
        likely(line.nbytes_per_s < 1.5 * plain.nbytes_per_s, (line, plain))  # it encrypts as well
        likely(line.latency_s < 0.01, line)
        likely(max(ranks[0][1]) < 10 * BUDGET_S, ranks[0][1])

    undisturbed(attempt)


class Late(Wrapper):
    """A link whose receiver is kept waiting for some milliseconds, now and then."""

    def __init__(self, inner: Link) -> None:
        super().__init__(inner)
        self._draw = Random(inner.rank)

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        return self._inner.isend(to, frame)

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        return Waiting(self._inner.irecv(source, buffer), self._draw)


class Waiting:
    def __init__(self, inner: Receiving, draw: Random) -> None:
        self._inner, self._draw = inner, draw

    def wait(self, *how: Any) -> torch.Tensor:
        if self._draw.random() < 0.01:
            time.sleep(0.003)
        return self._inner.wait(*how)


def test_a_receiver_that_is_often_late_makes_no_link_slow_or_fast(run_ranks: RunRanks) -> None:
    rate = 20e6

    def attempt() -> None:
        links = [Late(ThrottledLink(link, Port(rate))) for link in loopback(2)]
        (own, _), _ = run_ranks(2, _measured, links=links)
        likely(0.85 * rate < _line(own).nbytes_per_s < 1.2 * rate, own.line)

    undisturbed(attempt)


def test_a_message_takes_what_most_of_a_train_shows() -> None:
    assert message_s_of([]) == message_s_of([1.0]) == 0.0
    even = [float(each) for each in range(32)]
    assert message_s_of(even) == pytest.approx(1.0)
    assert message_s_of([max(each, 9.5) for each in even]) == pytest.approx(1.0), "late at first"
    assert message_s_of([min(each, 25.0) for each in even]) < 1.0, "a burst comes early, and is no lateness"
    window = [each + 100.0 * (each > 12) for each in even]
    assert message_s_of([0.01 * each if each < 8 else each - 7 for each in even]) == pytest.approx(1.0)
    assert message_s_of(window) > 2.0, "the receiver may have been late"
    assert message_s_of(window, trip_s=120.0) == pytest.approx(1.0), (
        "a full window is sent after a round trip"
    )


@pytest.mark.parametrize(("late", "rate"), [([True, False, True], 20e6), ([True, True, True], 5e6)])
def test_a_late_receiver_s_trains_count_only_if_there_are_no_others(late: list[bool], rate: float) -> None:
    own = Direction(1, [0.1])
    own.alone = [Train(1 << 20, 5e6 if each else 20e6, 0.1, 0.0, each) for each in late]
    own.alone.append(Train(1 << 16, 1e6, 0.1, 0.0))
    assert _line(own).nbytes_per_s == rate


@pytest.mark.parametrize(
    "order",
    [
        (-5, MESSAGES, 0.0),
        (1 << 50, MESSAGES, 0.0),
        (8, 1 << 60, 0.0),
        (8, -7, 0.0),
        (8, MESSAGES, math.nan),
        (8, MESSAGES, -math.inf),
    ],
)
def test_a_damaged_order_is_an_error_in_one_sentence(
    order: tuple[int, int, float], run_ranks: RunRanks
) -> None:
    def run(link: Link) -> None:
        if link.rank == 0:
            link.isend(1, frame_of(struct.pack("<qqd", *order))).wait()
        else:
            with pytest.raises(LinkError, match=ADVICE) as caught:
                answer(link, 0)
            assert len(str(caught.value).splitlines()) == 1
            assert str(caught.value).startswith("expected a ")

    run_ranks(2, run)


@pytest.mark.parametrize("trip_s", [None, 0.05])
@pytest.mark.parametrize(
    "report", [struct.pack("<d", each) for each in (math.nan, math.inf, -1.0, 1e300)] + [bytes(5)]
)
def test_a_damaged_report_is_an_error_in_one_sentence(
    report: bytes, trip_s: float | None, run_ranks: RunRanks
) -> None:
    def run(link: Link) -> None:
        if link.rank == 1:
            own = Direction(0, [] if trip_s is None else [trip_s])
            with pytest.raises(LinkError, match=ADVICE) as caught:
                own.send_and_answer(link, None)
            assert "expected a " in str(caught.value)
            return
        nbytes, count, _ = struct.unpack("<qqd", link.irecv(1, frame_memory(24)).wait().numpy().tobytes())
        for _ in range(count):
            link.irecv(1, frame_memory(nbytes)).wait()
        link.isend(1, frame_of(report)).wait()

    run_ranks(2, run)
