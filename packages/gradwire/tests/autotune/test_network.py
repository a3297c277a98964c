from __future__ import annotations

import pytest

from gradwire import Link
from gradwire.autotune.costs import LINE_FIELDS, line_of, matchings, own_line
from gradwire.errors import ExchangeError
from support.ranks import run_ranks


@pytest.mark.parametrize("world", range(1, 18))
def test_every_line_of_the_ring_is_measured_once_and_no_rank_twice_at_once(world: int) -> None:
    groups = matchings(world)
    pairs = [pair for group in groups for pair in group]
    ring = {tuple(sorted((rank, (rank + 1) % world))) for rank in range(world)} if world > 1 else set()
    assert len(pairs) == len(set(pairs))
    assert {*pairs} == ring
    assert all(low < high for low, high in pairs)
    for group in groups:
        ranks = [rank for pair in group for rank in pair]
        assert len(ranks) == len(set(ranks))
    assert len(groups) <= 3


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_measure_and_the_leaders_know(world: int) -> None:
    def run(link: Link) -> tuple[float, ...]:
        return own_line(link)

    rows = run_ranks(world, run)
    assert [any(row) for row in rows] == [True] * (world - 1) + [False], "the last rank leads nobody"
    assert all(len(row) == LINE_FIELDS for row in rows)
    assert line_of(rows).nbytes_per_s == min(row[1] for row in rows if any(row))


def test_the_slowest_line_counts() -> None:
    line = line_of([(1e-3, 1e9, 1e5, 0.9), (0.0,) * 4, (2e-3, 1e8, 2e5, 0.8)])
    assert (line.latency_s, line.nbytes_per_s, line.burst_nbytes, line.duplex_share) == (2e-3, 1e8, 1e5, 0.8)


def test_a_peer_that_is_gone_is_an_error_of_the_exchange() -> None:
    def run(link: Link) -> None:
        if link.rank == 0:
            own_line(link)
        link.close()

    failure, _ = run_ranks(2, run, errors="return")
    assert isinstance(failure, ExchangeError)
    assert str(failure).startswith("a measurement of the network failed: rank 0 ")
