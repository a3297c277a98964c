from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from gradwire import Exchange, Link, Plan
from gradwire.autotune.costs import LINE_FIELDS, Together, at_once, line_of, measure_line
from gradwire.autotune.settings import DEFAULT
from gradwire.errors import ExchangeError
from gradwire.timing.packet_trains import MESSAGES
from gradwire.timing.pairs import HostMap, map_hosts
from gradwire.wire import frame_of, parting_frame
from support.meshes import sockets
from support.ranks import run_ranks

BUDGET_S = 0.001


def _line(link: Link) -> tuple[float, ...]:
    return at_once(measure_line(_alone(link.world), link.rank, BUDGET_S), Exchange(link, Plan()))


def _line_in_steps(link: Link, hosts: HostMap, late_s: float, between: Callable[[int], None]) -> Any:
    """Run a piece after each call of ``between``, as a training run does in each step."""
    exchange, value, number = Exchange(link, Plan()), None, 0
    work = measure_line(hosts, link.rank, BUDGET_S, late_s=late_s)
    while True:
        try:
            piece = work.send(value)
        except StopIteration as done:
            return done.value
        assert piece is not None
        between(number)
        value, number = piece.call(exchange), number + 1


def _alone(world: int) -> HostMap:
    names = tuple(bytes([rank]) for rank in range(world))
    return HostMap(names, names, names)


def test_the_first_of_two_ranks_measures_and_each_of_more() -> None:
    for world in (2, 3, 4):
        rows = run_ranks(world, _line)
        assert [any(row) for row in rows] == [True] * (world if world > 2 else 1) + [False] * (world == 2)
        assert all(len(row) == LINE_FIELDS for row in rows)
        assert line_of(rows).nbytes_per_s == min(row[1] for row in rows if any(row))


def test_all_ranks_have_equally_many_pieces_with_all_others() -> None:
    def count(link: Link) -> list[str]:
        exchange, found = Exchange(link, Plan()), list[str]()
        work, value = measure_line(_alone(link.world), link.rank, BUDGET_S), None
        while True:
            try:
                piece = work.send(value)
            except StopIteration:
                return found
            assert isinstance(piece, Together), "no rank has local work, of which others would not know"
            found.append(piece.what)
            value = piece.call(exchange)

    for world, groups in ((2, 1), (3, 3), (4, 2)):
        seen = run_ranks(world, count)
        assert [len(each) for each in seen] == [groups * DEFAULT.line_pieces + DEFAULT.duplex_pieces] * world


def test_ranks_that_share_hosts_measure_one_link_after_the_other() -> None:
    hosts = HostMap(*[(b"a", b"a", b"b", b"b")] * 3)

    def run(link: Link) -> tuple[float, ...]:
        assert len(map_hosts(link).hosts) == 4
        return at_once(measure_line(hosts, link.rank, BUDGET_S), Exchange(link, Plan()))

    assert all(any(row) for row in run_ranks(4, run))


def test_the_slowest_line_counts() -> None:
    line = line_of([(1e-3, 1e9, 1e5, 0.9), (0.0,) * 4, (2e-3, 1e8, 2e5, 0.8)])
    assert (line.latency_s, line.nbytes_per_s, line.burst_nbytes, line.duplex_share) == (2e-3, 1e8, 1e5, 0.8)


def test_a_peer_that_is_gone_is_an_error_of_the_exchange() -> None:
    def run(link: Link) -> None:
        if link.rank == 0:
            _line(link)
        link.close()

    failure, _ = run_ranks(2, run, errors="return")
    assert isinstance(failure, ExchangeError)
    assert str(failure).startswith("a measurement of the network failed: rank 0 ")


@pytest.mark.parametrize("hosts", [_alone(3), HostMap(*[(b"a", b"a", b"b")] * 3)])
@pytest.mark.parametrize("late_s", [0.5, 30.0])
def test_a_rank_may_be_late_for_a_piece_but_not_longer_than_for_a_step(hosts: HostMap, late_s: float) -> None:
    """A rank may evaluate between two pieces, for longer than the link's timeout."""

    def run(link: Link) -> Any:
        def between(number: int) -> None:
            if link.rank == 1 and number in (0, 3, 12):
                time.sleep(1.5)

        return _line_in_steps(link, hosts, late_s, between)

    found = run_ranks(3, run, timeout_s=0.5, errors="return")
    if late_s > 1:
        assert any(any(row) for row in found)
    else:
        assert all(isinstance(each, ExchangeError) for each in found)


def test_a_peer_that_stops_within_a_piece_is_an_error_after_the_links_timeout() -> None:
    def run(link: Link) -> float:
        began = time.perf_counter()
        if link.rank == 0:
            link.isend(1, frame_of(struct.pack("<qqd", 1 << 10, MESSAGES, 0.0))).wait()
            time.sleep(3.0)
        else:
            with pytest.raises(ExchangeError, match="rank 1 receiving from rank 0"):
                _line_in_steps(link, _alone(2), 30.0, lambda _: None)
        return time.perf_counter() - began

    assert run_ranks(2, run, timeout_s=0.5)[1] < 2.5


@pytest.mark.parametrize("shared", [False, True])
def test_a_peer_that_leaves_within_a_piece_has_closed_its_link(shared: bool) -> None:
    """Its last frame arrives in place of a message."""
    hosts = HostMap(*[(b"a", b"a", b"b")] * 3) if shared else _alone(3)

    def run(link: Link) -> None:
        def between(number: int) -> None:
            if link.rank == 2 and number == 0:
                link.leave(parting_frame([(2, 5)], has_left=True))
                raise EOFError

        link.step = 5
        try:
            _line_in_steps(link, hosts, 30.0, between)
        except ExchangeError:
            link.leave(parting_frame([(link.rank, 5)], has_left=True))
            raise

    first, second, third = run_ranks(3, run, links=sockets(3, 10.0), errors="return")
    assert isinstance(third, EOFError)
    for each in (first, second):
        assert "closed" in str(each), each
