from __future__ import annotations

from gradwire import Exchange, Link, Plan
from gradwire.autotune.costs import LINE_FIELDS, line_of, measuring_line
from gradwire.autotune.pacing import Together, at_once
from gradwire.autotune.settings import DEFAULT
from gradwire.errors import ExchangeError
from gradwire.timing.pairs import HostMap, map_hosts
from support.ranks import run_ranks

BUDGET_S = 0.001


def _line(link: Link) -> tuple[float, ...]:
    return at_once(measuring_line(_alone(link.world), link.rank, BUDGET_S), Exchange(link, Plan()))


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
        work, value = measuring_line(_alone(link.world), link.rank, BUDGET_S), None
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
        return at_once(measuring_line(hosts, link.rank, BUDGET_S), Exchange(link, Plan()))

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
